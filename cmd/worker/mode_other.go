//go:build !unix

package main

// fileModes is false: the mode of a file does not tell here who may write it.
const fileModes = false
