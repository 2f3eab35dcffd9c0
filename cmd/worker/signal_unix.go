//go:build unix

package main

import (
	"os"
	"syscall"
)

// pauseSignals stop the worker from taking tasks, and do not end it.
var pauseSignals = []os.Signal{syscall.SIGTSTP}
