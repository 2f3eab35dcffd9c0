package throttle

import (
	"context"
	"errors"

	"github.com/headway-go/headway/throttle/policy"
)

// mostAsks is how often AllowAtMost asks at most.
const mostAsks = 5

// AllowAtMost takes as many units from scope as are available now, at most n, and returns how many it took. It is for callers
// that can do less now and the rest later, such as batches. A concurrency rule counts one place, however many units are taken.
// Concurrent callers never take more than the rules admit.
//
// It asks for n, or for the most that the rules can ever admit if that is less; then for what the denial says remains; and at
// last for one unit. If others are faster three times in a row, it takes one unit, though more may be available. taken is 0 if
// not even one unit is available: the Decision is then a denial, and its RetryAfter is that of one unit. Decision.Grant has all
// that was taken.
//
// The error is one of Decide, and nothing was taken; for an n below 1 it is a *policy.CostError. Costs one round trip if n units
// are available, usually two if fewer are, and five at most. Config.Observer receives each decision, denials included.
func (l *Limiter) AllowAtMost(ctx context.Context, scope string, n int64) (d Decision, taken int64, err error) {
	if n, err = l.mostOf(scope, n); err != nil {
		return Decision{}, 0, err
	}
	for asks := 1; ; asks++ {
		d, err = l.Decide(ctx, Request{Scope: scope, Cost: n})
		switch {
		case err != nil:
			return d, 0, err
		case d.Allowed:
			return d, n, nil
		case n == 1:
			return d, 0, nil
		}
		if n = d.remains(n); asks == mostAsks-1 {
			n = 1
		}
	}
}

// mostOf is n, or the largest cost that the rules of a scope can ever admit where that is less.
func (l *Limiter) mostOf(scope string, n int64) (int64, error) {
	p, err := l.plan(scope)
	if err != nil {
		return 0, err
	}
	err = p.check(&Request{Cost: n})
	if tooMuch, is := errors.AsType[*policy.CostError](err); is && n > 0 {
		return tooMuch.Capacity, nil
	}
	return n, err
}

// remains is how many units, fewer than n and at least one, are worth asking for after a denial of n.
func (d Decision) remains(n int64) int64 {
	left := n
	for _, r := range d.Rules {
		if r.Algorithm != policy.Concurrency && r.Limited {
			left = min(left, r.Remaining)
		}
	}
	if left == n { // a pause, a place or the pace of a calendar is missing: fewer units do not mend that
		return 1
	}
	return max(left, 1)
}
