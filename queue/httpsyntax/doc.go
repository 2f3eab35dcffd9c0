// Package httpsyntax says what the request of a task of type http may look like: its method
// and its URL. Package queue refuses by it what is enqueued, and package outbound what any
// program put into Redis, so that both refuse the same with the same words.
//
// No reason quotes a URL or a part of it: it may hold a password or a key.
//
// Its exported names may change in any version.
package httpsyntax
