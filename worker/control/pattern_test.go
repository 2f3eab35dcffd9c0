package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policystore"
)

// shop has names whose owner is not that of "*" beside them.
const shop = `limits:
  open:
    scopes:
      "*": {owner: team-default, rules: [{name: tenant, algorithm: fixed-window, limit: 1, per: 30d}]}
      vip: {owner: team-vip, scopes: {eu: {owner: team-eu}}}
      plain: {rules: [{name: more, algorithm: fixed-window, limit: 9, per: 30d}]}
  "*":
    scopes:
      mail: {owner: team-mail, rules: [{name: mail, algorithm: fixed-window, limit: 1, per: 30d}]}
`

func newShop(t *testing.T) *asked {
	t.Helper()
	a := newAsked(t, shop)
	for _, scope := range []string{"open/acme", "open/plain", "open/vip", "open/vip/eu", "other/mail", "open/mail"} {
		if scope != "open/vip/eu" { // it spends from what open/vip has spent
			a.use(scope)
		}
		a.enqueue(queue.Task{Scope: scope, ID: scope + "#0"}, queue.Task{Scope: scope, ID: scope + "#1"})
	}
	return a
}

func ownerOf(group string, scopes ...string) Actor {
	return Actor{Name: "anna", Groups: []string{group}, Role: RoleOwner, Scopes: scopes}
}

// waitingIn returns how many tasks wait in each scope.
func (a *asked) waitingIn() map[string]int64 {
	a.t.Helper()
	got := map[string]int64{}
	all, err := a.Waiting(a.t.Context(), admin, 100)
	must(a.t, err)
	for _, w := range all.Fullest {
		got[w.Scope] = w.Waiting
	}
	return got
}

// docs/page.md: "The owner of `open/*` has no right to `open/vip` if that has another owner". Each task that a
// pattern covers is asked for itself: those of others stay, are not counted, and are named. The record names the scopes that were changed.
func TestPatternLeavesTasksOfOthers(t *testing.T) {
	t.Parallel()
	for _, verb := range taskVerbs {
		for _, c := range []struct {
			actor   Actor
			change  TaskChange
			changed int
			refused Refused
		}{
			{ownerOf("team-default"), TaskChange{Scope: "open/*"}, 4, Refused{"open/vip": 2, "open/vip/eu": 2, "open/mail": 2}},
			{ownerOf("team-default"), TaskChange{Scope: "open/*", Queue: "default"}, 4, Refused{"open/vip": 2, "open/vip/eu": 2, "open/mail": 2}},
			{ownerOf("team-default", "open/vip"), TaskChange{Scope: "open/*"}, 4, Refused{"open/vip": 2, "open/vip/eu": 2}},
			{ownerOf("team-mail"), TaskChange{Scope: "*/mail"}, 4, nil},
			{admin, TaskChange{Scope: "open/*"}, 10, nil},
		} {
			c.change.Verb, c.change.Priority = verb, 3
			if verb != VerbCancel && (c.change.Queue != "" || c.actor.Role == RoleAdmin) {
				continue // all verbs find tasks by queue alike, and clear takes none
			}
			if c.change.To = "open/acme"; c.actor.Groups != nil && c.actor.Groups[0] == "team-mail" {
				c.change.To = "other/mail"
			}
			t.Run(fmt.Sprint(verb, c.actor, c.change.Scope, c.change.Queue), func(t *testing.T) {
				t.Parallel()
				a := newShop(t)
				before := a.waitingIn()
				n, err := a.Count(t.Context(), c.actor, c.change)
				if err != nil || n.Tasks != int64(c.changed) || !maps.Equal(n.Refused, c.refused) {
					t.Errorf("counted %+v, %v; want %d and refused %v", n, err, c.changed, c.refused)
				}
				steps := 0
				c.change.Progress = func(changed, left int) { steps = changed + left }
				done, err := a.ApplyTasks(t.Context(), c.actor, c.change)
				if err != nil || done.Changed != c.changed || len(done.Left) > 0 || !maps.Equal(done.Refused, c.refused) || steps != c.changed {
					t.Errorf("done %+v, %v, %d steps; want %d and refused %v", done, err, steps, c.changed, c.refused)
				}
				actions, err := a.AllActions(t.Context())
				if err != nil || len(actions) != 1 || actions[0].By != c.actor.Name || actions[0].Changed != c.changed || len(actions[0].Scopes) == 0 {
					t.Fatalf("recorded %+v, %v", actions, err)
				}
				for scope := range c.refused {
					if got := a.waitingIn()[scope]; got != before[scope] || slices.Contains(actions[0].Scopes, scope) {
						t.Errorf("%d wait in %s, of %d before; recorded %q", got, scope, before[scope], actions[0].Scopes)
					}
				}
			})
		}
	}
}

// A change of the limits at a pattern reaches each name of its own that the pattern covers. It is refused
// where the actor has no right to one of these, and says to which.
func TestPatternIsRefusedWhereItReachesOthers(t *testing.T) {
	t.Parallel()
	a := newShop(t)
	rule := map[string]string{"limit": "5"}
	for _, c := range []Change{
		{Verb: VerbPause}, {Verb: VerbDrain}, {Verb: VerbResume}, {Verb: VerbSet, Rule: "tenant", Fields: rule}, {Verb: VerbRemove, Rule: "tenant"},
		{Verb: VerbUnset}, {Verb: VerbReset},
	} {
		c.Scope = "open/*"
		for want, actor := range map[string]Actor{
			"it also covers open/mail, open/vip, and these are not anna's":          ownerOf("team-default"),
			"it also covers scopes that anna may not see, and these are not anna's": ownerOf("team-default", "other"),
			"it has no owner, and only an admin may":                                ownerOf("team-mail"),
		} {
			if want[:6] == "it has" {
				c.Scope = "open"
			}
			want = fmt.Sprintf("anna may not %s %s: %s", rights[c.Verb].words, c.Scope, want)
			_, err := a.Apply(t.Context(), actor, c)
			_, previewErr := a.Preview(t.Context(), actor, c)
			if err == nil || err.Error() != want || previewErr == nil || previewErr.Error() != want {
				t.Errorf("%s: %v; preview %v; want %s", c.Verb, err, previewErr, want)
			}
			c.Scope = "open/*"
		}
	}
	if v, err := a.store.Current(t.Context()); err != nil || v.Number != 1 {
		t.Errorf("the limits were changed: %+v, %v", v, err)
	}
	if _, err := a.Apply(t.Context(), ownerOf("team-mail"), Change{Verb: VerbPause, Scope: "*/mail"}); err != nil {
		t.Errorf("a pattern that reaches nothing of others: %v", err)
	}
}

// An owner does not roll back what an admin has set at a pattern that reaches others.
func TestRollbackOfPatternIsRefused(t *testing.T) {
	t.Parallel()
	a := newShop(t)
	for _, scope := range []string{"open/acme", "open/*"} {
		a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "root"}, scope))
	}
	_, err := a.Apply(t.Context(), ownerOf("team-default"), Change{Verb: VerbRollback, Version: 1})
	if forbidden := new(ForbiddenError); !errors.As(err, &forbidden) || !slices.Equal(forbidden.Covers, []string{"open/mail", "open/vip"}) {
		t.Errorf("%v", err)
	}
	if _, err := a.Apply(t.Context(), admin, Change{Verb: VerbRollback, Version: 2}); err != nil {
		t.Fatal(err)
	}
	// Versions 2 to 4 come to a pause of open/acme alone, which is the actor's.
	if _, err := a.Apply(t.Context(), ownerOf("team-default"), Change{Verb: VerbRollback, Version: 1}); err != nil {
		t.Errorf("across several versions: %v", err)
	}
}

// docs/page.md: "Edits of other scopes since then do not matter". A change is refused where something on its path has changed since
// its actor looked.
func TestEditsBesideEachOther(t *testing.T) {
	t.Parallel()
	for scope, conflict := range map[string]bool{"open/plain": false, "*/mail": false, "*/acme": true, "open": true, "open/*": true, "open/acme": true, "": true, "other/mail/x": false} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			a := newAsked(t, shop)
			var err error
			if scope == "" {
				_, err = a.store.Import(t.Context(), policystore.Edit{By: "bert"}, parsed(t, "unmatched: allow\n"+shop), "new.yaml", true)
			} else {
				_, err = a.store.Pause(t.Context(), policystore.Edit{By: "bert"}, scope)
			}
			must(t, err)
			mine := Change{Verb: VerbSet, Scope: "open/acme", Rule: "mine", Fields: map[string]string{"algorithm": "concurrency", "limit": "3"}, SeenVersion: 1}
			done, err := a.Apply(t.Context(), admin, mine)
			refused := new(policystore.ConflictError)
			if errors.As(err, &refused) != conflict || conflict && refused.Want != 1 || !conflict && (err != nil || done.Version.Number != 3) {
				t.Errorf("%+v, %v", done, err)
			}
			if _, err = a.Apply(t.Context(), admin, Change{Verb: VerbRollback, Version: 1, SeenVersion: 1}); !errors.As(err, &refused) {
				t.Errorf("a rollback: %v", err)
			}
		})
	}
}
