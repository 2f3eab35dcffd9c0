// Package httpsyntax defines the valid methods and URLs of a request of a task of type http, and the
// valid trace contexts that a task carries. Package queue and the program enqueue reject by it what is
// enqueued, and package outbound what any program has put into Redis. They therefore reject the same
// requests, with the same words.
//
// No reason quotes a URL or a part of it, since that may contain a password or a key.
//
// Its exported names may change in any version.
package httpsyntax
