package policystore

import (
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
)

// docs/limits.md: "A rollback is the author of what it brought back, and the first author stays": rules, assignments, pauses
// and the file alike. What was there all the time keeps its authors.
func TestRollbackSaysWhoRolledBack(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	first := server.User(t, []string{"hw:limits"})
	other := server.User(t, []string{"hw:limits"})
	a, b := New(first, Config{}), New(other, Config{})
	aUser, bUser := first.Options().Username, other.Options().Username
	ctx := t.Context()
	_, _, err := a.PublishFile(ctx, "worker one", policyOf(t, file), nil)
	must(t, err)
	must(t, set(a, anna, "payments", "account", "limit=7"), set(a, anna, "payments/acme", "tenant", "limit=100"), paused(a, anna, "search"), paused(a, anna, "mail"))
	_, err = a.Assign(ctx, anna, "payments", new("team"), nil)
	must(t, err)
	_, err = a.Assign(ctx, anna, "search", new("others"), nil)
	must(t, err)
	then, err := a.Current(ctx)
	must(t, err)
	_, err = a.Unset(ctx, anna, "payments", "")
	must(t, err)
	_, err = a.Resume(ctx, anna, "mail")
	must(t, err)
	must(t, set(a, anna, "payments/acme", "tenant", "limit=200"))
	_, _, err = a.PublishFile(ctx, "worker two", policyOf(t, strings.Replace(file, "limit: 20,", "limit: 30,", 1)), nil)
	must(t, err)

	_, err = b.Rollback(ctx, Edit{By: "bert", Reason: "as it was"}, then.Number)
	must(t, err)
	v, err := b.Current(ctx)
	must(t, err)
	if v.Reason != "as it was" || v.Imported == nil || v.Imported.By != "bert" || v.Imported.User != bUser || v.Imported.Reason != v.Reason || v.Imported.Sum != then.File.Sum {
		t.Errorf("%+v, over %+v", v, v.Imported)
	}
	mixed := func(what string, got, was Authorship) {
		t.Helper()
		want := Authorship{was.CreatedBy, was.CreatedUser, was.CreatedAt, "bert", bUser, v.At, "as it was"}
		if got != want || got.CreatedBy != "anna" || got.CreatedUser != aUser || got.CreatedAt.IsZero() {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	mixed("a rule that was taken back", v.Rules[0].Authorship, then.Rules[0].Authorship)
	mixed("a rule that was another one", v.Rules[1].Authorship, then.Rules[1].Authorship)
	mixed("an assignment", v.Scopes[0].Authorship, then.Scopes[0].Authorship)
	if v.Scopes[1].Authorship != then.Scopes[1].Authorship || v.Pauses[1] != then.Pauses[1] {
		t.Errorf("what was there all the time: %+v, %+v", v.Scopes[1], v.Pauses[1])
	}
	if p := v.Pauses[0]; p.Scope != "mail" || p.UpdatedBy != "bert" || p.UpdatedUser != bUser || p.Since != v.At || p.Reason != "as it was" {
		t.Errorf("a pause: %+v", p)
	}
	if _, err := b.Rollback(ctx, bert, then.Number); !errors.Is(err, ErrUnchanged) {
		t.Errorf("again: %v", err)
	}
}

// An assignment has its first author beside the last one.
func TestAssignKeepsWhoCreatedIt(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	must(t, second(s.Assign(t.Context(), anna, "payments", new("team"), nil)))
	created, err := s.Current(t.Context())
	must(t, err)
	must(t, second(s.Reassign(t.Context(), Edit{By: "bert", Reason: "they pay more"}, "payments", Assigned{Weight: new(int64(3))})))
	must(t, second(s.Import(t.Context(), Edit{By: "carl"}, policyOf(t, "limits: {search: {owner: others}}"), "f", false)))
	v, err := s.Current(t.Context())
	must(t, err)
	if a := v.Scopes[0]; a.CreatedBy != "anna" || a.CreatedUser != "default" || !a.CreatedAt.Equal(created.At) || a.UpdatedBy != "bert" || a.Reason != "they pay more" {
		t.Errorf("%+v", a)
	}
	if a := v.Scopes[1]; a.CreatedBy != "carl" || !a.CreatedAt.Equal(v.At) {
		t.Errorf("%+v", a)
	}
}

// "Reason is why, up to MaxReason bytes of printable text": of the version and of all that it makes or changes.
func TestReason(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	because := func(reason string) Edit { return Edit{By: "anna", Reason: reason} }
	must(t, set(s, because("bought more"), "payments/acme", "tenant", "limit=100"))
	must(t, second(s.Pause(t.Context(), because("the vendor asked"), "payments")))
	v, err := s.Current(t.Context())
	must(t, err)
	if v.Reason != "the vendor asked" || v.Pauses[0].Reason != v.Reason || v.Rules[0].Reason != "bought more" {
		t.Errorf("%+v", v)
	}
	must(t, set(s, anna, "payments/acme", "tenant", "limit=200"))
	must(t, second(s.Import(t.Context(), because(strings.Repeat("é", MaxReason/2)), policyOf(t, "limits: {}"), "f", true)))
	if v, err = s.Current(t.Context()); err != nil || len(v.Reason) != MaxReason || v.Imported.Reason != v.Reason {
		t.Errorf("%+v, %v", v, err)
	}
	history, err := s.History(t.Context())
	must(t, err)
	if before := history[len(history)-2]; before.Reason != "" || before.Rules[0].Reason != "" {
		t.Errorf("a change without a reason: %+v", before)
	}
	for _, wrong := range []string{strings.Repeat("x", MaxReason+1), "two\nlines", "\x1b[2J", "\xff"} {
		var refused *ReasonError
		if err := set(s, because(wrong), "payments", "account", "limit=1"); !errors.As(err, &refused) {
			t.Errorf("%.10q: %v", wrong, err)
		}
	}
}
