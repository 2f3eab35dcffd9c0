package main

import (
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/metrics"
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
	redis   redis.UniversalClient
	limiter *throttle.Limiter
	options options
	metrics *metrics.Metrics
	watch   *watch
	usage   worker.Usage // nil when off
	log     *slog.Logger
}
