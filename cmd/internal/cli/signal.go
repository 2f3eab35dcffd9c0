package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// ErrInterrupted is the cause of a context that Notify cancelled:
// context.Cause(ctx) wraps it and names the signal.
var ErrInterrupted = errors.New("interrupted")

// Notify returns a context that the first SIGINT or SIGTERM cancels, so that
// work can end in good order. The second one calls kill, which in main is
// func() { os.Exit(cli.ExitInterrupted) }. Call it before anything else, and
// stop when the work is over.
func Notify(parent context.Context, kill func()) (ctx context.Context, stop func()) {
	// Two places: a second signal must not be lost while the first is handled.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, end := watch(parent, signals, kill)
	return ctx, func() {
		signal.Stop(signals)
		end()
	}
}

func watch(parent context.Context, signals <-chan os.Signal, kill func()) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("%w by signal: %s", ErrInterrupted, s))
		case <-ended:
			return
		}
		select {
		case <-signals:
			kill()
		case <-ended:
		}
	}()
	var closed bool
	return ctx, func() {
		if !closed {
			closed = true
			close(ended)
		}
		cancel(context.Canceled)
	}
}
