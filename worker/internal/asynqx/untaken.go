package asynqx

import (
	"github.com/headway-go/headway/worker/internal/ratelog"
	"log/slog"
	"sync"
	"time"
)

// untaken logs that Redis does not record the ends of tasks: one line when that begins, and one when
// it has recorded all of them, however many tasks are concerned. It is safe for concurrent use.
type untaken struct {
	log     *slog.Logger
	repeats ratelog.Repeats // for repeated outages

	mu      sync.Mutex
	since   time.Time // zero while Redis records everything
	told    bool      // the outage was logged
	waiting int       // tasks whose end is not recorded yet
	tasks   int       // since then
	calls   int       // that failed since then
	given   int       // tasks whose end was abandoned since then
}

// untakenTask is whether one task's end waits to be recorded.
type untakenTask bool

// failed records a failed call for a task, which waits from now on.
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

// ends records that a call did not fail, or that no more will be made, for a task that waited until
// now, if it did.
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
