package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Reset is a rule whose spending a version forgot.
type Reset struct {
	Scope string `json:"scope"`          // of the tasks that spent, payments/acme
	Rule  string `json:"rule,omitempty"` // empty for a pause of the API that was lifted
	Unit  string `json:"unit,omitempty"` // that the rule counts
	Used  int64  `json:"used"`           // units that still counted just before
}

// ErrNothingToReset is the error for a scope at which no rate rule counts.
var ErrNothingToReset = errors.New("policystore: no rate rule counts at the scope itself")

// Reset forgets the spending under the rules of a scope, or under one of them, by Limiter.Reset of a limiter with the policy in force. It
// writes a version that has how much was spent, and changes no rule. It goes without Edit.For and Edit.DryRun. Its errors are those of Set
// and of Limiter.Reset, and ErrNothingToReset. If Redis fails in between, the error says what was reset and is not in the history.
func (s *Store) Reset(ctx context.Context, e Edit, l *throttle.Limiter, scope, rule string) (Made, error) {
	if e.DryRun {
		return Made{}, errors.New("policystore: a reset has no dry run; Limiter.Peek returns what it would forget")
	}
	var done []Reset
	var partly error // not all was reset
	made, acted, err := s.act(ctx, e, func(ctx context.Context) error {
		if done, partly = reset(ctx, l, scope, rule); len(done) == 0 {
			return errors.Join(partly, ErrNothingToReset)
		}
		return nil
	}, func(d *draft) { d.Change, d.Resets = strings.TrimSpace("reset "+scope+" "+rule), done })
	if err != nil && acted {
		err = fmt.Errorf("policystore: %s was reset (%s), and the history does not have it: %w", scope, resetsText(done), err)
	}
	return made, errors.Join(err, partly)
}

// OpenBreaker opens the breaker of a scope for Edit.For, or for its own wait, by Limiter.OpenBreaker of a limiter with the policy in
// force. It writes a version that says so and changes no rule. Its errors are those of Set and of Limiter.OpenBreaker. If Redis fails in
// between, the error says that it is open, and that the history does not have it.
func (s *Store) OpenBreaker(ctx context.Context, e Edit, l *throttle.Limiter, scope string) (Made, error) {
	return s.breaker(ctx, e, "open", scope, func(context.Context) error {
		if e.For > throttle.LongestOpen {
			return refuse("a breaker opens for %.0fh at most; pause the scope for longer", throttle.LongestOpen.Hours())
		}
		parsed, err := policy.ParseScope(scope)
		if err == nil {
			_, err = l.Policy().BreakerAt(parsed)
		}
		return err
	}, func(ctx context.Context) error { return l.OpenBreaker(ctx, scope, e.For) })
}

// CloseBreaker closes the breaker of a scope, as OpenBreaker opens it, and ends a pause that its API has asked for. It goes without
// Edit.For. The error is ErrUnchanged if there is neither.
func (s *Store) CloseBreaker(ctx context.Context, e Edit, l *throttle.Limiter, scope string) (Made, error) {
	return s.breaker(ctx, e, "close", scope, func(ctx context.Context) error {
		state, err := l.UpstreamState(ctx, scope)
		isOpen := slices.ContainsFunc(state.Breakers, func(b throttle.UpstreamBreaker) bool { return b.Scope == scope })
		paused := slices.ContainsFunc(state.Pauses, func(p throttle.UpstreamPause) bool { return p.Scope == scope })
		if err == nil && !isOpen && !paused {
			err = ErrUnchanged
		}
		return err
	}, func(ctx context.Context) error { return l.CloseBreaker(ctx, scope) })
}

func (s *Store) breaker(ctx context.Context, e Edit, verb, scope string, check, do func(context.Context) error) (Made, error) {
	made, acted, err := s.act(ctx, e, func(ctx context.Context) error {
		err := check(ctx)
		if err == nil && !e.DryRun {
			err = do(ctx)
		}
		return err
	}, func(d *draft) {
		if d.Change, d.Breaker = verb+" "+scope, scope; e.For > 0 {
			d.Change += " for " + e.For.String()
		}
	})
	if err != nil && acted && !e.DryRun {
		err = fmt.Errorf("policystore: %s %s was done, and the history does not have it: %w", verb, scope, err)
	}
	return made, err
}

// act does something that changes no rule, and writes a version that notes it. It does that once, however many changes are faster.
func (s *Store) act(ctx context.Context, e Edit, do func(context.Context) error, note func(*draft)) (made Made, acted bool, err error) {
	if err := ctx.Err(); err != nil {
		return made, false, err
	}
	// If it ended with its context, it could be in force and not in the history.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	made, err = s.edit(ctx, e, func(d *draft) (err error) {
		if !acted && !e.DryRun {
			err = s.mayChange(ctx)
		}
		if !acted && err == nil {
			err = do(ctx)
			acted = err == nil
		}
		note(d)
		return err
	})
	return made, acted, err
}

// reset returns what was reset, with an error too.
func reset(ctx context.Context, l *throttle.Limiter, scope, rule string) (resets []Reset, err error) {
	upstream, err := l.UpstreamState(ctx, scope)
	if err != nil {
		return nil, err
	}
	done, err := l.Reset(ctx, scope, rule)
	for _, r := range done {
		resets = append(resets, Reset{Scope: scope, Rule: r.Rule, Unit: r.Unit, Used: r.Used})
	}
	if own := len(upstream.Pauses) - 1; err == nil && rule == "" && own >= 0 && upstream.Pauses[own].Scope == scope {
		resets = append(resets, Reset{Scope: scope})
	}
	return resets, err
}

func resetsText(resets []Reset) string {
	var list []string
	for _, r := range resets {
		if r.Rule != "" {
			list = append(list, r.Rule+": "+policy.Amount(r.Used, r.Unit))
		}
	}
	return strings.Join(list, ", ")
}
