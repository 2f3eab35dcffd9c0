package asynqx

import (
	"github.com/headway-go/headway/worker/internal/ratelog"
	"log/slog"
	"sync"
	"time"
)

// untaken logs that Redis does not take what becomes of tasks: one line when it ceases to,
// and one when it has taken all of it, however many tasks that concerns. It is safe for
// concurrent use.
type untaken struct {
	log     *slog.Logger
	repeats ratelog.Repeats // where it ceases to again and again

	mu      sync.Mutex
	since   time.Time // zero while Redis takes everything
	told    bool      // that it does not
	waiting int       // tasks whose end it has not taken yet
	tasks   int       // since then
	calls   int       // that failed since then
	given   int       // tasks that were given up since then
}

// untakenTask is whether one task's end waits to be taken.
type untakenTask bool

// failed notes a call that failed, for a task that waits from now on.
func (u *untaken) failed(waits untakenTask, err error) untakenTask {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
	if waits {
		return true
	}
	u.waiting++
	u.tasks++
	if !u.since.IsZero() {
		return true
	}
	u.since = time.Now()
	more, due := u.repeats.Due("untaken", u.since)
	if u.told = due; due {
		u.log.Warn("cannot write task results to redis; retrying", "more", more, "error", err)
	}
	return true
}

// ends notes that a call did not fail, or that no more will be made: for a task that
// waited until now, if it did.
func (u *untaken) ends(waited untakenTask, err error) {
	if !waited {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if MayPass(err) {
		u.given++
	}
	if u.waiting--; u.waiting > 0 {
		return
	}
	after, tasks, calls, given, told := time.Since(u.since), u.tasks, u.calls, u.given, u.told
	u.since, u.tasks, u.calls, u.given = time.Time{}, 0, 0, 0
	switch {
	case given > 0:
		u.log.Warn("some task results were not written to redis; asynq recovers these tasks", "tasks", given, "of", tasks, "failed_calls", calls, "after", after)
	case told:
		u.log.Info("all task results are written to redis", "tasks", tasks, "failed_calls", calls, "after", after)
	}
}
