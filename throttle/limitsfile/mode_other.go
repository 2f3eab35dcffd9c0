//go:build !unix

package limitsfile

// fileModes is false: the mode of a file does not tell here who may write it.
const fileModes = false
