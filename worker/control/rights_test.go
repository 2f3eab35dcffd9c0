package control

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/policystore"
)

const owned = `limits:
  payments:
    owner: team-pay
    rules: [{name: plan, algorithm: fixed-window, limit: 5, per: 30d}]
    scopes:
      acme: {owner: "user:dora", rules: [{name: tenant, algorithm: fixed-window, limit: 2, per: 30d}]}
  mail: {rules: [{name: plan, algorithm: fixed-window, limit: 5, per: 30d}]}
`

// mayDo has what each role may do with a verb: everywhere, in its own scopes, or nowhere. It is the table of docs/page.md#who-may-what,
// written again.
var mayDo = func() map[Verb]map[Role]string {
	may := map[Verb]map[Role]string{}
	for owners, verbs := range map[string][]Verb{
		"everywhere": {VerbSee},
		"own": {
			VerbPayload, VerbPause, VerbDrain, VerbResume, VerbRun, VerbMove, VerbCancel, VerbClear, VerbPriority,
			VerbSet, VerbRemove, VerbUnset, VerbReset, VerbOpen, VerbClose, VerbRollback,
		},
		"nowhere": {VerbAssign, VerbTier, VerbImport},
	} {
		for _, verb := range verbs {
			may[verb] = map[Role]string{RoleNone: "nowhere", RoleViewer: "nowhere", RoleOwner: owners, RoleAdmin: "everywhere"}
		}
	}
	may[VerbSee][RoleViewer] = "everywhere"
	return may
}()

// Each verb, by each role, at a scope of the actor's own, below one, above one, at another's and at no owner's.
func TestRoles(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	if got, want := slices.Sorted(maps.Keys(rights)), slices.Sorted(maps.Keys(mayDo)); !slices.Equal(got, want) {
		t.Fatalf("verbs with rights: %v; in this table: %v", got, want)
	}
	for verb, roles := range mayDo {
		for role, where := range roles {
			for _, actor := range []Actor{{Name: "anna", Groups: []string{"x", "team-pay"}}, {Name: "dora"}} {
				actor.Role = role
				for scope, owners := range map[string][]string{
					"payments": {"anna"}, "payments/new": {"anna"}, "payments/*": {"anna"}, "payments/acme": {"anna", "dora"}, "payments/acme/refunds": {"anna", "dora"},
					"mail": nil, "mail/x": nil, "": nil, "*": nil,
				} {
					want := where == "everywhere" || where == "own" && slices.Contains(owners, actor.Name)
					err := a.May(actor, verb, scope)
					if (err == nil) != want || err != nil && !errors.As(err, new(*ForbiddenError)) {
						t.Errorf("%s %s %q as %s: %v, want allowed %t", actor.Name, verb, scope, role, err, want)
					}
				}
			}
		}
	}
}

// A person named like a group is not the group, and a group named like a person is not the person.
func TestNamesAreNotGroups(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"team-pay": true, "user:anna": true, "anna": false, "user:team-pay": false, "user:": false, "": false} {
		if got := (Actor{Name: "anna", Groups: []string{"team-pay"}}).Is(name); got != want {
			t.Errorf("anna of team-pay is %q: %t", name, got)
		}
	}
	a := newAsked(t, owned)
	for _, actor := range []Actor{{Name: "team-pay"}, {Name: "eve", Groups: []string{"user:dora", "dora"}}, {Name: "user:dora"}} {
		actor.Role = RoleOwner
		for _, scope := range []string{"payments", "payments/acme"} {
			if err := a.May(actor, VerbPause, scope); err == nil {
				t.Errorf("%+v may pause %s", actor, scope)
			}
		}
	}
}

// A viewer sees no scopes but those that it is given, and those below them. An owner sees its own besides.
func TestSees(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	for actor, want := range map[*Actor][]string{
		{Name: "v", Role: RoleViewer}:                                       {"", "mail", "mail/x", "payments", "payments/acme"},
		{Name: "v", Role: RoleViewer, Scopes: []string{"mail"}}:             {"mail", "mail/x"},
		{Name: "v", Role: RoleViewer, Scopes: []string{"*/x"}}:              {"mail/x"},
		{Name: "dora", Role: RoleViewer, Scopes: []string{"mail/x"}}:        {"mail/x"},
		{Name: "dora", Role: RoleOwner, Scopes: []string{"mail/x"}}:         {"mail/x", "payments/acme"},
		{Name: "root", Role: RoleAdmin, Scopes: []string{"mail"}}:           {"", "mail", "mail/x", "payments", "payments/acme"},
		{Name: "none", Groups: []string{"team-pay"}, Scopes: []string{"*"}}: nil,
	} {
		var got []string
		for _, scope := range []string{"", "mail", "mail/x", "payments", "payments/acme"} {
			if a.May(*actor, VerbSee, scope) == nil {
				got = append(got, scope)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v sees %q, want %q", *actor, got, want)
		}
	}
}

// A refusal says who may not do what, and who may. It names no owner to those who may not see the scope.
func TestForbiddenWords(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	viewer, hidden := Actor{Name: "vera", Role: RoleViewer}, Actor{Name: "hugo", Role: RoleViewer, Scopes: []string{"mail"}}
	for _, c := range []struct {
		actor       Actor
		verb        Verb
		scope, want string
	}{
		{viewer, VerbPause, "payments", "vera may not pause payments: its owner is team-pay"},
		{viewer, VerbPause, "payments/acme", "vera may not pause payments/acme: its owner is user:dora"},
		{viewer, VerbPause, "mail", "vera may not pause mail: it has no owner, and only an admin may"},
		{viewer, VerbPayload, "mail", "vera may not read the payloads of mail: it has no owner, and only an admin may"},
		{viewer, VerbImport, "", "vera may not import into all limits: only an admin may"},
		{viewer, VerbAssign, "payments", "vera may not assign fields of payments: only an admin may"},
		{hidden, VerbSee, "payments", "hugo may not see payments"},
		{hidden, VerbPause, "payments", "hugo may not pause payments"},
	} {
		if err := a.May(c.actor, c.verb, c.scope); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

// Each change of the limits is refused to a viewer, and made for an admin under the admin's name.
func TestApply(t *testing.T) {
	t.Parallel()
	for _, c := range []Change{
		{Verb: VerbPause, Scope: "payments"}, {Verb: VerbResume, Scope: "payments"},
		{Verb: VerbSet, Scope: "payments", Rule: "plan", Fields: map[string]string{"limit": "7"}},
		{Verb: VerbRemove, Scope: "payments", Rule: "plan"},
	} {
		t.Run(fmt.Sprint(c.Verb), func(t *testing.T) {
			t.Parallel()
			a := newAsked(t, owned)
			if c.Verb == VerbResume {
				a.edit(a.store.Pause(t.Context(), policystore.Edit{By: "bert"}, c.Scope))
			}
			before, err := a.store.Current(t.Context())
			must(t, err)
			if _, err := a.Apply(t.Context(), Actor{Name: "vera", Role: RoleViewer}, c); !errors.As(err, new(*ForbiddenError)) {
				t.Errorf("a viewer: %v", err)
			}
			if now, err := a.store.Current(t.Context()); err != nil || now.Number != before.Number {
				t.Fatalf("a viewer changed the limits: %+v, %v", now, err)
			}
			var audit bytes.Buffer
			a.log = slog.New(slog.NewTextHandler(&audit, nil))
			c.Reason = "a test"
			done, err := a.Apply(t.Context(), admin, c)
			if line := audit.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, `msg="limits changed" who=root via=test verb=`+string(c.Verb)+" scope=payments") || !strings.Contains(line, `reason="a test"`) {
				t.Errorf("audit: %s", line)
			}
			if err != nil || done.Version.By != admin.Name || len(done.Differences) != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
		})
	}
}

// The rights to a rollback were checked over one version, and an actor that may not do everything makes it over no other.
func TestRightsAreThoseOfOneVersion(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	for _, limit := range []string{"7", "8"} {
		a.edit(a.store.Set(t.Context(), policystore.Edit{By: "anna"}, "payments", "plan", map[string]string{"limit": limit}))
	}
	back := Change{Verb: VerbRollback, Version: 2}
	for actor, want := range map[*Actor]int64{{Name: "anna", Groups: []string{"team-pay"}, Role: RoleOwner}: 3, {Name: "root", Role: RoleAdmin}: 0} {
		if got, err := a.checkDifferences(t.Context(), *actor, back, policystore.Edit{By: actor.Name}); err != nil || got != want {
			t.Errorf("%s: over version %d, %v; want %d", actor.Name, got, err, want)
		}
	}
}

// An actor sees the changes of tasks of whose scopes it may see all: also the one that they were moved to. Where more scopes were changed
// than a record names, it is not known.
func TestSeenActions(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	many := make([]string, mostScopes)
	for i := range many {
		many[i] = fmt.Sprint("mail/", i)
	}
	all := []Action{
		{By: "1", Verb: "cancel", Scopes: []string{"mail"}},
		{By: "2", Verb: "cancel", Scopes: []string{"mail", "payments"}},
		{By: "3", Verb: "move", Scopes: []string{"mail/x"}, To: "payments"},
		{By: "4", Verb: "move", Scopes: []string{"mail/x"}, To: "mail/y"},
		{By: "5", Verb: "priority", Scopes: []string{"mail/x"}, To: "priority 3"},
		{By: "6", Verb: "cancel", Scopes: many},
		{By: "7", Verb: "cancel"},
	}
	for want, actor := range map[string]Actor{
		"145":     {Name: "v", Role: RoleViewer, Scopes: []string{"mail"}},
		"1234567": {Name: "v", Role: RoleViewer},
		"":        {Name: "v"},
	} {
		got := ""
		for _, action := range a.VisibleActions(actor, all) {
			got += action.By
		}
		if got != want {
			t.Errorf("%+v sees %s, want %s", actor, got, want)
		}
	}
}

// A rule may be set for a new name, unless that is probably a mistyped one; Force sets it anyway. A pause takes only names that are there.
func TestMistypedNames(t *testing.T) {
	t.Parallel()
	a := newAsked(t, owned)
	rule := map[string]string{"algorithm": "fixed-window", "limit": "1", "per": "1s"}
	for _, one := range []struct {
		change  Change
		near    string
		refused bool
	}{
		{Change{Verb: VerbSet, Scope: "paymens", Rule: "plan", Fields: rule}, "payments", true},
		{Change{Verb: VerbSet, Scope: "warehouse", Rule: "plan", Fields: rule}, "", false},
		{Change{Verb: VerbSet, Scope: "paymens", Rule: "plan", Fields: rule, Force: true}, "", false},
		{Change{Verb: VerbPause, Scope: "harbour"}, "", true},
	} {
		unknown := new(UnknownScopeError)
		_, err := a.Apply(t.Context(), admin, one.change)
		if errors.As(err, &unknown) != one.refused || !one.refused && err != nil || one.refused && unknown.Near != one.near {
			t.Errorf("%s %s: %v, want refused %t, near %q", one.change.Verb, one.change.Scope, err, one.refused, one.near)
		}
	}
}
