//go:build !unix

package main

import "os"

// pauseSignals is empty: there is no SIGTSTP here.
var pauseSignals []os.Signal
