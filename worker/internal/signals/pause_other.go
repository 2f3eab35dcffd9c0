//go:build !unix

package signals

import "os"

// pauseSignals is empty: this system has no SIGTSTP.
var pauseSignals []os.Signal
