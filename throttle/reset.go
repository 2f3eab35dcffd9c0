package throttle

import (
	"cmp"
	"context"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/throttle/policy"
)

// WasReset is a rule that was reset.
type WasReset struct {
	Rule string // its name
	Unit string // what it counts, policy.Requests by default
	// Used is how many units counted just before, rounded up: of a token bucket what it lacked, of a window what was in it, of a
	// calendar what was spent in the period. If a reply is lost and the client sends the call again, it is what was spent since.
	Used int64
}

// Reset clears what has been spent under the rate rules that the policy has at one level, scope itself, or under the named one,
// and dispatches their waiters at once. It also clears what an API has answered about them, and the scope's pause unless a rule
// is named. Runs keep their places under concurrency rules. It returns the rules that it has reset, each with what had been
// spent: one script call reads that and clears it. Costs two round trips, and one for each shadow rule. The error is a
// *policy.ScopeError or *policy.UnmatchedError, wraps ErrUnavailable, or is ctx's; with an error, the rules that were reset
// before it are returned too.
func (l *Limiter) Reset(ctx context.Context, scope, rule string) ([]WasReset, error) {
	p, err := l.plan(scope)
	if err != nil {
		return nil, err
	}
	done, err := l.reset(ctx, p, rule)
	for _, shadow := range p.shadows {
		var more []WasReset
		if err == nil {
			more, err = l.reset(ctx, shadow.plan(l.serverTime(p.Prefix)), rule)
			done = append(done, more...)
		}
	}
	if err == nil {
		err = l.reports.Reset(ctx, p.Scope, rule)
	}
	if err != nil {
		return done, wire.Unavailable(ctx, "reset", scope, err)
	}
	return done, nil
}

func (l *Limiter) reset(ctx context.Context, p *plan, rule string) (done []WasReset, err error) {
	which := make([]bool, len(p.Rules))
	for i, b := range p.Rules {
		if which[i] = b.Scope == p.Scope.Scope && b.Rule.Algorithm != policy.Concurrency && !b.Paused() && (rule == "" || b.Rule.Name == rule); which[i] {
			done = append(done, WasReset{Rule: b.Rule.Name, Unit: cmp.Or(b.Rule.Unit, policy.Requests)})
		}
	}
	if len(done) == 0 {
		return nil, nil
	}
	reply, err := wire.Call(ctx, l.rdb, l.cfg.Timeout, lua.Reset, p.Prefix, wire.ResetArgs(l.clock(), p.Path, p.Text, which)...)
	if err != nil {
		return nil, err
	}
	waits, used, err := wire.ReadReset(reply, which)
	if err != nil {
		return nil, err
	}
	for i := range done {
		done[i].Used = used[i]
	}
	if waits {
		l.list.Wake(p.Scope.Scope.Provider())
	}
	return done, nil
}
