package worker

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"time"

	"github.com/hibiken/asynq"
)

// TaskScope returns the scope of the task whose handler has ctx, empty for one that no limit concerns and outside of a handler.
func TaskScope(ctx context.Context) string {
	if r, is := ctx.Value(runKey{}).(*taskRun); is {
		return r.job.scope
	}
	return ""
}

// logFailures tells an ErrorHandler's failures to the log before next hears of them: each that is for good as an error, and of those
// that are tried again one a minute of each scope, the others at debug.
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
	more, due := l.failures.Due(scope, time.Now())
	if !due {
		l.log.DebugContext(ctx, "task failed and will be retried", about...)
		return
	}
	l.log.Log(ctx, slog.LevelInfo, "task failed and will be retried", append(about, "more", more)...)
}

// scopeOf is what a task spends from, empty where that cannot be told.
func (l *Limits) scopeOf(ctx context.Context, task *asynq.Task) (scope string) {
	defer func() { _ = recover() }() // of Spends, which asynq would let take the process down
	if j, err := l.read(ctx, task); err == nil {
		scope = j.scope
	}
	return scope
}

// urls are those in the text of an error, in parts: up to the user, to the path's end, and the query.
var urls = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)([^\s"'/?#@]*@)?([^\s"'?#]*)(\?[^\s"'#]*)?`)

// withoutSecrets is a text whose URLs have lost their users and queries, which may hold keys.
func withoutSecrets(text string) string {
	return urls.ReplaceAllStringFunc(text, func(url string) string {
		part := urls.FindStringSubmatch(url)
		if part[4] != "" {
			part[4] = "?…"
		}
		return part[1] + part[3] + part[4]
	})
}
