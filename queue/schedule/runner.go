package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
)

const (
	pollEvery  = 15 * time.Second // when nothing is due before
	retryAfter = 2 * time.Second

	// fresh is how old a reading of the records may be when a run is enqueued on
	// its strength, by the monotonic clock: a process that was stopped in between
	// reads again.
	fresh = 10 * time.Second

	stepTimeout = 10 * time.Second // of enqueuing a run and of writing the records
)

// Config is what a Runner needs. All of it is required but Logger.
type Config struct {
	// Redis holds the records, and is where Client enqueues.
	Redis redis.UniversalClient
	// Client enqueues the tasks.
	Client *queue.Client
	// Schedules are those of a File. All processes have to have the same.
	Schedules []*Schedule
	// Logger is told of missed runs, of tasks that were refused and of Redis not
	// answering.
	// Defaults to none.
	Logger *slog.Logger
}

// Runner enqueues the runs of schedules when they come due. Run it in every
// process: see the package's comment for how each run is enqueued once.
type Runner struct {
	client  *queue.Client
	records records
	entries []*entry
	log     *slog.Logger
	failing bool
}

// entry is a schedule and its record's name.
type entry struct {
	*Schedule
	member string
	begun  bool // its record has been taken up by this Runner
	ahead  bool // it has been told that its record is ahead of time
}

// New returns a Runner. It does no I/O.
func New(cfg Config) (*Runner, error) {
	if cfg.Redis == nil || cfg.Client == nil {
		return nil, errors.New("schedule: Config.Redis and Config.Client are required")
	}
	r := &Runner{client: cfg.Client, records: records{rdb: cfg.Redis}, log: cfg.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	for _, s := range cfg.Schedules {
		if s == nil || s.runs == nil {
			return nil, errors.New("schedule: Config.Schedules holds one that Parse has not made")
		}
		r.entries = append(r.entries, &entry{Schedule: s, member: s.member()})
	}
	return r, nil
}

// Run enqueues runs until ctx ends. It costs a round trip every 15 seconds and
// at each run. While Redis does not answer it asks every two seconds; nothing is
// lost by that but what the schedules' CatchUp leaves out.
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
		r.tell(ctx, err)
		if err != nil {
			wait = retryAfter
		}
		timer.Reset(wait)
	}
}

// tell logs when things go wrong and when they go right again, once each.
func (r *Runner) tell(ctx context.Context, err error) {
	switch {
	case err != nil && !r.failing:
		r.log.WarnContext(ctx, "cannot enqueue scheduled runs; retrying", "error", err)
	case err == nil && r.failing:
		r.log.InfoContext(ctx, "scheduled runs are enqueued again")
	}
	r.failing = err != nil
}

// poll enqueues what is due and returns how long to wait before the next poll.
func (r *Runner) poll(ctx context.Context) (time.Duration, error) {
	st, err := r.records.read(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	marks := marks{}
	for _, e := range r.entries {
		if ctx.Err() != nil {
			break
		}
		if err := r.handle(ctx, e, st, marks); err != nil {
			errs = append(errs, err)
		}
	}
	if err := r.write(ctx, marks); err != nil {
		errs = append(errs, err)
	}
	return r.untilNext(st), errors.Join(errs...)
}

// write moves the records on, as well when ctx has ended: what was enqueued
// shall be known.
func (r *Runner) write(ctx context.Context, m marks) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	return r.records.write(ctx, m)
}

// handle enqueues the runs of a schedule that are due and marks how far its
// record may go.
func (r *Runner) handle(ctx context.Context, e *entry, st state, m marks) error {
	done, known := st.done(e, !e.begun)
	if !known {
		m.first(e.member, st.now) // nothing was due before anybody knew of it
		return nil
	}
	e.begun = true
	r.tellAhead(ctx, e, st, done)
	runs := e.due(done, st.now)
	anew := 0
	for _, run := range runs {
		if ctx.Err() != nil || time.Since(st.read) > fresh {
			return nil // the next poll, here or elsewhere, goes on from the record
		}
		enqueued, err := r.enqueue(ctx, e, run)
		if err != nil {
			return err
		}
		if enqueued {
			anew++
		}
		m.advance(e.member, run)
	}
	if len(runs) > 0 || st.now.Sub(done) >= late {
		m.advance(e.member, st.now)
	}
	if anew > 0 || e.CatchUp == CatchUpNone { // else another process has seen to them
		r.tellMissed(ctx, e, st.now, done, len(runs))
	}
	return nil
}

// enqueue enqueues a run, and reports whether it was this process that did.
func (r *Runner) enqueue(ctx context.Context, e *entry, run time.Time) (bool, error) {
	task := e.TaskFor(run)
	step, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	result, err := r.client.Enqueue(step, task)
	if result.State == queue.Invalid {
		// It would be refused each time, and must not hold up the later ones.
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

// tellMissed tells of runs that were left out, if any were. It counts them, which
// may take a while after a long outage: it comes when their successors are safe.
func (r *Runner) tellMissed(ctx context.Context, e *entry, now, done time.Time, enqueued int) {
	left := e.count(done, now) - enqueued
	if left == 0 {
		return
	}
	zone := e.runs.Location()
	r.log.WarnContext(ctx, "missed runs of a schedule are skipped",
		"schedule", e.Name, "left_out", left, "enqueued", enqueued, "catch_up", e.CatchUp,
		"since", done.In(zone), "until", now.In(zone))
}

// tellAhead tells, once, of a record that is ahead of Redis's clock: that has
// been wrong, and nothing comes due until it is where it was.
func (r *Runner) tellAhead(ctx context.Context, e *entry, st state, done time.Time) {
	ahead := done.After(st.now.Add(overtaken))
	if ahead && !e.ahead {
		r.log.ErrorContext(ctx, "schedule suspended: its record is ahead of Redis's clock; "+
			"if the clock was wrong before, remove the record (ZREM)", "schedule", e.Name, "until", done, "key", recordsKey, "member", e.member)
	}
	e.ahead = ahead
}

// untilNext returns how long it is to the next run, or to the next look.
func (r *Runner) untilNext(st state) time.Duration {
	if time.Since(st.read) > fresh {
		return time.Millisecond // some runs may have been left to the next poll
	}
	wait := pollEvery
	for _, e := range r.entries {
		if next := e.Next(st.now); !next.IsZero() {
			wait = min(wait, next.Sub(st.exact))
		}
	}
	return max(wait-time.Since(st.read), time.Millisecond)
}
