// Package diag reports the faults of something that a person wrote: a file, or a tree of values made
// in Go. It collects every fault, with its place and what to do about it, so that all of them can be
// corrected at once. It knows no file format.
package diag
