package policystore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// What a scope is assigned stays when it is assigned something else, gives way to a file that is imported, and is rolled back and
// unset as limits are. The same again is no change, and what limits.yaml would refuse is refused.
func TestAssign(t *testing.T) {
	t.Parallel()
	type shares = map[string]policy.Share
	for name, c := range map[string]struct {
		as       Assigned
		change   string
		written  string
		same     *Assigned
		wrong    []Assigned
		imported string
		none     *Assigned
	}{
		"owner": {
			as: Assigned{Owner: new("payments-team")}, change: "owner=payments-team", written: "owner: payments-team",
			imported: "owner: other", none: &Assigned{Owner: new("")},
		},
		"apps": {
			as: Assigned{Apps: []string{"billing", "refunds"}}, change: "apps=billing,refunds", written: "apps: [billing, refunds]",
			wrong: []Assigned{{Apps: []string{"a/b"}}}, imported: "apps: [x]", none: &Assigned{Apps: []string{}},
		},
		"hosts": {
			as:     Assigned{Hosts: []string{"api.example.com", "*.example.org:8443"}},
			change: "hosts=api.example.com,*.example.org:8443", written: `hosts: [api.example.com, "*.example.org:8443"]`,
			wrong: []Assigned{{Hosts: []string{"https://a"}}}, imported: "hosts: [other.example.com]", none: &Assigned{Hosts: []string{}},
		},
		"weight": {as: Assigned{Weight: new(int64(5))}, change: "weight=5", written: "weight: 5", imported: "weight: 7"},
		"shares": {
			as:     Assigned{Shares: shares{"i": {Guaranteed: 60, Weight: 2}, "b": {Weight: 3}}},
			change: "shares={b: {weight: 3},i: {part: 60%,weight: 2}}", written: "shares: {b: {weight: 3}, i: {part: 60%, weight: 2}}",
			wrong: []Assigned{{Shares: shares{"i": {Guaranteed: 101}}}}, imported: "shares: {x: {part: 10%}}", none: &Assigned{Shares: shares{}},
		},
		"answers": {
			as: Assigned{Answers: new("{cut: 30%, most: 150%}")}, change: "answers={cut: 30%,most: 150%}", written: "answers: {cut: 30%, most: 150%}",
			same:     &Assigned{Answers: new("{mode: heed, most: 150%, cut: 30%}")},
			wrong:    []Assigned{{Answers: new("always")}, {Answers: new("{cut: 91%}")}, {Answers: new("[")}, {Answers: new("{mode: pause, most: 150%}")}},
			imported: "answers: pause", none: &Assigned{Answers: new("")},
		},
		"breaker": {
			as: Assigned{Breaker: new("{failures: 60%, wait: 1m}")}, change: "breaker={failures: 60%,wait: 1m}", written: "breaker: {failures: 60%, wait: 1m}",
			same:     &Assigned{Breaker: new("{wait: 60s, failures: 60%, of: 20}")},
			wrong:    []Assigned{{Breaker: new("always")}, {Breaker: new("{failures: 101%}")}, {Breaker: new("[")}, {Breaker: new("{}")}},
			imported: "breaker: {failures: 50%, shadow: true}", none: &Assigned{Breaker: new("")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := withFile(t)
			assign := func(as Assigned) (Made, error) { return s.Assign(t.Context(), anna, "payments", as) }
			made, err := assign(c.as)
			must(t, err)
			if made.Version.Change != "assign payments "+c.change {
				t.Errorf("%+v", made.Version)
			}
			other, says := Assigned{Weight: new(int64(9))}, "weight: 9"
			if name == "weight" {
				other, says = Assigned{Hosts: []string{"other.example.com"}}, "hosts: [other.example.com]"
			}
			must(t, second(assign(other)))
			has(t, s.nowSays(t), c.written, says, "limit: 200")
			if _, err := assign(*cmp.Or(c.same, &c.as)); !errors.Is(err, ErrUnchanged) {
				t.Errorf("the same again: %v", err)
			}
			for _, wrong := range c.wrong {
				if _, err := assign(wrong); err == nil || errors.Is(err, ErrUnchanged) {
					t.Errorf("%+v: %v", wrong, err)
				}
			}
			must(t, second(s.Import(t.Context(), bert, policyOf(t, "limits: {payments: {"+c.imported+"}}"), "f", false)))
			has(t, s.nowSays(t), c.imported, says, "limit: 200")
			if c.none != nil {
				must(t, second(assign(*c.none)))
				has(t, s.nowSays(t), "!"+name+":", says)
			}
			must(t, second(s.Rollback(t.Context(), anna, made.Version.Number)))
			has(t, s.nowSays(t), c.written, "!"+says)
			must(t, second(s.Unset(t.Context(), anna, "payments", "")))
			has(t, s.nowSays(t), "!"+name+":")
		})
	}
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
	return second(s.Pause(context.Background(), e, scope))
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	made, err := s.Pause(ctx, anna, "payments/*")
	must(t, err)
	if made.Version.Change != "pause payments/*" || made.Before != nil || !strings.Contains(string(limitsyaml.Format(made.Policy)), "paused: true") {
		t.Errorf("%+v", made)
	}
	has(t, s.nowSays(t), "paused: true", "!paused_until", "limit: 20", "limit: 200")
	must(t, second(s.Resume(ctx, bert, "payments/acme"))) // one name of those that "*" stands for
	has(t, s.nowSays(t), "acme:\n        paused: false")
	must(t, second(s.Resume(ctx, bert, "payments/*")))
	has(t, s.nowSays(t), "!paused: true", "paused: false") // the word of acme stays
	// One that has no rules, nor a place in the limits.
	must(t, second(s.Pause(ctx, anna, "mail/x/y")))
	has(t, s.nowSays(t), "mail:")
	made, err = s.Resume(ctx, bert, "mail/x/y")
	must(t, err)
	if p := made.Before; p == nil || p.UpdatedBy != "anna" || p.CreatedAt.IsZero() || made.Version.Change != "resume mail/x/y" {
		t.Errorf("%+v", made)
	}
	has(t, s.nowSays(t), "!mail:")
	must(t, second(s.Unset(ctx, anna, "payments/acme", "")))
	if v, err := s.Current(ctx); err != nil || len(v.Overrides) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestPauseRefuses(t *testing.T) {
	t.Parallel()
	s, _ := withFile(t)
	ctx := t.Context()
	pause := func(e Edit, scope string) error { return paused(s, e, scope) }
	resume := func(scope string) error { return second(s.Resume(ctx, bert, scope)) }
	must(t, pause(anna, "payments"))
	s.refuses(t, map[string]func() error{
		"it is so already":                       func() error { return pause(bert, "payments") },
		`payments//x is a place of the tier "x"`: func() error { return pause(bert, "payments//x") },
		`scope "": is empty`:                     func() error { return pause(bert, "") },
		"for 100ms is too short":                 func() error { return pause(Edit{By: "bert", For: 100 * time.Millisecond}, "payments") },
		"paused_until is not between":            func() error { return pause(Edit{By: "bert", For: 250 * 366 * 24 * time.Hour}, "payments") },
		"needs an author":                        func() error { return pause(Edit{}, "payments") },
		"meant for version 7":                    func() error { return pause(Edit{By: "bert", IfVersion: 7}, "payments") },
		"search is not paused":                   func() error { return resume("search") },
		"payments/acme is not paused itself; payments is, and all that lies below it": func() error { return resume("payments/acme") },
		"payments/* is not paused": func() error { return resume("payments/*") },
	})
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
	if p := made.Before; p == nil || p.UpdatedBy != "bert" || !p.Until.Equal(until) {
		t.Errorf("%+v", p)
	}
	s.says(t, time.Hour+time.Minute, "paused: true")
	made, err = s.Pause(ctx, anna, "payments")
	must(t, err)
	if p := made.Version.Overrides[0]; !p.CreatedAt.Before(p.UpdatedAt) || !p.Until.IsZero() {
		t.Errorf("%+v", p)
	}
	s.says(t, 1000*time.Hour, "paused: true", "!paused_until")
	// One who was resumed under "*" is resumed again.
	must(t, second(s.Pause(ctx, anna, "payments/*")))
	must(t, second(s.Resume(ctx, anna, "payments/acme")))
	for range 2 {
		must(t, second(s.Pause(ctx, hour, "payments/acme")))
	}
	s.says(t, time.Minute, "acme:\n        paused: true\n        paused_until:")
	s.says(t, 2*time.Hour, "acme:\n        paused: false\n")
}

// A file may pause a scope, with an end or without. What is said live lies over it.
func TestPauseInAFile(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	ctx := t.Context()
	at, err := s.Time(ctx)
	must(t, err)
	until := at.Add(time.Hour).Format(time.RFC3339Nano)
	text := "limits:\n  a: {paused: true}\n  b: {paused: true, paused_until: " + until + "}\n  c: {paused: true, paused_until: 2020-01-31T12:00:00Z}\n"
	_, v, err := s.PublishFile(ctx, "worker one", policyOf(t, text), false)
	must(t, err)
	has(t, s.nowSays(t), "a:\n    paused: true\n", "paused_until: "+until, "c: {}")
	if _, next, err := s.Policy(ctx, v, v.At); err != nil || next.Format(time.RFC3339Nano) != until {
		t.Errorf("%s, %v", next, err)
	}
	s.says(t, 2*time.Hour, "b: {}")
	must(t, second(s.Resume(ctx, anna, "a")))
	has(t, s.nowSays(t), "a:\n    paused: false\n")
	must(t, second(s.Unset(ctx, anna, "a", "")))
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
		for _, p := range v.Overrides {
			got = append(got, fmt.Sprint(p.Scope, " ", !p.Resumed()))
		}
		if strings.Join(got, ", ") != strings.Join(scopes, ", ") {
			t.Errorf("%q, want %q", got, scopes)
		}
	}
	for _, scope := range []string{"payments", "search", "mail/*"} {
		must(t, second(s.Pause(ctx, anna, scope)))
	}
	must(t, second(s.Resume(ctx, anna, "mail/x")))
	says("mail/* true", "mail/x false", "payments true", "search true")
	other := "limits: {payments: {paused: false}, mail: {scopes: {x: {paused: true}}}}"
	must(t, second(s.Import(ctx, bert, policyOf(t, other), "other.yaml", false)))
	says("mail/* true", "mail/x true", "payments false", "search true")
	if _, err := s.Import(ctx, bert, policyOf(t, other), "other.yaml", false); !errors.Is(err, ErrUnchanged) {
		t.Errorf("the same again: %v", err)
	}
	must(t, second(s.Rollback(ctx, anna, 5)))
	says("mail/* true", "mail/x false", "payments true", "search true")
	must(t, second(s.Import(ctx, bert, policyOf(t, other), "other.yaml", true)))
	says("mail/* true", "search true")
	has(t, s.nowSays(t), "payments:\n    paused: false", "x:\n        paused: true")
	must(t, second(s.Rollback(ctx, anna, 1)))
	says()
	must(t, second(s.Pause(ctx, anna, "payments")))
	must(t, second(s.Unset(ctx, anna, "", "")))
	says()
}
