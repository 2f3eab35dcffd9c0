package policystore

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Period is a time in which one policy was in force: from From until the next Period.
type Period struct {
	From   time.Time
	Policy *policy.Policy
}

// mostPeriods bounds what Periods returns.
const mostPeriods = 200

// Periods returns the policies that were in force from one time to another, oldest first: at most the last 200. The first begins at
// from, or later if no version is kept that was in force then. A version that cannot be decoded is left out, as if the one before had
// stayed. Costs one round trip, which reads the whole history, and the time to parse each limits file in it. The error is Redis's.
func (s *Store) Periods(ctx context.Context, from, to time.Time) ([]Period, error) {
	all, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	var newest []Period
	var before *laid
	until := to
	for _, number := range newestFirst(all) {
		v, err := readVersion(number, all[fieldOf(number)])
		if err != nil || !v.InForce.Before(until) {
			continue
		}
		base, err := basisIn(all, v, before)
		if err != nil {
			continue
		}
		before = layOver(v, base)
		newest = append(newest, v.periods(base.policy, from, until)...)
		if until = v.InForce; !until.After(from) || len(newest) >= mostPeriods {
			break
		}
	}
	slices.Reverse(newest)
	return newest[max(0, len(newest)-mostPeriods):], nil
}

// periods returns what a version came to over a base until a time, newest first. It changes by itself when something that was set for a
// time ends.
func (v Version) periods(base *policy.Policy, from, until time.Time) (list []Period) {
	at := v.InForce
	if at.Before(from) {
		at = from
	}
	for at.Before(until) && len(list) < mostPeriods {
		p, next, err := v.policy(base, at)
		if err != nil {
			break
		}
		list = append(list, Period{at, p})
		if !next.After(at) { // it does not change any more
			break
		}
		at = next
	}
	slices.Reverse(list)
	return list
}
