package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

// logFailures returns an ErrorHandler that logs each failure and then calls next. Final failures are logged as errors. Of
// failures that asynq retries, one a minute for each scope is logged at info and the others at debug.
func (l *Limits) logFailures(next asynq.ErrorHandler) asynq.ErrorHandler {
	return asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		if !errors.Is(err, asynq.RevokeTask) { // which is no failure
			l.logFailure(ctx, task, err)
		}
		if next != nil {
			next.HandleError(ctx, task, err)
		}
	})
}

func (l *Limits) logFailure(ctx context.Context, task *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	name, _ := asynq.GetQueueName(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	scope := l.scopeOf(ctx, task)
	about := []any{"task_id", id, "scope", scope, "type", task.Type(), "queue", name, "retried", retried, "error", withoutSecrets(err.Error())}
	if errors.Is(err, asynq.SkipRetry) || retried >= most {
		l.log.ErrorContext(ctx, "task failed and is archived", about...)
		return
	}
	kind := scope
	if asynq.IsPanicError(err) { // each place that panics; the value may differ each time
		place, _, _ := strings.Cut(err.Error(), "]:")
		kind += " " + place
	}
	more, due := l.failures.Due(kind, time.Now())
	if !due {
		l.log.DebugContext(ctx, "task failed and will be retried", about...)
		return
	}
	l.log.Log(ctx, slog.LevelInfo, "task failed and will be retried", append(about, "more", more)...)
}

// scopeOf returns the scope of a task, empty if it cannot be read.
func (l *Limits) scopeOf(ctx context.Context, task *asynq.Task) (scope string) {
	defer func() { _ = recover() }() // a panic of Spends, which would end the process
	if j, err := l.read(ctx, task); err == nil {
		scope = j.scope
	}
	return scope
}

// urls matches the URLs in an error text, in parts: scheme, user, host and path, and query.
var urls = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)([^\s"'/?#@]*@)?([^\s"'?#]*)(\?[^\s"'#]*)?`)

// withoutSecrets returns text with the users and queries of its URLs removed, which may hold keys.
func withoutSecrets(text string) string {
	return urls.ReplaceAllStringFunc(text, func(url string) string {
		part := urls.FindStringSubmatch(url)
		if part[4] != "" {
			part[4] = "?…"
		}
		return part[1] + part[3] + part[4]
	})
}

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
	every = cmp.Or(every, time.Minute)
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
