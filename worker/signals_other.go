//go:build !unix

package worker

import "os"

// pauseSignals is empty: this system has no SIGTSTP.
var pauseSignals []os.Signal
