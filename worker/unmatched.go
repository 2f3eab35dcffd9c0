package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/worker/internal/awaycount"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// unmatched counts the tasks that wait because their scopes meet no rule, and warns about each scope
// once a minute. The zero value is ready to use. It is safe for concurrent use.
type unmatched struct {
	away  awaycount.Counts[string] // by scope, or by the type of tasks that name none
	lines ratelog.Repeats

	mu     sync.Mutex
	minute time.Time // when the warnings of this minute began
	warned int       // scopes warned about since
}

const (
	// unmatchedGather is how long a warning waits for more tasks of its scope, so that its count is
	// meaningful.
	unmatchedGather = time.Second
	// mostUnmatched bounds the number of scopes warned about in a minute: thousands of scopes may be
	// misspelt.
	mostUnmatched = 20
)

// waits records a task that was put back until at.
func (u *unmatched) waits(ctx context.Context, log *slog.Logger, j *job, at time.Time) {
	now := time.Now()
	key, what := j.scope, []any{"scope", j.scope}
	if key == "" { // one line a type; no scope begins with "/"
		key, what = "/"+j.task.Type(), []any{"type", j.task.Type(), "reason", j.why}
	}
	u.away.Add(key, at, now)
	if _, due := u.lines.Due(key, now); !due {
		return
	}
	ctx, first := context.WithoutCancel(ctx), []any{"queue", j.queue, "task_id", j.id}
	if !u.warns(now) {
		if _, due := u.lines.Due("", now); due { // no key is empty
			log.WarnContext(ctx, "tasks of more scopes wait: no rule matches; headway_refused_tasks counts them", append(what, first...)...)
		}
		return
	}
	time.AfterFunc(unmatchedGather, func() {
		log.WarnContext(ctx, "no rule matches the scope; its tasks wait until you add a rule, or delete them", slices.Concat(what, []any{"tasks", max(u.away.Of(key, time.Now()), 1)}, first)...)
	})
}

// warns reports whether one more scope may be warned about in this minute.
func (u *unmatched) warns(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.minute) >= time.Minute {
		u.minute, u.warned = now, 0
	}
	u.warned++
	return u.warned <= mostUnmatched
}
