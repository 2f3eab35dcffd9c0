package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/headway-go/headway/worker/internal/awaycount"
	"github.com/headway-go/headway/worker/internal/ratelog"
)

// unmatched counts the tasks that wait because their scopes meet no rule, and warns about each scope
// once a minute. The zero value is ready to use. It is safe for concurrent use.
type unmatched struct {
	away  awaycount.Counts[string] // by scope
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
	u.away.Add(j.scope, at, now)
	if _, due := u.lines.Due(j.scope, now); !due {
		return
	}
	ctx, scope, queue, id := context.WithoutCancel(ctx), j.scope, j.queue, j.id
	if !u.warns(now) {
		if _, due := u.lines.Due("", now); due { // no scope is empty
			log.WarnContext(ctx, "tasks of more scopes wait: no rule matches; headway_refused_tasks counts them", "scope", scope, "queue", queue, "task_id", id)
		}
		return
	}
	time.AfterFunc(unmatchedGather, func() {
		log.WarnContext(ctx, "no rule matches the scope; its tasks wait until you add a rule, or delete them",
			"scope", scope, "tasks", max(u.away.Of(scope, time.Now()), 1), "queue", queue, "task_id", id)
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
