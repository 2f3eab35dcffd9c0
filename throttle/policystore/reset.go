package policystore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Reset is a rule that was made as if unused by a version.
type Reset struct {
	// Scope is that of the tasks that spent, payments/acme.
	Scope string `json:"scope"`
	// Rule is the rule's name, empty for the pause that an API had asked for, which was lifted.
	Rule string `json:"rule,omitempty"`
	// Unit is what the rule counts, and Used how many units still counted just before.
	Unit string `json:"unit,omitempty"`
	Used int64  `json:"used"`
}

// ErrNothingToReset says that no rate rule counts at the scope itself.
var ErrNothingToReset = errors.New("policystore: no rate rule counts at the scope itself")

// errDryReset refuses an Edit.DryRun.
var errDryReset = errors.New("policystore: a reset has no dry run; Limiter.Peek returns what it would forget")

// traceBound is how long a reset that was made is tried to be written into the history.
const traceBound = 5 * time.Second

// Reset forgets what was spent under the rules of a scope, or under one of them, by Limiter.Reset of a limiter whose policy is the
// one in force, and leaves a version that has what had been spent, by whom it was reset, and nothing else that is new. A user that
// may not change the limits resets nothing. Neither Edit.For nor Edit.DryRun goes with it. The error is ErrNothingToReset, a *ConflictError for
// Edit.IfVersion, or those of Store and of Limiter.Reset; should Redis fail between the two, it says what was reset and is not in
// the history. Costs some round trips.
func (s *Store) Reset(ctx context.Context, e Edit, l *throttle.Limiter, scope, rule string) (Made, error) {
	if err := e.check(); err != nil {
		return Made{}, err
	}
	if e.DryRun {
		return Made{}, errDryReset
	}
	if err := s.mayChange(ctx); err != nil {
		return Made{}, err
	}
	v, err := s.Current(ctx)
	if err != nil {
		return Made{}, err
	}
	if e.IfVersion > 0 && e.IfVersion != v.Number {
		return Made{}, &ConflictError{Want: e.IfVersion, Now: v}
	}
	resets, err := reset(ctx, l, scope, rule)
	if len(resets) == 0 && err == nil {
		err = ErrNothingToReset
	}
	if len(resets) == 0 {
		return Made{}, err
	}
	e.IfVersion = 0 // it is done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceBound)
	defer cancel()
	var made Made
	traced, traceErr := s.edit(ctx, e, func(v *draft, before *policy.Policy, _ time.Time) error {
		v.Change = strings.TrimSpace("reset " + scope + " " + rule)
		v.Resets, made.PolicyBefore = resets, before
		return nil
	})
	if traceErr != nil {
		return Made{}, fmt.Errorf("policystore: %s was reset (%s), and the history does not have it: %w", scope, resetsText(resets), traceErr)
	}
	made, traceErr = made.of(traced, nil)
	return made, errors.Join(err, traceErr)
}

// reset returns what was reset, with an error too.
func reset(ctx context.Context, l *throttle.Limiter, scope, rule string) (resets []Reset, err error) {
	upstream, err := l.UpstreamState(ctx, scope)
	if err != nil {
		return nil, err
	}
	done, err := l.Reset(ctx, scope, rule)
	for _, one := range done {
		resets = append(resets, Reset{Scope: scope, Rule: one.Rule, Unit: one.Unit, Used: one.Used})
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
			list = append(list, fmt.Sprintf("%s: %d %s", r.Rule, r.Used, r.Unit))
		}
	}
	return strings.Join(list, ", ")
}
