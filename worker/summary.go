package worker

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// summaryEvery is the default interval of the summary in the log.
const summaryEvery = time.Minute

// summary is an Observer that counts tasks for a periodic log line. It is safe for concurrent use.
type summary struct {
	NoObserver
	pickedUp, ran, failed, putBack atomic.Int64
}

func (s *summary) PickedUp(string) { s.pickedUp.Add(1) }

func (s *summary) Rescheduled(string, time.Duration) { s.putBack.Add(1) }

func (s *summary) Ran(_ context.Context, _, outcome string, _ time.Duration) {
	s.ran.Add(1)
	if outcome == "failed" || outcome == "lost" {
		s.failed.Add(1)
	}
}

// run logs a line for each interval in which anything happened, until ctx ends. waiting is called only
// for a line; if it fails, the line leaves that number out.
func (s *summary) run(ctx context.Context, every time.Duration, log *slog.Logger, waiting func(context.Context) (int64, error)) {
	every = cmp.Or(every, summaryEvery)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.log(ctx, every, log, waiting)
		}
	}
}

func (s *summary) log(ctx context.Context, every time.Duration, log *slog.Logger, waiting func(context.Context) (int64, error)) {
	pickedUp, ran, failed, putBack := s.pickedUp.Swap(0), s.ran.Swap(0), s.failed.Swap(0), s.putBack.Swap(0)
	if pickedUp+ran+putBack == 0 || !log.Enabled(ctx, slog.LevelInfo) {
		return
	}
	about := []any{"in", every, "picked_up", pickedUp, "ran", ran, "failed", failed, "put_back", putBack}
	if n, err := waiting(ctx); err == nil {
		about = append(about, "waiting", n)
	}
	log.InfoContext(ctx, "task counts", about...)
}
