package worker

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// TaskScope returns the scope of the task whose handler has ctx. It is empty for a task without
// limits, and outside of a handler.
func TaskScope(ctx context.Context) string {
	if r, is := ctx.Value(runKey{}).(*taskRun); is {
		return r.job.scope
	}
	return ""
}

// logFailures returns an ErrorHandler that logs each failure and then calls next. Final failures are
// logged as errors. Of failures that asynq retries, one a minute for each scope is logged at info and
// the others at debug.
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
