package throttle

import (
	"context"
	"time"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// WasReset is a rule that was reset.
type WasReset struct {
	// Rule is its name.
	Rule string
	// Unit is what it counts, policy.Requests unless it says otherwise.
	Unit string
	// Used is how many units still counted just before, rounded up: of a token bucket what it lacked, of a window what was in it,
	// of a calendar what was spent in the period. Where Redis's reply is lost and the client sends the call again, it is what was
	// spent since.
	Used int64
}

// Reset clears what has been spent under the rate rules that the policy has at one level, scope
// itself, or under the named one. These rules are then as if unused, and their waiters are dispatched
// at once. It also clears what an API has answered about them, and the scope's pause unless a rule is
// named. Runs keep their places under concurrency rules. It returns the rules that it has
// reset, each with what had been spent: one script call reads that and clears it, so that no unit is missing and none
// is counted twice. Costs two round trips. The error is a *policy.ScopeError or *policy.UnmatchedError, wraps
// ErrUnavailable, or is ctx's; with an error, the rules that were reset before it are returned too.
func (l *Limiter) Reset(ctx context.Context, scope, rule string) ([]WasReset, error) {
	p, err := l.scopes.of(scope)
	if err != nil {
		return nil, err
	}
	done, err := l.reset(ctx, p, rule)
	if err == nil {
		err = l.forget(ctx, p, rule)
	}
	if err != nil {
		return done, unavailable(ctx, "reset", scope, err)
	}
	return done, nil
}

func (l *Limiter) reset(ctx context.Context, p *compiledScope, rule string) (done []WasReset, err error) {
	var keys, rules []any
	present, at := map[byte]bool{}, l.serverTime(p.provider)
	for _, b := range p.all {
		if b.Scope != p.scope || b.Rule.Algorithm == policy.Concurrency || b.Paused() || rule != "" && b.Rule.Name != rule {
			continue
		}
		kind, text := ruleText(b, l.cfg.StartTolerance, at)
		present[kind] = true
		keys, rules = append(keys, keyspace(l.cfg.Prefix).rule(b)), append(rules, text)
		done = append(done, WasReset{Rule: b.Rule.Name, Unit: unitCounted(b.Rule)})
	}
	if len(done) == 0 {
		return nil, nil
	}
	c := newCall(lua.Reset.For(kindsOf(present)), keys, 2, 1+len(rules), len(rules)+2)
	c.args = append(append(c.args, p.queue[1], p.queue[3], l.clock()), rules...)
	reply, err := l.runner.run(ctx, c)
	if err != nil {
		return nil, err
	}
	for i := range done {
		done[i].Used = reply[i+1]
	}
	l.heedFreed(p.scope.Provider(), reply)
	return done, nil
}

// ruleText is a rate rule as scripts read it at a time, whether or not it decides then, and its kind.
func ruleText(b policy.MatchedRule, pad time.Duration, at time.Time) (kind byte, text string) {
	kind, numbers, more, _ := ruleNumbers(b, pad, at)
	return kind, lua.Rule(kind, numbers, more...) + unitText(b.Rule)
}

func unitCounted(r policy.Rule) string {
	if r.Unit == "" {
		return policy.Requests
	}
	return r.Unit
}
