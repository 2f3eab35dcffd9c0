package answers

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// mostRest bounds the pause for a refusal that gives no duration: as long as the policy says at first, and twice as long after
// each refusal that follows soon. Up to a tenth more keeps processes apart that share an API and not a Redis.
const mostRest = 5 * time.Minute

// A cut limit grows in each of its rule's windows, which count for at least leastWindow. Rules of longer windows than MostWindow
// are neither cut nor raised: how much is left of a day says little of how fast to go.
const (
	leastWindow = time.Second
	MostWindow  = time.Hour
	// An API's own limit, and a raised one, hold for so long after the last report, and for two of the rule's windows. The same
	// limit is reported again when half of that is over.
	adoptedFor = time.Hour
	// longestPause is the longest pause that one answer can cause. Another answer can extend it.
	longestPause = 24 * time.Hour
	// growEach is how often a corrected limit grows.
	growEach = time.Second
	// whole is all of a limit in millionths, and onePercent a hundredth of it.
	whole, onePercent = 1_000_000, 10_000
)

// pauseWords returns the words for the pause that an answer asks for and for the end of one, and until when the scope is paused
// already.
func (r *Reporter) pauseWords(a answer) (words []wire.Word, until time.Time) {
	if wait, known, asks := a.pause(); asks {
		wait = min(wait, longestPause)
		path := a.at.Path
		until, same := r.paused(a.at, wait)
		switch {
		case same && !a.probed:
			return nil, until
		case known:
			words = append(words, wire.Word{Verb: "pause", Name: path, Numbers: [5]int64{wait.Microseconds()}})
		default:
			first := cmp.Or(a.Pause, a.policy.Refusals(a.scope.Scope).Pause)
			words = append(words, wire.Word{Verb: "rest", Name: path, Numbers: [5]int64{
				first.Microseconds(), max(first, mostRest).Microseconds(), rand.N(int64(100_000)), a.age(),
			}})
		}
	}
	if a.probed && !a.Limited {
		words = append(words, wire.Word{Verb: "open", Name: a.scope.Path, Numbers: [5]int64{a.age()}})
	}
	return words, time.Time{}
}

// age returns how many µs ago the answered call was sent, 0 if that is not known.
func (a answer) age() int64 {
	if a.Sent.IsZero() {
		return 0
	}
	return max(0, time.Since(a.Sent).Microseconds())
}

// pause returns how long an answer asks to stay away, if it asks for that, and whether it gives the time.
func (a answer) pause() (wait time.Duration, known, asks bool) {
	if a.Limited {
		return a.Retry, a.RetryKnown && a.Retry > 0, true
	}
	rules, unit := a.scope.Rules, a.policy.ResetUnit(a.scope.Scope)
	for _, q := range a.Quotas {
		if unit == 0 && slices.ContainsFunc(rules, inMillis(q)) {
			q.Reset /= 1000
		}
		if q.Unit == policy.Requests && q.Remaining == 0 && q.Reset > 0 && !slices.ContainsFunc(rules, paces(q)) {
			wait = max(wait, q.Reset)
		}
	}
	return wait, true, wait > 0
}

// paces reports whether a rule alone keeps the calls within a quota of which nothing is left. A bucket is full again Limit
// intervals after its first call. If that takes as long at the rule's own rate, the quota refills at that rate, and the reset is
// not when the next call is accepted.
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

// inMillis reports whether a quota is a rule's, with a reset in milliseconds that was read as seconds: no window resets later
// than its length, and a moment in whole seconds adds up to one.
func inMillis(q upstream.Quota) func(policy.MatchedRule) bool {
	return func(b policy.MatchedRule) bool {
		r := b.Rule
		return correctable(r) && r.Unit == q.Unit && r.Limit == q.Limit && q.Window == 0 &&
			q.Reset > r.Per+time.Second && q.Reset/1000 <= r.Per
	}
}

// correctable reports whether an API can correct the limit of a rule.
func correctable(r policy.Rule) bool {
	return r.Limit > 0 && (r.Algorithm == policy.TokenBucket || r.Algorithm == policy.SlidingWindow || r.Algorithm == policy.FixedWindow)
}

// ruleWords returns the words that correct rules. A refusal that asks for no new pause is one that others have reported.
func (r *Reporter) ruleWords(a answer, pauses bool) (words []wire.Word) {
	switch {
	case a.Unread, a.Failed: // it may have let nothing through
	case !a.Limited:
		words = r.rises(a.scope)
	case pauses:
		words = r.cuts(a)
	}
	return append(words, r.adoptions(a)...)
}

// corrects reports whether answers to a scope's calls correct a rule: one of its own level, or of a level that says so.
func corrects(s *wire.Scope, b policy.MatchedRule) bool {
	return correctable(b.Rule) && (b.Heeds || b.Scope == s.Scope)
}

// paced returns the rules that refusals cut, and that grow again: those of the lowest level that has any.
func paced(s *wire.Scope) (some []policy.MatchedRule) {
	for _, b := range slices.Backward(s.Rules) {
		if b.Rule.Per > MostWindow || !corrects(s, b) {
			continue
		}
		if len(some) > 0 && b.Scope != some[0].Scope {
			break
		}
		some = append(some, b)
	}
	return some
}

// word reports something of a rule under a limit.
func (r *Reporter) word(verb string, b policy.MatchedRule, limit, burst int64, numbers ...int64) wire.Word {
	_, own := wire.Numbers(b.Rule, r.cfg.Tolerance, time.Time{})
	b.Rule.Limit, b.Rule.Burst = limit, burst
	kind, under := wire.Finer(b.Rule, r.cfg.Tolerance)
	w := wire.Word{Verb: verb, Name: wire.RuleName(b), Rule: wire.RuleText(kind, append(under, own...))}
	copy(w.Numbers[:], numbers)
	return w
}

// cuts returns the words that cut rules: the rule that the answer names, if there is one.
func (r *Reporter) cuts(a answer) (words []wire.Word) {
	rules := paced(a.at)
	if a.named != nil {
		rules = nil
		if b := *a.named; correctable(b.Rule) && b.Rule.Per <= MostWindow {
			rules = append(rules, b)
		}
	}
	for _, b := range rules {
		c := b.Corrects.WithDefaults()
		if c.Least < c.Most { // else nothing is left to cut
			apart := min(max(b.Rule.Per, leastWindow), time.Minute)
			words = append(words, r.word("cut", b, b.Rule.Limit, b.Rule.Burst,
				(100-c.Cut)*onePercent, apart.Microseconds(), growsBy(b), c.Least*onePercent, c.Most*onePercent))
		}
	}
	return words
}

// rises returns the words by which corrected rules grow again, and grow above their limits where the policy lets them, since a
// call was not refused: at most one a second for each rule.
func (r *Reporter) rises(s *wire.Scope) (words []wire.Word) {
	for _, b := range paced(s) {
		over := int64(0)
		if b.Corrects.Raises() {
			over = adoptedFor.Microseconds()
		} else if !r.corrected(ruleKey(s, b)) {
			continue
		}
		w := r.word("rise", b, b.Rule.Limit, b.Rule.Burst, most(b), growsBy(b), over)
		if r.isNews(ruleKey(s, b), w, growEach) {
			words = append(words, w)
		}
	}
	return words
}

// growsBy returns by how many millionths of a limit it grows in a second.
func growsBy(b policy.MatchedRule) int64 {
	return max(1, b.Corrects.WithDefaults().Grow*onePercent*int64(time.Second)/int64(max(b.Rule.Per, leastWindow)))
}

// most returns how many millionths of its limit a rule may have at most.
func most(b policy.MatchedRule) int64 {
	if !b.Corrects.Raises() {
		return whole
	}
	return max(whole, b.Corrects.Most*onePercent)
}

// adoptions returns the words for limits of the API's own: each for the lowest rule that has its name or, if none has, of the same
// unit and window.
func (r *Reporter) adoptions(a answer) (words []wire.Word) {
	for _, q := range a.Quotas {
		isNamed := func(b policy.MatchedRule) bool { return q.Name != "" && b.Names(q.Name) }
		named := slices.ContainsFunc(a.scope.Rules, isNamed)
		if q.Limit <= 0 || q.Window <= 0 && !named {
			continue
		}
		for _, b := range slices.Backward(a.scope.Rules) {
			fits := b.Rule.Per == q.Window || q.Window <= 0
			if named && !isNamed(b) || !corrects(a.scope, b) || b.Rule.Unit != q.Unit || !fits {
				continue
			}
			if w, holds := r.adoption(q, b); r.isNews(ruleKey(a.scope, b), w, holds/2) {
				words = append(words, w)
			}
			break
		}
	}
	return words
}

// adoption returns the word for an API's own limit, and how long that holds. A limit that is no smaller than the rule's corrects
// nothing, unless the rule's may grow.
func (r *Reporter) adoption(q upstream.Quota, b policy.MatchedRule) (wire.Word, time.Duration) {
	holds := max(adoptedFor, 2*b.Rule.Per)
	if !b.Corrects.Raises() && q.Limit >= b.Rule.Limit {
		return r.word("adopt", b, b.Rule.Limit, b.Rule.Burst), holds
	}
	highest, _ := wire.MulDiv(b.Rule.Limit, most(b), whole)
	limit, burst := min(q.Limit, highest), b.Rule.Burst
	if !q.Rate {
		burst = min(burst, limit)
	}
	w := r.word("adopt", b, limit, burst, holds.Microseconds())
	w.Limit = limit
	return w, holds
}
