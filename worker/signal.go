package worker

import (
	"os"
	"os/signal"
	"syscall"
)

// waitForSignal blocks until the process is told to end.
func waitForSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	<-signals
}
