package control

import (
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policystore"
)

// docs/page.md: "An actor who may see a part of a version sees neither its line nor its reason". Resets and breakers
// are parts too, and a version whose differences are not known may have hidden ones.
func TestSeenChanges(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	difference := func(scopes ...string) (list []policystore.Difference) {
		for _, scope := range scopes {
			list = append(list, policystore.Difference{Scope: scope, Rule: "plan"})
		}
		return list
	}
	reset := policystore.Version{Resets: []policystore.Reset{{Scope: "payments", Rule: "plan"}}}
	resets := policystore.Version{Resets: append([]policystore.Reset{{Scope: "mail", Rule: "plan"}}, reset.Resets...)}
	mail, all := Actor{Name: "v", Role: RoleViewer, Scopes: []string{"mail"}}, Actor{Name: "v", Role: RoleViewer}
	for name, c := range map[string]struct {
		actor                       Actor
		change                      policystore.Change
		some, shown                 bool
		differences, resets, hidden int
	}{
		"own":                {mail, policystore.Change{Known: true, Differences: difference("mail", "mail/x")}, true, true, 2, 0, 0},
		"partly":             {mail, policystore.Change{Known: true, Differences: difference("mail", "payments")}, true, false, 1, 0, 1},
		"hidden":             {mail, policystore.Change{Known: true, Differences: difference("payments")}, false, false, 0, 0, 1},
		"all limits":         {mail, policystore.Change{Known: true, Differences: difference("")}, false, false, 0, 0, 1},
		"hidden reset":       {mail, policystore.Change{Known: true, Version: reset}, false, false, 0, 0, 1},
		"reset, partly":      {mail, policystore.Change{Known: true, Version: resets}, true, false, 0, 1, 1},
		"hidden breaker":     {mail, policystore.Change{Known: true, Version: policystore.Version{Breaker: "payments"}}, false, false, 0, 0, 1},
		"own breaker":        {mail, policystore.Change{Known: true, Version: policystore.Version{Breaker: "mail/x"}}, true, true, 0, 0, 0},
		"hidden beside seen": {mail, policystore.Change{Known: true, Differences: difference("mail"), Version: reset}, true, false, 1, 0, 1},
		"not known":          {mail, policystore.Change{}, true, false, 0, 0, 0},
		"nothing":            {mail, policystore.Change{Known: true}, true, true, 0, 0, 0},
		"sees all":           {all, policystore.Change{Differences: difference("mail", "payments"), Version: reset}, true, true, 2, 1, 0},
	} {
		c.change.Version.Change, c.change.Version.Reason = "set payments plan", "for acme"
		got, some := a.VisibleChange(c.actor, c.change)
		shown := got.Version.Change == "set payments plan" && got.Version.Reason == "for acme"
		if some != c.some || len(got.Differences) != c.differences || len(got.Version.Resets) != c.resets || got.Hidden != c.hidden || c.some && shown != c.shown {
			t.Errorf("%s: %+v, %t", name, got, some)
		}
		if !shown && (got.Version.Change != "changed limits" || got.Version.Reason != "") {
			t.Errorf("%s: %q, %q", name, got.Version.Change, got.Version.Reason)
		}
	}
	conflict := a.VisibleConflict(mail, &policystore.ConflictError{Want: 1, Now: policystore.Version{Number: 2, By: "anna", Change: "set payments plan", Reason: "x"}})
	if text := conflict.Error(); strings.Contains(text, "payments") || !strings.Contains(text, "version 2") || conflict.Now.Reason != "" {
		t.Error(text)
	}
}

// A rollback or an undo that changes scopes that its actor may not see is refused without their names.
func TestRollbackNamesNothingHidden(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	for _, scope := range []string{"payments/acme", "mail"} {
		a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "root"}, scope))
	}
	dora := Actor{Name: "dora", Role: RoleOwner, Scopes: []string{"payments"}}
	_, err := a.Apply(t.Context(), dora, Change{Verb: VerbRollback, Version: 1})
	if want := "dora may not roll back all limits: it also covers scopes that dora may not see, and these are not dora's"; !errors.As(err, new(*ForbiddenError)) || err.Error() != want {
		t.Errorf("%v", err)
	}
}
