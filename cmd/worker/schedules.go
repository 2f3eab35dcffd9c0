package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/policy"
)

// loadSchedules reads the file of -schedules, when it is not being written any more; "" is none.
func loadSchedules(ctx context.Context, path string, log *slog.Logger) (*schedule.File, error) {
	if path == "" {
		return &schedule.File{}, nil
	}
	var f *schedule.File
	text, stands, err := limitsfile.ReadSettled(ctx, path)
	if err == nil {
		limitsfile.WarnOfMode(ctx, log, path, stands)
		f, err = schedule.Parse(path, text)
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, limitsfile.ErrBusy), errors.Is(err, context.Canceled):
		return nil, err
	case errors.As(err, new(*schedule.FileError)):
		return nil, faultySchedules(path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, &cli.Error{What: "there is no schedules file " + path, Try: "-schedules examples/schedules/schedules.yaml", Err: err}
	}
	return nil, &cli.Error{What: "cannot read the schedules file: " + err.Error(), Err: err}
}

func faultySchedules(path string, err error) error {
	return &cli.Error{What: err.Error(), Try: "correct these lines of " + path + "; nothing was started", Err: err}
}

// newSchedules returns what enqueues the recurring tasks, or an error where the
// rules that will be in force could never run one of them, or this worker would not send it.
func newSchedules(rdb redis.UniversalClient, f *schedule.File, rules *policy.Policy, limiter *throttle.Limiter, app string, methods []string, log *slog.Logger) (func(context.Context), error) {
	if err := errors.Join(f.Check(rules), f.CheckMethods(methods)); err != nil {
		return nil, faultySchedules(f.Name, err)
	}
	r, err := schedule.New(schedule.Config{
		Redis: rdb, Client: queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter, AllowMethods: methods, App: app}), Schedules: f.Schedules, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return r.Run, nil
}
