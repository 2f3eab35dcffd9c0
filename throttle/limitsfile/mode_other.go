//go:build !unix

package limitsfile

// fileModes is false: on this system a file's mode does not show which users may write it.
const fileModes = false
