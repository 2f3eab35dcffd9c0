package throttle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
)

// poolOf is a policy with a pool at github; members is what follows in its mapping, and scopes the names below it.
func poolOf(t *testing.T, members, scopes string) *policy.Policy {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {github: {pool: {"+members+"}, scopes: {"+scopes+"}}}"))
	noError(t, err)
	return p
}

const (
	three      = `members: [alice, bob, ci]`
	threeRules = `"@alice": {rules: [{name: key, algorithm: sliding-window, limit: 50, per: 1s}]},
		"@bob": {rules: [{name: key, algorithm: sliding-window, limit: 100, per: 1s}]},
		"@ci": {rules: [{name: key, algorithm: sliding-window, limit: 200, per: 1s}]}`
)

// spends has so many requests decided, and returns how many each member was granted. "" stands for denials.
func (b *bench) spends(many int, req Request) map[string]int {
	b.t.Helper()
	got := map[string]int{}
	for range many {
		d := b.decide(req)
		switch {
		case !d.Allowed:
			got[""]++
		case d.Member == "" || d.Member != d.Grant.Member():
			b.t.Fatalf("granted without a member: %+v", d)
		default:
			got[d.Member]++
		}
	}
	return got
}

func (b *bench) wants(got, want map[string]int) {
	b.t.Helper()
	if !maps.Equal(got, want) {
		b.t.Errorf("the members got %v, want %v", got, want)
	}
}

// "A task is granted one member with room under all its rules": the whole joint quota is used, and no member's is exceeded.
func TestPoolUsesTheJointQuota(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, poolOf(t, three, threeRules), func(b *bench) {
		acme := Request{Scope: "github/acme"}
		b.wants(b.spends(400, acme), map[string]int{"alice": 50, "bob": 100, "ci": 200, "": 50})
		d := b.decide(acme)
		if d.RetryAfter != time.Second || len(d.Rules) != 1 || d.Rules[0].Rule != "key" || d.Member == "" {
			t.Errorf("denied as %+v", d)
		}
		b.pass(time.Second)
		var grants []Grant
		for range 350 {
			grants = append(grants, b.decide(acme).Grant)
		}
		i := slices.IndexFunc(grants, func(g Grant) bool { return g.Member() == "bob" })
		b.giveBack(grants[i])
		b.giveBack(grants[i])
		b.wants(b.spends(2, acme), map[string]int{"bob": 1, "": 1})
	})
}

// The rules of the path count beside those of the member.
func TestPoolBelowSharedRules(t *testing.T) {
	t.Parallel()
	tenant := `"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 3, per: 1s}]}, `
	onBoth(t, Config{}, poolOf(t, `members: [a, b]`, tenant+`"@*": {rules: [{name: key, algorithm: sliding-window, limit: 2, per: 1s}]}`), func(b *bench) {
		b.wants(b.spends(4, Request{Scope: "github/one", Cost: 1}), map[string]int{"": 1, "a": 2 - b.leftOf("a"), "b": 2 - b.leftOf("b")})
		if b.leftOf("a")+b.leftOf("b") != 1 {
			t.Error("3 of 4 units are not charged")
		}
		d := b.decide(Request{Scope: "github/two"})
		if state, ok := d.Rule("github/@"+d.Member, "key"); !d.Allowed || !ok || state.Remaining != 0 || len(d.Rules) != 2 {
			t.Errorf("%+v", d)
		}
		if d := b.decide(Request{Scope: "github/two"}); d.Allowed || d.Binding != 1 {
			t.Errorf("%+v", d)
		}
	})
}

// leftOf is what a member's rule has left.
func (b *bench) leftOf(member string) int {
	b.t.Helper()
	d, err := b.Peek(ctx, Request{Scope: "github/@" + member})
	noError(b.t, err)
	return int(d.Rules[0].Remaining)
}

func TestPoolOrder(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 4, per: 1s}]}`
	for members, want := range map[string][]string{
		`members: [a, b, c], choose: drain`:                                       {"a", "b", "c"},
		`members: [a, {name: b, priority: 1}, c], choose: drain`:                  {"b", "a", "c"},
		`members: [{name: a, priority: -1}, {name: b, priority: 9}, {name: c}]`:   {"b", "c", "a"},
		`members: [{name: a, priority: -1}, {name: b, priority: -2}, {name: c}] `: {"c", "a", "b"},
	} {
		onBothIn(t, members, Config{}, poolOf(t, members, rules), func(b *bench) {
			for _, member := range want {
				b.wants(b.spends(4, Request{Scope: "github/acme"}), map[string]int{member: 4})
			}
			b.wants(b.spends(1, Request{Scope: "github/acme"}), map[string]int{"": 1})
		})
	}
}

// "Spread divides starts by weight, to about a percent", and what a member without room leaves goes to all others.
func TestPoolSpreads(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 100000, per: 1h}]}, "@d": {rules: [{name: key, algorithm: sliding-window, limit: 0, per: 1h}]}`
	members := `members: [a, b, {name: c, weight: 2}, {name: d, weight: 4}]`
	b := newBench(t, redistest.Client(t), Config{}, poolOf(t, members, rules))
	got := map[string]int{}
	for i := range 4000 {
		b.pass(time.Duration(1+i%7) * 137 * time.Microsecond)
		got[b.decide(Request{Scope: "github/acme"}).Member]++
	}
	for member, want := range map[string]int{"a": 1000, "b": 1000, "c": 2000} {
		if n := got[member]; n < want*85/100 || n > want*115/100 {
			t.Errorf("%s has %d of 4000, want some %d: %v", member, n, want, got)
		}
	}
}

// "The same tenant has the same member while that has room, then the same second one."
func TestPoolAffinity(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 5, per: 1s}]}`
	onBoth(t, Config{}, poolOf(t, `members: [a, b, c, d, e], affinity: tenant`, rules), func(b *bench) {
		used := map[string]bool{}
		for i := range 20 {
			tenant := "github/" + strconv.Itoa(i)
			d := b.decide(Request{Scope: tenant})
			first := d.Member
			used[first] = true
			b.wants(b.spends(4, Request{Scope: tenant + "/deeper"}), map[string]int{first: 4})
			second := b.decide(Request{Scope: tenant}).Member
			b.wants(b.spends(4, Request{Scope: tenant}), map[string]int{second: 4})
			b.pass(time.Second)
			if again := b.decide(Request{Scope: tenant}); again.Member != first {
				t.Errorf("%s has %s, and %s later", tenant, first, again.Member)
			}
			b.pass(time.Second)
		}
		if len(used) < 4 {
			t.Errorf("20 tenants share %v", used)
		}
	})
}

// Members may share the rules of an account above them.
func TestPoolOfAnAccount(t *testing.T) {
	t.Parallel()
	rules := `"@acc": {rules: [{name: account, algorithm: sliding-window, limit: 5, per: 1s}], scopes: {"*": {rules: [{name: key, algorithm: sliding-window, limit: 3, per: 1s}]}}}`
	onBoth(t, Config{}, poolOf(t, `members: [acc/one, acc/two], choose: drain`, rules), func(b *bench) {
		b.wants(b.spends(6, Request{Scope: "github/acme"}), map[string]int{"acc/one": 3, "acc/two": 2, "": 1})
	})
}

// A paused member is passed by, whoever paused it.
func TestPoolPausedMember(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 2, per: 1s}]}, "@b": {paused: true}`
	onBoth(t, Config{}, poolOf(t, `members: [a, b, c]`, rules), func(b *bench) {
		b.wants(b.spends(5, Request{Scope: "github/acme"}), map[string]int{"a": 2, "c": 2, "": 1})
		b.pass(time.Second)
		_, err := b.Report(ctx, "github/@a", upstream.Hint{Limited: true, Status: 429, Retry: time.Minute, RetryKnown: true})
		noError(t, err)
		b.wants(b.spends(3, Request{Scope: "github/acme"}), map[string]int{"c": 2, "": 1})
		if d := b.decide(Request{Scope: "github/acme"}); d.Paused || d.RetryAfter != time.Second {
			t.Errorf("%+v", d)
		}
	})
}

// A cost is refused for good if no member can ever admit it.
func TestPoolCost(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, poolOf(t, three, threeRules))
	b.wants(b.spends(1, Request{Scope: "github/acme", Cost: 150}), map[string]int{"ci": 1})
	var cost *policy.CostError
	if _, err := b.Decide(ctx, Request{Scope: "github/acme", Cost: 201}); !errors.As(err, &cost) {
		t.Errorf("201 units: %v", err)
	}
}

// An attempt that is sent again has the same member; a peek takes nothing.
func TestPoolRepeated(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, poolOf(t, three, threeRules), func(b *bench) {
		for i := range 20 {
			id := strconv.Itoa(i)
			first := b.decide(Request{Scope: "github/acme", ID: id})
			for range 3 {
				b.pass(1234 * time.Microsecond)
				if d := b.decide(Request{Scope: "github/acme", ID: id}); !d.Allowed || d.Member != first.Member {
					t.Errorf("%+v after %+v", d, first)
				}
			}
		}
		d, err := b.Peek(ctx, Request{Scope: "github/acme"})
		noError(t, err)
		if left := b.leftOf("alice") + b.leftOf("bob") + b.leftOf("ci"); left != 330 || !d.Allowed || d.Member == "" {
			t.Errorf("%d units are left, and %+v", left, d)
		}
	})
}

// What is settled, kept and released is of the member that was granted, also after the limits have changed.
func TestPoolSettles(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 9, per: 1h}, {name: runs, algorithm: concurrency, limit: 1, lease: 30s}]}`
	onBoth(t, Config{}, poolOf(t, `members: [a, b]`, rules), func(b *bench) {
		d := b.decide(Request{Scope: "github/acme", Cost: 3})
		member, other := d.Member, map[string]string{"a": "b", "b": "a"}[d.Member]
		b.wants(b.spends(2, Request{Scope: "github/acme"}), map[string]int{other: 1, "": 1})
		settled, err := b.Settle(ctx, d.Grant, policy.Costs{policy.Requests: 5})
		noError(t, err)
		if len(settled.Rules) != 1 || settled.Rules[0].Scope != "github/@"+member || b.leftOf(member) != 4 {
			t.Errorf("%+v, %d left", settled, b.leftOf(member))
		}
		noError(t, b.SaveGrant(ctx, d.Grant, "task", time.Hour))
		_, lease := b.Lease(context.Background(), d.Grant)
		noError(t, lease.Release(ctx))
		b.wants(b.spends(2, Request{Scope: "github/acme"}), map[string]int{member: 1, "": 1})
		b.SetPolicy(poolOf(t, `members: [c, b, a], choose: drain`, rules))
		kept, err := b.LoadGrant(ctx, "github/acme", "task")
		noError(t, err)
		if kept.Member() != member {
			t.Errorf("kept for %q, granted with %q", kept.Member(), member)
		}
		noError(t, b.Refund(ctx, kept))
		if left := b.leftOf(member); left != 8 {
			t.Errorf("%d of 9 are left of %s", left, member)
		}
		b.SetPolicy(poolOf(t, `members: [c]`, rules))
		noError(t, b.Refund(ctx, d.Grant)) // its member is gone
	})
}

// "No call without a member": a pool is closed while Redis does not answer, whatever the rules say.
func TestPoolWithoutRedis(t *testing.T) {
	t.Parallel()
	rules := `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 9, per: 1h, on_redis_error: open}]}`
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{Timeout: 50 * time.Millisecond}, poolOf(t, `members: [a]`, rules))
	noError(t, rdb.Close())
	if d, err := b.Decide(ctx, Request{Scope: "github/acme"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%+v, %v", d, err)
	}
}
