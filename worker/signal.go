package worker

import (
	"os"
	"os/signal"
	"syscall"
)

// listenForSignals returns the signals that end the process or stop it from taking tasks. Call it
// before a server starts, so that no signal is lost meanwhile.
func listenForSignals() (signals chan os.Signal, over func()) {
	signals = make(chan os.Signal, 2)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, os.Interrupt}, pauseSignals...)...)
	return signals, func() { signal.Stop(signals) }
}

// obey blocks until a signal ends the process. As with asynq, SIGTSTP only stops it from taking tasks.
func obey(signals <-chan os.Signal, stop func()) {
	for s := range signals {
		if s == syscall.SIGTERM || s == os.Interrupt {
			return
		}
		stop()
	}
}
