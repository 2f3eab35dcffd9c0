package policystore

import (
	"errors"
	"testing"
	"time"

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
