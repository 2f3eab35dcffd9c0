// Package riverlimit puts the workers of River, a job queue over Postgres, under limits.
//
//	limits, err := riverlimit.New(limiter, riverlimit.Config{Scope: scopeOf})
//	client, err := river.NewClient(driver, &river.Config{Middleware: []rivertype.Middleware{limits}, …})
//
// Each job asks the limiter before it is worked. A job whose start is near waits for that in its worker. For any other job a start is
// reserved, and the job is snoozed until shortly before that: so it has a turn of its own, and is not tried again and again. A snooze
// uses up no attempt. docs/river.md has what to set in River, and what is measured.
//
// It is a module of its own, so that River is in the go.mod of programs that use it alone.
package riverlimit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Config is how jobs are limited.
type Config struct {
	// Scope returns the scope that a job spends from, such as payments/acme; "" for a job that is not limited. An error ends the
	// attempt. It is called by many goroutines at once. Required.
	Scope func(*rivertype.JobRow) (string, error)
	// Costs returns the cost of a job by unit. nil is one unit under each rule. Defaults to that.
	Costs func(*rivertype.JobRow) policy.Costs
	// Hold is how long a job may wait in its worker for its start, and takes one of MaxWorkers meanwhile. River looks for jobs that
	// are due every FetchPollInterval, so a shorter Hold than that and some makes starts come late, which loses their turns. Give it
	// one and a half times river.Config.FetchPollInterval. Defaults to 1.5s, for River's default of a second. At most MaxDelay.
	Hold time.Duration
	// MaxDelay is how far ahead a start may be reserved: a job that comes later asks again. What is reserved is not taken back when
	// a limit is raised, so this is also how long a raised limit may take to show. Defaults to 15s. At most 25s, since the limiter
	// forgets what it has reserved after 30.
	MaxDelay time.Duration
	// MaxSnooze is the longest snooze of a job for which no start could be reserved. When it ends the job looks again. Defaults to
	// a minute.
	MaxSnooze time.Duration
}

const (
	defaultHold      = 1500 * time.Millisecond
	defaultMaxDelay  = 15 * time.Second
	mostMaxDelay     = 25 * time.Second
	defaultMaxSnooze = time.Minute
	// outageSnooze is after how long a job comes back that Redis could not decide about, and up to twice that.
	outageSnooze = 2 * time.Second
	// reservedKey names the attempt id of a reserved start in the metadata of a job.
	reservedKey = "headway_reserved"
)

// Middleware is a rivertype.WorkerMiddleware. It is safe for concurrent use, and may serve several clients.
type Middleware struct {
	river.MiddlewareDefaults

	limiter *throttle.Limiter
	cfg     Config
	paces   paces
	note    func(ctx context.Context, key string, value any) error // river.MetadataSet
}

var _ rivertype.WorkerMiddleware = (*Middleware)(nil)

// New returns a middleware for river.Config.Middleware, or for the Middleware method of a worker. The error names each invalid field of cfg.
func New(limiter *throttle.Limiter, cfg Config) (*Middleware, error) {
	var faults []error
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf("riverlimit: "+format, args...))
		}
	}
	fault(limiter == nil, "New needs a limiter, got nil")
	fault(cfg.Scope == nil, "Config.Scope is required")
	cfg.Hold = cmp.Or(cfg.Hold, defaultHold)
	cfg.MaxDelay = cmp.Or(cfg.MaxDelay, defaultMaxDelay)
	cfg.MaxSnooze = cmp.Or(cfg.MaxSnooze, defaultMaxSnooze)
	fault(cfg.MaxDelay > mostMaxDelay, "Config.MaxDelay is %s; the most is %s", cfg.MaxDelay, mostMaxDelay)
	fault(cfg.Hold < 0 || cfg.Hold > cfg.MaxDelay, "Config.Hold is %s; give it 0 to MaxDelay, %s", cfg.Hold, cfg.MaxDelay)
	fault(cfg.MaxSnooze < 0, "Config.MaxSnooze is %s; the least is 0", cfg.MaxSnooze)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Middleware{limiter: limiter, cfg: cfg, note: river.MetadataSet}, nil
}

// Work works a job once all rules on its scope's path admit it, or snoozes it. Places under concurrency rules are held while the job
// works; if they are lost, its context ends with the cause throttle.ErrLeaseLost.
//
// A job is snoozed while Redis is unavailable under a closed rule. If ctx ends before the start, the units are given back and the
// error is ctx's. A scope without rules, a cost that no wait could admit, and the like are errors of the attempt, which River
// retries. Costs one round trip to Redis, one more for a job that is snoozed, and those of throttle.Limiter.Start and Lease.
func (m *Middleware) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	req, err := m.request(ctx, job)
	if err != nil {
		return err
	}
	if req.Scope == "" {
		return doInner(ctx)
	}
	d, err := m.limiter.Start(ctx, req)
	if err == nil && !d.Allowed {
		return m.snooze(ctx, req, d)
	}
	if err != nil {
		return outage(ctx, err)
	}
	ctx, lease := m.limiter.Lease(context.WithValue(ctx, runKey{}, run{m.limiter, d.Grant}), d.Grant)
	defer func() { _ = lease.Release(ctx) }() // it is sent again, or the lease expires
	return doInner(ctx)
}

// request returns what a job asks for, under the attempt id of the start that was reserved for it. That id is used up by asking: a
// run that is interrupted comes back in the same attempt, and is to be charged again.
func (m *Middleware) request(ctx context.Context, job *rivertype.JobRow) (throttle.Request, error) {
	scope, err := m.cfg.Scope(job)
	if err != nil {
		return throttle.Request{}, fmt.Errorf("riverlimit: the scope of job %d: %w", job.ID, err)
	}
	req := throttle.Request{Scope: scope, MaxDelay: m.cfg.Hold}
	if m.cfg.Costs != nil {
		req.Costs = m.cfg.Costs(job)
	}
	var kept struct {
		Reserved string `json:"headway_reserved"`
	}
	_ = json.Unmarshal(job.Metadata, &kept) // metadata of another form has no start
	if req.ID = kept.Reserved; req.ID != "" {
		err = m.note(ctx, reservedKey, nil)
	}
	return req, err
}

// snooze reserves a start for a denied job, if one is near enough, and snoozes it.
func (m *Middleware) snooze(ctx context.Context, req throttle.Request, d throttle.Decision) error {
	if holdsPlaces(d) { // a job that sleeps must not hold one
		return river.JobSnooze(m.later(req, d))
	}
	req.ID, req.MaxDelay = throttle.NewID(), m.cfg.MaxDelay
	d, err := m.limiter.Decide(ctx, req)
	switch {
	case err != nil:
		return outage(ctx, err)
	case !d.Allowed:
		return river.JobSnooze(m.later(req, d))
	}
	if err := m.note(ctx, reservedKey, req.ID); err != nil {
		return errors.Join(err, m.limiter.Refund(ctx, d.Grant))
	}
	return river.JobSnooze(max(0, d.Wait-m.cfg.Hold))
}

func holdsPlaces(d throttle.Decision) bool {
	return slices.ContainsFunc(d.Rules, func(r throttle.RuleState) bool { return r.Algorithm == policy.Concurrency })
}

// outage snoozes a job that Redis could not decide about; other errors end its attempt.
func outage(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, throttle.ErrUnavailable) {
		return river.JobSnooze(outageSnooze + rand.N(outageSnooze))
	}
	return err
}
