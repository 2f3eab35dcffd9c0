package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
)

const (
	pollEvery  = 15 * time.Second // if no run is due before
	retryAfter = 2 * time.Second

	// fresh is the maximum age of the records, by the monotonic clock, when a run is enqueued by them: a
	// process that was suspended in between reads them again.
	fresh = 10 * time.Second

	stepTimeout = 10 * time.Second // for enqueuing a run, and for writing the records
)

// Config configures a Runner. All fields but Logger are required.
type Config struct {
	// Redis holds the records, and is the Redis that Client enqueues into.
	Redis redis.UniversalClient
	// Client enqueues the tasks.
	Client *queue.Client
	// Schedules are those of a File. All processes must have the same.
	Schedules []*Schedule
	// Logger gets a line for missed runs, for rejected tasks, and when Redis does not answer. Defaults to none.
	Logger *slog.Logger
}

// Runner enqueues the runs of schedules when they are due. Run it in every process: see the package's
// comment for how each run is enqueued once.
type Runner struct {
	client  *queue.Client
	records records
	entries []*entry
	log     *slog.Logger
	failing bool
}

// entry is a schedule and the name of its record.
type entry struct {
	*Schedule
	member string
	begun  bool // this Runner has used its record
	ahead  bool // it has been logged that its record is ahead of time
}

// New returns a Runner. It does no I/O.
func New(cfg Config) (*Runner, error) {
	if cfg.Redis == nil || cfg.Client == nil {
		return nil, errors.New("schedule: Config.Redis and Config.Client are required")
	}
	r := &Runner{client: cfg.Client, records: records{rdb: cfg.Redis}, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))}
	for _, s := range cfg.Schedules {
		if s == nil || s.runs == nil {
			return nil, errors.New("schedule: Config.Schedules holds one that Parse has not made")
		}
		r.entries = append(r.entries, &entry{Schedule: s, member: s.member()})
	}
	return r, nil
}

// Run enqueues runs until ctx ends. It costs a round trip every 15 seconds and at each run. While Redis does not answer, Run
// retries every two seconds; no run is lost by that, except those that the schedules' CatchUp skips.
func (r *Runner) Run(ctx context.Context) {
	if len(r.entries) == 0 {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait, err := r.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		r.logChange(ctx, err)
		if err != nil {
			wait = retryAfter
		}
		timer.Reset(wait)
	}
}

// logChange logs once when an error begins, and once when it ends.
func (r *Runner) logChange(ctx context.Context, err error) {
	switch {
	case err != nil && !r.failing:
		r.log.WarnContext(ctx, "cannot enqueue scheduled runs; retrying", "error", err)
	case err == nil && r.failing:
		r.log.InfoContext(ctx, "scheduled runs are enqueued again")
	}
	r.failing = err != nil
}

// poll enqueues due runs and returns the time until the next poll.
func (r *Runner) poll(ctx context.Context) (time.Duration, error) {
	st, err := r.records.read(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	m := marks{now: st.now}
	for _, e := range r.entries {
		if ctx.Err() != nil {
			break
		}
		if err := r.handle(ctx, e, st, &m); err != nil {
			errs = append(errs, err)
		}
	}
	if err := r.records.write(ctx, m); err != nil {
		errs = append(errs, err)
	}
	return r.untilNext(st), errors.Join(errs...)
}

// handle enqueues the due runs of a schedule and marks how far its record may advance.
func (r *Runner) handle(ctx context.Context, e *entry, st state, m *marks) error {
	done, known := st.done(e, !e.begun)
	if !known {
		m.first = append(m.first, record(e.member, st.now)) // no run was due before the schedule was known
		return nil
	}
	e.begun = true
	r.logAhead(ctx, e, st, done)
	runs := e.due(done, st.now)
	enqueuedHere := 0
	for _, run := range runs {
		if ctx.Err() != nil || time.Since(st.read) > fresh {
			return nil // the next poll, here or elsewhere, continues from the record
		}
		enqueued, err := r.enqueue(ctx, e, run)
		if err != nil {
			return err
		}
		if enqueued {
			enqueuedHere++
		}
		m.later = append(m.later, record(e.member, run))
	}
	if len(runs) > 0 || st.now.Sub(done) >= late {
		m.later = append(m.later, record(e.member, st.now))
	}
	if enqueuedHere > 0 || e.CatchUp == CatchUpNone { // otherwise another process has handled them
		r.logMissed(ctx, e, st.now, done, len(runs))
	}
	return nil
}

// enqueue enqueues a run, and reports whether this process was the one to do it.
func (r *Runner) enqueue(ctx context.Context, e *entry, run time.Time) (bool, error) {
	task := e.TaskFor(run)
	step, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	result, err := r.client.Enqueue(step, task)
	if result.State == queue.Invalid {
		// It would be refused each time, and must not block later runs.
		r.log.ErrorContext(ctx, "scheduled task rejected; run skipped",
			"schedule", e.Name, "run", run, "error", err)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("schedule: run %s of %q: %w", run.Format(time.RFC3339), e.Name, err)
	}
	r.log.DebugContext(ctx, "scheduled task", "schedule", e.Name, "run", run, "task_id", task.ID, "state", result.State)
	return result.State == queue.Enqueued, nil
}

// logMissed logs the runs that were skipped, if any. It counts them, which may take a while after a long
// outage, so it comes after the later runs are enqueued.
func (r *Runner) logMissed(ctx context.Context, e *entry, now, done time.Time, enqueued int) {
	left := e.count(done, now) - enqueued
	if left == 0 {
		return
	}
	zone := e.runs.Location()
	r.log.WarnContext(ctx, "missed runs of a schedule are skipped",
		"schedule", e.Name, "left_out", left, "enqueued", enqueued, "catch_up", e.CatchUp,
		"since", done.In(zone), "until", now.In(zone))
}

// logAhead logs, once, a record that is ahead of Redis's clock: that clock was wrong, and no run is due
// until it reaches the record.
func (r *Runner) logAhead(ctx context.Context, e *entry, st state, done time.Time) {
	ahead := done.After(st.now.Add(overtaken))
	if ahead && !e.ahead {
		r.log.ErrorContext(ctx, "schedule suspended: its record is ahead of Redis's clock; "+
			"if the clock was wrong before, remove the record (ZREM)", "schedule", e.Name, "until", done, "key", recordsKey, "member", e.member)
	}
	e.ahead = ahead
}

// untilNext returns the time until the next run, or until the next poll.
func (r *Runner) untilNext(st state) time.Duration {
	if time.Since(st.read) > fresh {
		return time.Millisecond // some runs may be left to the next poll
	}
	wait := pollEvery
	for _, e := range r.entries {
		if next := e.Next(st.now); !next.IsZero() {
			wait = min(wait, next.Sub(st.exact))
		}
	}
	return max(wait-time.Since(st.read), time.Millisecond)
}
