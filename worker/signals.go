package worker

import (
	"os"
	"os/signal"
	"syscall"
)

// listen returns the signals that end the process, stop it from taking tasks or, if reloads
// is set, have it read its limits file. Call it before a server starts, so that no signal is lost
// meanwhile.
func listen(reloads bool) (signals chan os.Signal, over func()) {
	signals = make(chan os.Signal, 2)
	signal.Notify(signals, append([]os.Signal{syscall.SIGTERM, os.Interrupt}, pauseSignals...)...)
	if reloads { // otherwise SIGHUP ends the process, as it ends any
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals, func() { signal.Stop(signals) }
}

// obey blocks until a signal ends the process. As with asynq, SIGTSTP only stops it from taking tasks.
func obey(signals <-chan os.Signal, stop, reload func()) {
	for s := range signals {
		switch s {
		case syscall.SIGTERM, os.Interrupt:
			return
		case syscall.SIGHUP:
			reload()
		default:
			stop()
		}
	}
}
