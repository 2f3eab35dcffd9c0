package throttle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Start decides and, if granted, waits for the start moment: when it returns an
// allowed decision the run may begin, and must begin at once. A start that came
// later than Config.Pad, because a timer or a reply was late, is given back and
// decided anew under a new attempt id, so Decision.Grant and not req.ID names it.
//
// A denial, or a start further away than req.Ahead, is a Decision and changes
// nothing. Errors are those of Decide; when ctx ends during the wait the units
// are given back and the error is ctx's.
func (l *Limiter) Start(ctx context.Context, req Request) (Decision, error) {
	for tries := 1; ; tries++ {
		asked := time.Now()
		d, err := l.Decide(ctx, req)
		if err != nil || !d.Allowed {
			return d, err
		}
		if err := req.await(ctx, d.Wait); err != nil {
			return Decision{Binding: -1}, l.putBack(ctx, d.Grant, err)
		}
		late := time.Since(asked) - d.Wait - l.rtt.least()
		if len(d.Rules) == 0 || d.Degraded || late <= l.cfg.Pad {
			return d, nil
		}
		if tries == maxLate {
			err = l.GiveBack(ctx, d.Grant)
			return Decision{RetryAfter: l.cfg.Pad, Rules: d.Rules, Binding: d.Binding, At: d.At}, err
		}
		if err := l.GiveBack(ctx, d.Grant); err != nil {
			return Decision{Binding: -1}, err
		}
		req.ID = ""
	}
}

// maxLate is how often in a row a late start is decided anew before it is put
// off: on a machine that is this busy, trying at once again only adds to it.
const maxLate = 4

// Wait blocks until req is granted and its start has come. It is for callers
// that have a goroutine to spare for the wait; tasks of asynq are better off
// with package worker.
//
// It returns an error that wraps ErrPatience, at once and charging nothing, when
// the wait would outlast ctx's deadline or a rule's max_wait; ctx's error when
// it ends first, with the units given back; otherwise the errors of Decide. An
// outage under a closed rule is waited out. Costs one round trip for each time
// it has to ask again.
func (l *Limiter) Wait(ctx context.Context, req Request) (Decision, error) {
	began := time.Now()
	req.Ahead = max(req.Ahead, waitAhead)
	for {
		d, err := l.Start(ctx, req)
		pause := outagePause
		switch {
		case err == nil && d.Allowed:
			return d, nil
		case err == nil:
			if err := patience(ctx, d, time.Since(began)); err != nil {
				return d, err
			}
			pause = d.Recheck(req.Ahead)
		case !isUnavailable(err):
			return d, err
		}
		if err := sleep(ctx, pause); err != nil {
			return Decision{Binding: -1}, err
		}
		req.ID = ""
	}
}

// putBack gives a grant back on the way out with err. Units that could not be
// given back stay spent, which is safe; both errors are told.
func (l *Limiter) putBack(ctx context.Context, g Grant, err error) error {
	return errors.Join(err, l.GiveBack(ctx, g))
}

func isUnavailable(err error) bool { return errors.Is(err, ErrUnavailable) }

const (
	waitAhead   = 250 * time.Millisecond
	outagePause = 250 * time.Millisecond
	// recheck is how often a wait that no clock ends is looked at again.
	recheck = 500 * time.Millisecond
)

// Recheck returns when a denied request is worth asking again, by a caller that
// can take a start granted that far ahead: a little before RetryAfter where a
// clock tells it, and about half a second where only a raised limit or a run
// that ends does. Callers who come together are spread over a tenth of it.
func (d Decision) Recheck(ahead time.Duration) time.Duration {
	pause := d.RetryAfter
	if r, ok := d.BindingRule(); ok && r.Algorithm == Concurrency || pause == Unknown {
		pause = min(pause, recheck)
		return pause - pause/10 + rand.N(pause/10+1)
	}
	return max(pause-ahead/2, time.Millisecond)
}

// patience refuses a wait that is known to be too long.
func patience(ctx context.Context, d Decision, waited time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && d.RetryAfter != Unknown && d.RetryAfter > time.Until(deadline) {
		return fmt.Errorf("%w: allowed in %s, after the context's deadline in %s: %w",
			ErrPatience, d.RetryAfter, time.Until(deadline).Round(time.Millisecond), context.DeadlineExceeded)
	}
	for _, r := range d.Rules {
		if r.Limited && r.maxWait > 0 && (waited >= r.maxWait || r.RetryAfter != Unknown && waited+r.RetryAfter > r.maxWait) {
			return fmt.Errorf("%w: rule %s of %s asks for %s more after %s; its max_wait is %s",
				ErrPatience, r.Rule, r.Scope, r.RetryAfter, waited.Round(time.Millisecond), r.maxWait)
		}
	}
	return nil
}

func (r Request) await(ctx context.Context, d time.Duration) error {
	if d > 0 && r.OnWait != nil {
		defer r.OnWait(d)()
	}
	return sleep(ctx, d)
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fastest keeps the shortest round trip of the last minute or so: the part of a
// reply's delay that every start has in common, and that therefore moves none of
// them against another.
type fastest struct {
	mu          sync.Mutex
	now, before time.Duration
	since       time.Time
}

const fastestSpan = 30 * time.Second

func (f *fastest) saw(took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.since) > fastestSpan {
		f.before, f.now, f.since = f.now, took, time.Now()
	}
	f.now = min(f.now, took)
}

func (f *fastest) least() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before > 0 {
		return min(f.now, f.before)
	}
	return f.now
}
