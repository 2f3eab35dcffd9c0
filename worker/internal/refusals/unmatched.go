// Package refusals looks after tasks that the present limits refuse: it spreads the times at which they come back, and warns about
// scopes that meet no rule.
//
// Only package worker uses it.
package refusals

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headway-go/headway/worker/internal/awaycount"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// Task is a refused task. Its Scope is empty if it names none, and Why says why it is refused.
type Task struct{ Queue, ID, Type, Scope, Why string }

// Unmatched counts the tasks that wait because their scopes meet no rule, and warns about each scope
// once a minute. The zero value is ready to use. It is safe for concurrent use.
type Unmatched struct {
	away  awaycount.Counts[string] // by scope, or by the type of tasks that name none
	lines ratelog.Repeats

	mu     sync.Mutex
	minute time.Time // when the warnings of this minute began
	warned int       // scopes warned about since
}

const (
	// gather is how long a warning waits for more tasks of its scope, so that its count is
	// meaningful.
	gather = time.Second
	// mostWarned bounds the number of scopes warned about in a minute: thousands of scopes may be
	// misspelt.
	mostWarned = 20
)

// Waits records a task that was put back until at.
func (u *Unmatched) Waits(ctx context.Context, log *slog.Logger, task Task, at time.Time) {
	now := time.Now()
	key, what := task.Scope, []any{"scope", task.Scope}
	if key == "" { // one line a type; no scope begins with "/"
		key, what = "/"+task.Type, []any{"type", task.Type, "reason", task.Why}
	}
	u.away.Add(key, at, now)
	if _, due := u.lines.Due(key, now); !due {
		return
	}
	ctx, first := context.WithoutCancel(ctx), []any{"queue", task.Queue, "task_id", task.ID}
	if !u.warns(now) {
		if _, due := u.lines.Due("", now); due { // no key is empty
			log.WarnContext(ctx, "tasks of more scopes wait: no rule matches; headway_refused_tasks counts them", append(what, first...)...)
		}
		return
	}
	time.AfterFunc(gather, func() {
		log.WarnContext(ctx, "no rule matches the scope; its tasks wait until you add a rule, or delete them", slices.Concat(what, []any{"tasks", max(u.away.Of(key, time.Now()), 1)}, first)...)
	})
}

// warns reports whether one more scope may be warned about in this minute.
func (u *Unmatched) warns(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.minute) >= time.Minute {
		u.minute, u.warned = now, 0
	}
	u.warned++
	return u.warned <= mostWarned
}
