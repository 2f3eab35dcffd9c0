//go:build unix

package worker

import (
	"os"
	"syscall"
)

// pauseSignals stop a server from taking tasks, and do not end it.
var pauseSignals = []os.Signal{syscall.SIGTSTP}
