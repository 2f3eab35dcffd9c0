package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	usages "github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/metrics"
)

// checkApp refuses a name that cannot be recorded.
func checkApp(name string) error {
	if err := usages.CheckApp(name); err != nil {
		return &cli.Error{What: "-app: " + strings.TrimPrefix(err.Error(), "usage: "), Try: "-app billing", Err: err}
	}
	return nil
}

// newUsage returns who is told what tasks spend, and what sends it to Redis until its
// context ends: nobody and nothing where usage is off.
func newUsage(rdb redis.UniversalClient, o options, m *metrics.Metrics, log *slog.Logger) (*usages.Recorder, func(context.Context), error) {
	if !o.usage {
		return nil, func(context.Context) {}, nil
	}
	r, err := usages.New(rdb, usages.Config{App: o.app, Observer: m, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	return r, r.Run, nil
}

// tellShadows returns who is told what shadow rules would have done.
func tellShadows(m *metrics.Metrics, spent *usages.Recorder) func(throttle.Shadowed) {
	if spent == nil {
		return m.Shadowed
	}
	return func(one throttle.Shadowed) {
		m.Shadowed(one)
		spent.Shadowed(one)
	}
}

// toldBy is a recorder as package worker takes it: none is nil.
func toldBy(spent *usages.Recorder) worker.Usage {
	if spent == nil {
		return nil
	}
	return spent
}
