// Package browser tests the page in a real Chromium: each screen with a live worker behind it, by keyboard, without JavaScript, and
// against the rules of axe-core. It also takes the pictures of docs/pictures.
package browser
