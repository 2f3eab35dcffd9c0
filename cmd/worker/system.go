package main

import (
	"log/slog"

	"github.com/headway-go/headway/worker"
)

// system is what runs tasks.
type system interface {
	// Start begins to take tasks.
	Start() error
	// Stop takes no new task. Those running go on, and so does the rest.
	Stop()
	// Shutdown takes no new task, puts waiting ones back and returns when those
	// running have ended, or were put back because they took too long.
	Shutdown()
}

// parts is what a system is made of.
type parts struct {
	limits  *worker.Limits
	options options
	log     *slog.Logger
}
