package throttle

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// mostRest bounds how long a scope rests whose API refuses and does not say for how long: as the policy says at first, and
// twice as long each time that it is refused again soon after. Up to a tenth more keeps those apart that share an API and not a Redis.
const mostRest = 5 * time.Minute

// pauses is the word for the pause that an answer asks for, if there is one that is not known, and what is known otherwise.
func (l *Limiter) pauses(p *plan, a upstream.Hint, probed bool) (words []wire.Word, out ReportResult, known bool) {
	wait, known, asks := p.stays(a)
	if !asks {
		return nil, out, known
	}
	wait = min(wait, l.cfg.LongestPause)
	if until, told := l.reports.until(p, time.Now(), wait); told && !probed {
		return nil, ReportResult{Until: until}, known
	}
	if known {
		return []wire.Word{{Verb: "pause", Name: p.Path, Numbers: [5]int64{wait.Microseconds()}}}, out, known
	}
	most := min(mostRest, l.cfg.LongestPause*10/11) // with what chance adds it is no longer than that
	return []wire.Word{{Verb: "rest", Name: p.Path, Numbers: [5]int64{p.refusals.Pause.Microseconds(), most.Microseconds(), rand.N(int64(100_000)), age(a)}}}, out, known
}

// stays tells how long an answer asks to stay away, if it does, and whether it says so.
func (p *plan) stays(a upstream.Hint) (wait time.Duration, known, asks bool) {
	if a.Limited {
		return a.Retry, a.RetryKnown && a.Retry > 0, true
	}
	for _, q := range a.Quotas {
		if p.resets == 0 && slices.ContainsFunc(p.Rules, inMillis(q)) {
			q.Reset /= 1000
		}
		if q.Unit == policy.Requests && q.Remaining == 0 && q.Reset > 0 && !slices.ContainsFunc(p.Rules, paces(q)) {
			wait = max(wait, q.Reset)
		}
	}
	return wait, true, wait > 0
}

// paces tells of a rule whether it alone keeps the calls within a quota of which nothing is left. A
// bucket is full again Limit intervals after its first call. If that takes as long at the rule's own
// rate, the quota refills at that rate, and the reset is not when the next call is accepted.
func paces(q upstream.Quota) func(policy.MatchedRule) bool {
	return func(b policy.MatchedRule) bool {
		r := b.Rule
		atOnce := r.Limit
		if r.Algorithm == policy.TokenBucket {
			atOnce = r.Burst
		}
		if !correctable(r) || r.Unit != q.Unit || atOnce > q.Limit {
			return false
		}
		before, _ := wire.MulDiv(q.Limit-1, int64(r.Per), r.Limit)
		full, _ := wire.MulDiv(q.Limit, int64(r.Per), r.Limit)
		rounding := time.Millisecond
		if q.Reset%time.Second == 0 {
			rounding = time.Second
		}
		return int64(q.Reset) > before && int64(q.Reset)-full < int64(rounding)
	}
}

// inMillis tells of a rule whether a quota is that rule's, with a reset in milliseconds that was read as
// seconds: no window resets later than its length, and a moment in whole seconds adds up to one.
func inMillis(q upstream.Quota) func(policy.MatchedRule) bool {
	return func(b policy.MatchedRule) bool {
		r := b.Rule
		return correctable(r) && r.Unit == q.Unit && r.Limit == q.Limit && q.Window == 0 &&
			q.Reset > r.Per+time.Second && q.Reset/1000 <= r.Per
	}
}
