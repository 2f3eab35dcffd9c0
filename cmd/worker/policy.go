package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
)

const (
	publishEvery = time.Hour
	publishAgain = time.Minute // after it failed
)

// loadPolicy reads the limits file. Every fault in it is one line of the error.
func loadPolicy(path string) (*throttle.Policy, error) {
	p, err := throttle.LoadPolicy(path)
	if err == nil {
		return p, nil
	}
	var faults *throttle.PolicyError
	switch {
	case errors.As(err, &faults):
		return nil, &cli.Error{What: err.Error(), Try: "mend these lines of " + path + "; nothing was started", Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return nil, &cli.Error{What: "there is no limits file " + path, Try: "-limits examples/quickstart/limits.yaml", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return nil, &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// settlePolicy publishes own, the policy of -limits, or returns the one that
// another worker has published where own is nil.
func settlePolicy(ctx context.Context, rdb redis.UniversalClient, own *throttle.Policy, log *slog.Logger) (*throttle.Policy, error) {
	published, err := queue.PublishedPolicy(ctx, rdb)
	var damaged *throttle.PolicyError
	if err != nil && !errors.As(err, &damaged) {
		return nil, err
	}
	switch {
	case own == nil && damaged != nil:
		return nil, &cli.Error{What: err.Error(), Try: "worker -limits limits.yaml, which publishes a good one", Err: err}
	case own == nil && published == nil:
		return nil, cli.Errorf("worker -limits limits.yaml (see examples/quickstart/limits.yaml)",
			"there are no limits: -limits is not given, and no worker has published any in the last 24 hours")
	case own == nil:
		log.InfoContext(ctx, "running under the limits that another worker has published")
		own = published
	case published != nil && !bytes.Equal(published.YAML(), own.YAML()):
		log.WarnContext(ctx, "the limits published by another worker differ from this worker's, which replace them; each worker keeps its own")
	}
	if err := queue.PublishPolicy(ctx, rdb, own); err != nil {
		return nil, err
	}
	return own, nil
}

// keepPublished renews what settlePolicy published until ctx ends, so that it
// outlives neither the workers by much nor their Redis.
func keepPublished(ctx context.Context, publish func(context.Context) error, log *slog.Logger) {
	timer := time.NewTimer(publishEvery)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := publish(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			log.WarnContext(ctx, "the limits could not be published again; trying each minute", "error", err)
		case err == nil && failing:
			log.InfoContext(ctx, "the limits are published again")
		}
		failing = err != nil
		if failing {
			timer.Reset(publishAgain)
		} else {
			timer.Reset(publishEvery)
		}
	}
}
