package policystore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle"
)

// Reset is a rule whose spending a version forgot.
type Reset struct {
	// Scope is that of the tasks that spent, payments/acme.
	Scope string `json:"scope"`
	// Rule is the rule's name, empty for a pause of the API that was lifted.
	Rule string `json:"rule,omitempty"`
	// Unit is what the rule counts, and Used how many units still counted just before.
	Unit string `json:"unit,omitempty"`
	Used int64  `json:"used"`
}

// ErrNothingToReset is the error for a scope at which no rate rule counts.
var ErrNothingToReset = errors.New("policystore: no rate rule counts at the scope itself")

// resetBound bounds a reset, which does not end with its context: it would be in force and not in the history.
const resetBound = 5 * time.Second

// Reset forgets the spending under the rules of a scope, or under one of them, by Limiter.Reset. l must have the policy in force. It writes
// a version that has how much was spent and who reset it, and changes no rule. A user that may not change the limits resets nothing.
// Neither Edit.For nor Edit.DryRun goes with it. The error is ErrNothingToReset, a *ConflictError for Edit.IfVersion, or those of Store and
// of Limiter.Reset. If Redis fails between the two, it says what was reset and is not in the history. Costs some round trips.
func (s *Store) Reset(ctx context.Context, e Edit, l *throttle.Limiter, scope, rule string) (Made, error) {
	if e.DryRun {
		return Made{}, errors.New("policystore: a reset has no dry run; Limiter.Peek returns what it would forget")
	}
	if err := ctx.Err(); err != nil {
		return Made{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resetBound)
	defer cancel()
	var done []Reset
	var partly error // not all was reset
	made, err := s.edit(ctx, e, unrelated, func(d *draft) (err error) {
		if done == nil { // not when another change was faster
			if err = s.mayChange(ctx); err == nil {
				done, partly = reset(ctx, l, scope, rule)
			}
		}
		if err == nil && len(done) == 0 {
			err = errors.Join(partly, ErrNothingToReset)
		}
		d.Change, d.Resets = strings.TrimSpace("reset "+scope+" "+rule), done
		return err
	})
	if err != nil && len(done) > 0 {
		err = fmt.Errorf("policystore: %s was reset (%s), and the history does not have it: %w", scope, resetsText(done), err)
	}
	return made, errors.Join(err, partly)
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
			list = append(list, fmt.Sprintf("%s: %d %s", r.Rule, r.Used, r.Unit))
		}
	}
	return strings.Join(list, ", ")
}
