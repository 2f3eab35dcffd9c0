//go:build !unix

package worker

import "os"

// pauseSignals is empty: there is no SIGTSTP here.
var pauseSignals []os.Signal
