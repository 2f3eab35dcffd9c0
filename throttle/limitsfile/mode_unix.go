//go:build unix

package limitsfile

// fileModes is true: a file's mode shows which users may write it.
const fileModes = true
