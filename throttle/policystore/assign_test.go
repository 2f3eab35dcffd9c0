package policystore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

func TestAssign(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	owner := "payments-team"
	made, err := s.Assign(ctx, anna, "payments", &owner, []string{"billing", "refunds"})
	must(t, err)
	if made.Version.Change != "assign payments owner=payments-team apps=billing,refunds" {
		t.Errorf("%+v", made.Version)
	}
	has(t, s.nowSays(t), "owner: payments-team", "apps: [billing, refunds]", "limit: 200")
	_, err = s.Assign(ctx, bert, "payments", nil, []string{}) // the owner stays
	must(t, err)
	has(t, s.nowSays(t), "owner: payments-team", "!apps:")
	if _, err = s.Assign(ctx, bert, "payments", &owner, nil); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	if _, err = s.Assign(ctx, bert, "payments", nil, []string{"a/b"}); err == nil {
		t.Error("a name that is none was taken")
	}
	_, err = s.Rollback(ctx, anna, 2)
	must(t, err)
	has(t, s.nowSays(t), "apps: [billing, refunds]")
	_, err = s.Unset(ctx, anna, "payments", "")
	must(t, err)
	has(t, s.nowSays(t), "!owner", "!apps")
	_, err = s.Import(ctx, anna, policyOf(t, "limits: {payments: {owner: other, apps: [x]}}"), "f", false)
	must(t, err)
	has(t, s.nowSays(t), "owner: other", "apps: [x]", "limit: 200")
}

func TestAssignHosts(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	made, err := s.Reassign(ctx, anna, "payments", Assigned{Hosts: []string{"api.example.com", "*.example.org:8443"}})
	must(t, err)
	if made.Version.Change != "assign payments hosts=api.example.com,*.example.org:8443" {
		t.Errorf("%+v", made.Version)
	}
	has(t, s.nowSays(t), `hosts: [api.example.com, "*.example.org:8443"]`)
	if _, err = s.Reassign(ctx, anna, "payments", Assigned{Hosts: []string{"https://a"}}); err == nil {
		t.Error("a URL was taken")
	}
	_, err = s.Import(ctx, anna, policyOf(t, "limits: {payments: {hosts: [other.example.com]}}"), "f", false)
	must(t, err)
	has(t, s.nowSays(t), "hosts: [other.example.com]", "limit: 200")
	_, err = s.Reassign(ctx, anna, "payments", Assigned{Hosts: []string{}})
	must(t, err)
	has(t, s.nowSays(t), "!hosts")
}

func TestAssignShares(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx, weight, team := t.Context(), int64(5), "payments-team"
	shares := map[string]policy.Share{"i": {Guaranteed: 60, Weight: 2}, "b": {Weight: 3}}
	made, err := s.Reassign(ctx, anna, "payments", Assigned{Weight: &weight, Shares: shares})
	must(t, err)
	if made.Version.Change != "assign payments weight=5 shares=b:3,i:60%:2" {
		t.Errorf("%+v", made.Version)
	}
	has(t, s.nowSays(t), "weight: 5", "shares: {b: {weight: 3}, i: {part: 60%, weight: 2}}", "limit: 200")
	_, err = s.Assign(ctx, bert, "payments", &team, nil) // the weight and the shares stay
	must(t, err)
	has(t, s.nowSays(t), "owner: payments-team", "weight: 5", "shares: {b:")
	if _, err = s.Reassign(ctx, bert, "payments", Assigned{Weight: &weight, Shares: shares}); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	_, err = s.Reassign(ctx, bert, "payments", Assigned{Shares: map[string]policy.Share{}})
	must(t, err)
	has(t, s.nowSays(t), "owner: payments-team", "weight: 5", "!shares")
	if _, err = s.Reassign(ctx, bert, "payments", Assigned{Shares: map[string]policy.Share{"i": {Guaranteed: 101}}}); err == nil {
		t.Error("a part of 101 % was taken")
	}
	_, err = s.Import(ctx, anna, policyOf(t, "limits: {payments: {weight: 7, shares: {x: {part: 10%}}}}"), "f", false)
	must(t, err)
	has(t, s.nowSays(t), "owner: payments-team", "weight: 7", "shares: {x: {part: 10%}}", "limit: 200")
	_, err = s.Unset(ctx, anna, "payments", "")
	must(t, err)
	has(t, s.nowSays(t), "!weight", "!shares", "!owner")
}

// What follows from answers is assigned, taken away, imported and taken back as limits.yaml
// has it; one that is none is refused.
func TestAssignAnswers(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx, weight := t.Context(), int64(5)
	assign := func(text string) (Made, error) {
		return s.Reassign(ctx, anna, "payments", Assigned{Answers: &text})
	}
	made, err := assign("{cut: 30%, most: 150%}")
	must(t, err)
	if made.Version.Change != "assign payments answers={cut: 30%, most: 150%}" {
		t.Errorf("%+v", made.Version)
	}
	has(t, s.nowSays(t), "answers: {cut: 30%, most: 150%}", "limit: 200")
	if _, err := assign("{mode: heed, most: 150%, cut: 30%}"); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	_, err = s.Reassign(ctx, bert, "payments", Assigned{Weight: &weight}) // the answers stay
	must(t, err)
	has(t, s.nowSays(t), "weight: 5", "answers: {cut: 30%, most: 150%}")
	for _, text := range []string{"always", "{cut: 91%}", "[", "{mode: pause, most: 150%}"} {
		if _, err := assign(text); err == nil || errors.Is(err, ErrUnchanged) {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, err = assign("")
	must(t, err)
	has(t, s.nowSays(t), "weight: 5", "!answers")
	_, err = s.Import(ctx, anna, policyOf(t, "limits: {payments: {answers: pause}}"), "f", false)
	must(t, err)
	has(t, s.nowSays(t), "weight: 5", "answers: pause")
	_, err = s.Unset(ctx, anna, "payments", "")
	must(t, err)
	has(t, s.nowSays(t), "!answers", "!weight")
}

// A cap of priorities is assigned, taken away, imported and taken back. 0 is a cap of its own, and one that
// is taken away lets that of "*" count again.
func TestAssignMaxPriority(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	assign := func(as Assigned) (Made, error) { return s.Reassign(ctx, anna, "payments/acme", as) }
	must(t, second(s.Reassign(ctx, anna, "payments/*", Assigned{MaxPriority: new(7)})))
	counts := func(want int, limited bool) {
		t.Helper()
		v, err := s.Current(ctx)
		must(t, err)
		p, _, err := s.Policy(ctx, v, time.Now())
		must(t, err)
		scope, err := policy.ParseScope("payments/acme")
		must(t, err)
		if got, is := p.MaxPriority(scope); got != want || is != limited {
			t.Errorf("%d, %t, want %d, %t", got, is, want, limited)
		}
	}
	counts(7, true)
	made, err := assign(Assigned{MaxPriority: new(0)})
	must(t, err)
	if made.Version.Change != "assign payments/acme max_priority=0" {
		t.Errorf("%+v", made.Version)
	}
	counts(0, true)
	if _, err := assign(Assigned{MaxPriority: new(0)}); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	must(t, second(s.Reassign(ctx, bert, "payments/acme", Assigned{Weight: new(int64(5))}))) // the cap stays
	has(t, s.nowSays(t), "weight: 5", "max_priority: 0")
	for _, wrong := range []int{1000001, -1000001} {
		if _, err := assign(Assigned{MaxPriority: &wrong}); err == nil || errors.Is(err, ErrUnchanged) {
			t.Errorf("%d: %v", wrong, err)
		}
	}
	made, err = assign(Assigned{NoMaxPriority: true})
	must(t, err)
	if made.Version.Change != "assign payments/acme max_priority=" {
		t.Errorf("%+v", made.Version)
	}
	counts(7, true)
	if _, err := assign(Assigned{NoMaxPriority: true}); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	must(t, second(assign(Assigned{MaxPriority: new(9)})))
	counts(9, true)
	must(t, second(s.Import(ctx, anna, policyOf(t, "limits: {payments: {scopes: {acme: {max_priority: -3}}}}"), "f", false)))
	counts(-3, true)
	must(t, second(s.Unset(ctx, anna, "payments/acme", "")))
	counts(7, true)
	must(t, second(s.Unset(ctx, anna, "payments/*", "")))
	counts(0, false)
}

func second(_ Made, err error) error { return err }

// says holds what the store says in so long against parts.
func (s *Store) says(t *testing.T, in time.Duration, parts ...string) {
	t.Helper()
	v, err := s.Current(t.Context())
	must(t, err)
	p, _, err := s.Policy(t.Context(), v, v.At.Add(in))
	must(t, err)
	has(t, string(limitsyaml.Format(p)), parts...)
}

func paused(s *Store, e Edit, scope string) error {
	_, err := s.Pause(context.Background(), e, scope)
	return err
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	made, err := s.Pause(ctx, anna, "payments/*")
	must(t, err)
	if made.Version.Change != "pause payments/*" || made.PauseBefore != nil || !strings.Contains(string(limitsyaml.Format(made.Policy)), "paused: true") {
		t.Errorf("%+v", made)
	}
	has(t, s.nowSays(t), "paused: true", "!paused_until", "limit: 20", "limit: 200")
	_, err = s.Resume(ctx, bert, "payments/acme") // one name of those that "*" stands for
	must(t, err)
	has(t, s.nowSays(t), "acme:\n        paused: false")
	_, err = s.Resume(ctx, bert, "payments/*")
	must(t, err)
	has(t, s.nowSays(t), "!paused: true", "paused: false") // the word of acme stays
	// One that has no rules, nor a place in the limits.
	_, err = s.Pause(ctx, anna, "mail/x/y")
	must(t, err)
	has(t, s.nowSays(t), "mail:")
	made, err = s.Resume(ctx, bert, "mail/x/y")
	must(t, err)
	if p := made.PauseBefore; p == nil || p.UpdatedBy != "anna" || p.Since.IsZero() || made.Version.Change != "resume mail/x/y" {
		t.Errorf("%+v", made)
	}
	has(t, s.nowSays(t), "!mail:")
	_, err = s.Unset(ctx, anna, "payments/acme", "")
	must(t, err)
	if v, err := s.Current(ctx); err != nil || len(v.Pauses) != 0 || !v.Edited {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestPauseRefuses(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	pause := func(e Edit, scope string) error { _, err := s.Pause(ctx, e, scope); return err }
	resume := func(scope string) error { _, err := s.Resume(ctx, bert, scope); return err }
	must(t, pause(anna, "payments"))
	for want, do := range map[string]func() error{
		"it is so already":            func() error { return pause(bert, "payments") },
		"name is empty":               func() error { return pause(bert, "payments//x") },
		`scope "": is empty`:          func() error { return pause(bert, "") },
		"for 100ms is too short":      func() error { return pause(Edit{By: "bert", For: 100 * time.Millisecond}, "payments") },
		"paused_until is not between": func() error { return pause(Edit{By: "bert", For: 250 * 366 * 24 * time.Hour}, "payments") },
		"needs somebody":              func() error { return pause(Edit{}, "payments") },
		"meant for version 7":         func() error { return pause(Edit{By: "bert", IfVersion: 7}, "payments") },
		"search is not paused":        func() error { return resume("search") },
		"payments/acme is not paused itself; payments is, and all that lies below it": func() error { return resume("payments/acme") },
		"payments/* is not paused": func() error { return resume("payments/*") },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if v, err := s.Current(ctx); err != nil || v.Number != 2 {
		t.Errorf("a refused change changed something: %+v, %v", v, err)
	}
}

func TestPauseForATime(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	hour := Edit{By: "bert", For: time.Hour}
	made, err := s.Pause(ctx, hour, "payments")
	must(t, err)
	if made.Version.Change != "pause payments for 1h0m0s" {
		t.Errorf("%+v", made.Version)
	}
	until := made.Version.At.Add(time.Hour)
	has(t, s.nowSays(t), "paused: true", "paused_until: "+until.Format(time.RFC3339Nano))
	_, next, err := s.Policy(ctx, made.Version, made.Version.At)
	if err != nil || !next.Equal(until) {
		t.Errorf("%s, %v; want %s", next, err, until)
	}
	s.says(t, time.Hour, "!paused")
	// Another end, and none: it was paused since the first.
	made, err = s.Pause(ctx, Edit{By: "anna", For: 2 * time.Hour}, "payments")
	must(t, err)
	if p := made.PauseBefore; p == nil || p.UpdatedBy != "bert" || !p.Until.Equal(until) {
		t.Errorf("%+v", p)
	}
	s.says(t, time.Hour+time.Minute, "paused: true")
	made, err = s.Pause(ctx, anna, "payments")
	must(t, err)
	if p := made.Version.Pauses[0]; !p.Since.Before(p.UpdatedAt) || !p.Until.IsZero() {
		t.Errorf("%+v", p)
	}
	s.says(t, 1000*time.Hour, "paused: true", "!paused_until")
	// One who was resumed under "*" is resumed again.
	_, err = s.Pause(ctx, anna, "payments/*")
	must(t, err)
	_, err = s.Resume(ctx, anna, "payments/acme")
	must(t, err)
	for range 2 {
		_, err = s.Pause(ctx, hour, "payments/acme")
		must(t, err)
	}
	s.says(t, time.Minute, "acme:\n        paused: true\n        paused_until:")
	s.says(t, 2*time.Hour, "acme:\n        paused: false\n")
}

// A file may pause a scope, with an end or without. What is said live lies over it.
func TestPauseInAFile(t *testing.T) {
	t.Parallel()
	s, rdb := newStore(t)
	ctx := t.Context()
	at, err := s.now(ctx, rdb)
	must(t, err)
	until := at.Add(time.Hour).Format(time.RFC3339Nano)
	text := "limits:\n  a: {paused: true}\n  b: {paused: true, paused_until: " + until + "}\n  c: {paused: true, paused_until: 2020-01-31T12:00:00Z}\n"
	_, v, err := s.PublishFile(ctx, "worker one", policyOf(t, text), nil)
	must(t, err)
	has(t, s.nowSays(t), "a:\n    paused: true\n", "paused_until: "+until, "c: {}")
	if _, next, err := s.Policy(ctx, v, v.At); err != nil || next.Format(time.RFC3339Nano) != until {
		t.Errorf("%s, %v", next, err)
	}
	s.says(t, 2*time.Hour, "b: {}")
	_, err = s.Resume(ctx, anna, "a")
	must(t, err)
	has(t, s.nowSays(t), "a:\n    paused: false\n")
	_, err = s.Unset(ctx, anna, "a", "")
	must(t, err)
	has(t, s.nowSays(t), "a:\n    paused: true\n")
}

// docs/limits.md: what is paused stays paused when limits are imported that say nothing of
// it, and is as it was when they are rolled back.
func TestPausesAndOtherChanges(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	says := func(scopes ...string) {
		t.Helper()
		v, err := s.Current(ctx)
		must(t, err)
		var got []string
		for _, p := range v.Pauses {
			got = append(got, fmt.Sprint(p.Scope, " ", !p.Resumed))
		}
		if strings.Join(got, ", ") != strings.Join(scopes, ", ") {
			t.Errorf("%q, want %q", got, scopes)
		}
	}
	for _, scope := range []string{"payments", "search", "mail/*"} {
		_, err := s.Pause(ctx, anna, scope)
		must(t, err)
	}
	_, err := s.Resume(ctx, anna, "mail/x")
	must(t, err)
	says("mail/* true", "mail/x false", "payments true", "search true")
	other := "limits: {payments: {paused: false}, mail: {scopes: {x: {paused: true}}}}"
	_, err = s.Import(ctx, bert, policyOf(t, other), "other.yaml", false)
	must(t, err)
	says("mail/* true", "mail/x true", "payments false", "search true")
	if _, err = s.Import(ctx, bert, policyOf(t, other), "other.yaml", false); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	_, err = s.Rollback(ctx, anna, 5)
	must(t, err)
	says("mail/* true", "mail/x false", "payments true", "search true")
	_, err = s.Import(ctx, bert, policyOf(t, other), "other.yaml", true)
	must(t, err)
	says("mail/* true", "search true")
	has(t, s.nowSays(t), "payments:\n    paused: false", "x:\n        paused: true")
	_, err = s.Rollback(ctx, anna, 1)
	must(t, err)
	says()
	_, err = s.Pause(ctx, anna, "payments")
	must(t, err)
	_, err = s.Unset(ctx, anna, "", "")
	must(t, err)
	says()
}
