package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// unmatched is the part of a report that says whether a rule matches the scope; docs/json.md has its fields.
type unmatched struct {
	Unmatched      bool  `json:"unmatched,omitempty"`
	UnmatchedSince int64 `json:"unmatched_since,omitempty"` // version

	text string // for people
}

// unmatched says since when no rule matches a scope, which none does.
func (i *inspection) unmatched(ctx context.Context, scope string) (unmatched, error) {
	u := unmatched{Unmatched: true, text: "no rule matches the scope"}
	if i.store == nil { // -limits FILE
		return u, nil
	}
	since, known, err := i.store.UnmatchedSince(ctx, scope)
	switch {
	case err != nil:
		return u, explain(ctx, err, i.url)
	case known:
		u.UnmatchedSince = since.Number
		u.text += fmt.Sprintf(" since version %d of the limits, by %s at %s", since.Number, cli.Quote(since.By), stamp(since.At))
	default:
		u.text += ", in no stored version of the limits"
	}
	return u, nil
}

// advice is what becomes of a task, and what to do.
func (u unmatched) advice(under policy.Unmatched) string {
	if under == policy.UnmatchedFail {
		return u.text + "; under unmatched: fail it fails when a worker picks it up next, unless a rule is added"
	}
	return u.text + "; add a rule, or delete the task"
}

// inLine tells who stands in line, whatever the limits say of the scopes. What it expects of starts means nothing.
func (i *inspection) inLine() (*throttle.Limiter, error) {
	open, err := policy.New(policy.UnmatchedAllow, nil)
	if err != nil {
		return nil, err
	}
	return throttle.New(i.rdb, open, throttle.Config{})
}

// unmatchedScope reports a scope that no rule matches: one that had a rule, or in which tasks stand in line. Others are most
// likely mistyped, and refused.
func (i *inspection) unmatchedScope(ctx context.Context, refused error) error {
	u, err := i.unmatched(ctx, i.name)
	if err != nil {
		return err
	}
	limiter, err := i.inLine()
	if err != nil {
		return err
	}
	got, err := limiter.Inspect(ctx, i.name)
	if err != nil {
		return explain(ctx, err, i.url)
	}
	if u.UnmatchedSince == 0 && got.Waiting+got.Released == 0 {
		return &cli.Error{What: plainly(refused), Try: "a scope that the limits have rules for, or -limits FILE", Err: refused}
	}
	active, err := i.active()
	if err != nil {
		return explain(ctx, err, i.url)
	}
	r := scopeReport{Scope: i.name, At: stamp(got.At), Waiting: got.Waiting, Lines: got.Lines, Released: got.Released, Active: active, unmatched: u}
	return i.print(r, [][2]string{
		{"scope", cli.Quote(r.Scope)},
		{"waits", u.text + "; add a rule, or delete its tasks"},
		{"waiting", fmt.Sprintf("%d in the queue; headway_refused_tasks counts those that workers have put back since then", r.Waiting)},
		{"released", fmt.Sprint(r.Released)},
		{"active", fmt.Sprintf("%d, held or running", r.Active)},
	})
}

// isUnmatched tells whether no rule matches a scope.
func isUnmatched(err error) bool { return errors.As(err, new(*policy.UnmatchedError)) }
