// Package diag says what is wrong with something that a person wrote: a file, or a tree of values made in Go. It collects
// every fault with its place and what to do about it, so that a person mends all of them in one go, and knows no format.
package diag
