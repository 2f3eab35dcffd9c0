package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

const previewed = `limits:
  p:
    owner: team
    rules: [{name: rate, algorithm: token-bucket, limit: 1, per: 10s, burst: 1}]
    scopes:
      a: {owner: "user:anna"}
  q: {breaker: {wait: 1m}, rules: [{name: rate, algorithm: token-bucket, limit: 1, per: 10s, burst: 1}]}
`

func newPreviewed(t *testing.T) *asked {
	t.Helper()
	a := newAsked(t, previewed)
	a.use("p/a")
	a.use("q")
	for i := range 5 {
		a.enqueue(queue.Task{Scope: "p/a", ID: fmt.Sprint("a", i)})
	}
	a.enqueue(queue.Task{Scope: "p/b", ID: "b"}, queue.Task{Scope: "q", ID: "q"})
	return a
}

// A preview has what the change would change, how many tasks wait there, and when the last of them starts without it and with it. It
// changes nothing.
func TestPreview(t *testing.T) {
	t.Parallel()
	a := newPreviewed(t)
	before, err := a.store.Current(t.Context())
	must(t, err)
	for _, c := range []struct {
		change        Change
		differences   int
		waiting       int64
		scopes        int
		before, after time.Duration // about; 0 for none
		reason        Reason        // after
	}{
		{Change{Verb: VerbSet, Scope: "p", Rule: "rate", Fields: map[string]string{"per": "1s"}}, 1, 6, 2, time.Minute, 6 * time.Second, ReasonRule},
		{Change{Verb: VerbSet, Scope: "p/b", Rule: "own", Fields: map[string]string{"algorithm": "token-bucket", "limit": "1", "per": "1s"}}, 1, 1, 1, 20 * time.Second, 20 * time.Second, ReasonRule},
		{Change{Verb: VerbPause, Scope: "p/a"}, 1, 5, 1, time.Minute, 0, ReasonPaused},
		{Change{Verb: VerbPause, Scope: "*", Force: true}, 1, 7, 3, time.Minute, 0, ReasonPaused},
		{Change{Verb: VerbPause, Scope: "q", For: time.Hour}, 1, 1, 1, 10 * time.Second, time.Hour, ReasonPaused},
		{Change{Verb: VerbSet, Scope: "q", Rule: "rate", Fields: map[string]string{"limit": "0", "burst": ""}}, 1, 1, 1, 10 * time.Second, 0, ReasonSuspended},
		{Change{Verb: VerbRemove, Scope: "q", Rule: "rate"}, 1, 1, 1, 10 * time.Second, 0, ReasonUnmatched},
	} {
		p, err := a.Preview(t.Context(), admin, c.change)
		must(t, err)
		e := p.Effect
		near := func(last Last, want time.Duration) bool {
			in := time.Until(last.Start.Time)
			return want == 0 && last.Start.IsZero() || want > 0 && in > want/2 && in < want*3/2
		}
		if p.Version != before.Number || len(p.Differences) != c.differences || e.Waiting != c.waiting || e.Scopes != c.scopes || e.More {
			t.Errorf("%+v: %+v", c.change, p)
		}
		if !near(e.Before, c.before) || !near(e.After, c.after) || e.After.Reason != c.reason {
			t.Errorf("%+v: %s, want about %s and then about %s, %s", c.change, e, c.before, c.after, c.reason)
		}
	}
	if now, err := a.store.Current(t.Context()); err != nil || now.Number != before.Number {
		t.Errorf("a preview changed the limits: %+v, %v", now, err)
	}
	if _, err := a.Preview(t.Context(), admin, Change{Verb: VerbSet, Scope: "q", Rule: "rate", Fields: map[string]string{"limit": "x"}}); err == nil {
		t.Error("a preview of a fault")
	}
	if _, err := a.Preview(t.Context(), Actor{Name: "v", Role: RoleViewer}, Change{Verb: VerbPause, Scope: "q"}); !errors.As(err, new(*ForbiddenError)) {
		t.Errorf("a viewer's preview: %v", err)
	}
	if _, err := a.Preview(t.Context(), admin, Change{Verb: VerbPause, Scope: "q", IfVersion: 77}); !errors.As(err, new(*policystore.ConflictError)) {
		t.Errorf("meant for another version: %v", err)
	}
}

// The preview of a reset has what it would forget.
func TestPreviewOfReset(t *testing.T) {
	t.Parallel()
	a := newPreviewed(t)
	p, err := a.Preview(t.Context(), admin, Change{Verb: VerbReset, Scope: "q"})
	if err != nil || len(p.Resets) != 1 || p.Resets[0] != (policystore.Reset{Scope: "q", Rule: "rate", Unit: "requests", Used: 1}) || p.Effect.Waiting != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := a.Preview(t.Context(), admin, Change{Verb: VerbReset, Scope: "p/a"}); !errors.Is(err, policystore.ErrNothingToReset) {
		t.Errorf("no rule counts at p/a: %v", err)
	}
	if done, err := a.Apply(t.Context(), admin, Change{Verb: VerbReset, Scope: "q"}); err != nil || len(done.Version.Resets) != 1 || done.Version.Via != admin.Via {
		t.Errorf("%+v, %v", done, err)
	}
}

// "-dry-run says what it would do": of a change at the place of a tier for the names that have it, and of a name that gets it.
func TestPreviewOfTier(t *testing.T) {
	t.Parallel()
	a := newAsked(t, `limits:
  p:
    tiers: {gold: {rules: [{name: rate, algorithm: token-bucket, limit: 1, per: 10s, burst: 1}]}}
    scopes: {"*": {rules: [{name: rate, algorithm: token-bucket, limit: 1, per: 1h, burst: 1}]}}
`)
	_, err := a.store.SetTiers(t.Context(), policystore.Edit{By: "anna"}, map[string]string{"p/a": "gold"})
	must(t, err)
	for _, scope := range []string{"p/a", "p/b"} {
		a.use(scope)
		a.enqueue(queue.Task{Scope: scope, ID: scope[2:]})
	}
	for _, c := range []struct {
		change        Change
		before, after time.Duration
	}{
		{Change{Verb: VerbSet, Scope: "p//gold", Rule: "rate", Fields: map[string]string{"per": "1m"}}, 10 * time.Second, time.Minute},
		{Change{Verb: VerbTier, Scope: "p/b", Tier: "gold"}, time.Hour, 10 * time.Second},
	} {
		p, err := a.Preview(t.Context(), admin, c.change)
		must(t, err)
		before, after := time.Until(p.Effect.Before.Start.Time), time.Until(p.Effect.After.Start.Time)
		if p.Effect.Waiting != 1 || p.Effect.Scopes != 1 || before < c.before/2 || before > c.before || after > c.after || after < 0 {
			t.Errorf("%+v: %s", c.change, p.Effect)
		}
	}
}

// The preview of a breaker has how many tasks wait there, opens nothing, and refuses what Apply refuses.
func TestPreviewOfBreaker(t *testing.T) {
	t.Parallel()
	a := newPreviewed(t)
	open := Change{Verb: VerbOpen, Scope: "q", For: time.Hour}
	p, err := a.Preview(t.Context(), admin, open)
	if err != nil || p.Effect.Waiting != 1 || p.Version != 1 || len(p.Differences) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
	closing := Change{Verb: VerbClose, Scope: "q"}
	if _, err := a.Preview(t.Context(), admin, closing); !errors.Is(err, policystore.ErrUnchanged) {
		t.Errorf("it is open: %v", err)
	}
	if _, err := a.Preview(t.Context(), admin, Change{Verb: VerbOpen, Scope: "p/a"}); !errors.Is(err, policy.ErrNoBreaker) {
		t.Errorf("no breaker counts at p/a: %v", err)
	}
	made, err := a.Apply(t.Context(), admin, open)
	if err != nil || made.Version.Breaker != "q" || made.Version.Via != admin.Via {
		t.Errorf("%+v, %v", made, err)
	}
	if _, err := a.Preview(t.Context(), admin, closing); err != nil {
		t.Error(err)
	}
}

// undo is the change that undoes another, unless the limits have changed since.
func undo(made policystore.Made) Change {
	return Change{Verb: VerbRollback, Version: made.Version.Number - 1, IfVersion: made.Version.Number}
}

// An owner may roll back and undo what changes only its own scopes, and rules and pauses alone: not who the owner is.
func TestOwnersRollBack(t *testing.T) {
	t.Parallel()
	a := newPreviewed(t)
	anna := Actor{Name: "anna", Role: RoleOwner, Via: "page"}
	apply := func(actor Actor, c Change) policystore.Made {
		t.Helper()
		done, err := a.Apply(t.Context(), actor, c)
		must(t, err)
		a.follow()
		return done
	}
	set := func(limit string) map[string]string {
		return map[string]string{"algorithm": "token-bucket", "limit": limit, "per": "1s", "burst": "1"}
	}
	first := apply(anna, Change{Verb: VerbSet, Scope: "p/a", Rule: "own", Fields: set("1")})
	second := apply(anna, Change{Verb: VerbSet, Scope: "p/a", Rule: "own", Fields: set("2")})
	back := apply(anna, undo(second))
	if got := back.Differences; len(got) != 1 || !strings.Contains(got[0].After, "limit: 1") {
		t.Errorf("undone: %+v", got)
	}
	apply(admin, Change{Verb: VerbSet, Scope: "q", Rule: "rate", Fields: set("5")})
	_, err := a.Apply(t.Context(), anna, Change{Verb: VerbRollback, Version: first.Version.Number})
	if refused := new(ForbiddenError); !errors.As(err, &refused) || refused.Scope != "q" || err.Error() != "anna may not roll back q: it has no owner, and only an admin may" {
		t.Errorf("what another scope was is not anna's to bring back: %v", err)
	}
	_, err = a.Apply(t.Context(), anna, undo(first))
	if !errors.As(err, new(*policystore.ConflictError)) {
		t.Errorf("the limits have changed since: %v", err)
	}

	boss := "user:bert"
	apply(admin, Change{Verb: VerbAssign, Scope: "p/a", Assigned: policystore.Assigned{Owner: &boss}})
	bert := Actor{Name: "bert", Role: RoleOwner}
	if _, err = a.Apply(t.Context(), bert, Change{Verb: VerbUnset, Scope: "p/a"}); !errors.As(err, new(*ForbiddenError)) {
		t.Errorf("who the owner is, an owner may not undo: %v", err)
	}
	apply(bert, Change{Verb: VerbUnset, Scope: "p/a", Rule: "own"})
	if _, err = a.Apply(t.Context(), anna, Change{Verb: VerbPause, Scope: "p/a"}); !errors.As(err, new(*ForbiddenError)) {
		t.Errorf("it is anna's no more: %v", err)
	}
}
