//go:build unix

package limitsfile

// fileModes says that the mode of a file tells who may write it.
const fileModes = true
