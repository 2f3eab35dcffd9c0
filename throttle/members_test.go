package throttle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/upstream"
)

// The state of a pool's members is that of their own levels, and of a scope below the pool Pace has the path alone.
func TestMembers(t *testing.T) {
	t.Parallel()
	scopes := `"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 7, per: 1s}]}, "@ci": {paused: true},
		"@*": {rules: [{name: key, algorithm: sliding-window, limit: 2, per: 1s}]}, "@bare": {rules: [{name: key, unlimited: true}]}`
	p := poolOf(t, "members: [alice, bob, ci, bare], choose: drain", scopes)
	b := newBench(t, redistest.Client(t), Config{}, p)
	b.wants(b.spends(1, Request{Scope: "github/acme"}), map[string]int{"alice": 1})
	if _, err := b.Report(ctx, "github/@bob", upstream.Hint{Limited: true, Status: 429, Retry: time.Minute, RetryKnown: true}); err != nil {
		t.Fatal(err)
	}
	now, err := b.Pace(ctx, "github/acme")
	noError(t, err)
	if len(now.Rules) != 1 || now.Rules[0].Rule != "tenant" || now.Rules[0].Remaining != 6 || now.Pool != "github" {
		t.Errorf("%+v", now)
	}
	list, err := b.Members(ctx, "github/acme")
	noError(t, err)
	if len(list) != 4 {
		t.Fatalf("%+v", list)
	}
	for i, want := range []struct {
		scope string
		rules int
		left  int64
		by    Hold
	}{{"github/@alice", 1, 1, ""}, {"github/@bob", 1, 2, HoldUpstream}, {"github/@ci", 2, 0, HoldPause}, {"github/@bare", 0, 0, ""}} {
		m := list[i]
		until, by := m.Held()
		if m.Scope != want.scope || "github/@"+m.Name != want.scope || len(m.Rules) != want.rules || by != want.by {
			t.Errorf("%+v, held by %q; want %+v", m, by, want)
			continue
		}
		if want.by == "" && want.rules > 0 && m.Rules[0].Remaining != want.left || want.by == HoldPause && !until.IsZero() {
			t.Errorf("%+v until %s, want %+v", m, until, want)
		}
		if in := until.Sub(m.At); want.by == HoldUpstream && (in < 50*time.Second || in > 61*time.Second) {
			t.Errorf("%s is paused for %s", m.Name, in)
		}
	}
	if list, err := b.Members(ctx, "github/@alice"); len(list) > 0 || err != nil {
		t.Errorf("a member has members: %+v, %v", list, err)
	}
}

// A decision has the place of its pool in the policy, without the names that tasks bring.
func TestDecisionHasItsPool(t *testing.T) {
	t.Parallel()
	p, err := limitsyaml.Parse("limits.yaml", []byte(`limits: {apis: {scopes: {"*": {pool: {members: [a]}, scopes: {"@*": {rules: [{name: key, algorithm: sliding-window, limit: 1, per: 1s}]}}}}}}`))
	noError(t, err)
	onBoth(t, Config{}, p, func(b *bench) {
		for range 2 { // allowed, and denied
			if d := b.decide(Request{Scope: "apis/acme/x"}); d.Pool != "apis/*" || d.Member != "a" || d.Rules[0].Pattern != "apis/*/@*" {
				t.Errorf("%+v", d)
			}
		}
	})
}

// "Costs two commands, and one more for each further 50 members."
func TestMembersCost(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint("m", i))
	}
	p := poolOf(t, "members: ["+strings.Join(names, ", ")+"]", `"@*": {rules: [{name: key, algorithm: sliding-window, limit: 2, per: 1s}]}`)
	rdb := redistest.NewServer(t).Client(t) // whose commands are counted
	b := newBench(t, rdb, Config{}, p)
	var list []Member
	read := func() {
		var err error
		list, err = b.Members(ctx, "github/acme")
		noError(t, err)
	}
	read() // loads the script
	sent := redistest.Commands(t, rdb, read)
	if sent["evalsha"] != 2 || sent["hmget"] > 3 || sent["time"] != 1 || len(list) != 100 {
		t.Errorf("%v for %d members", sent, len(list))
	}
	if i := slices.IndexFunc(list, func(m Member) bool { return len(m.Rules) != 1 || m.Rules[0].Remaining != 2 }); i >= 0 {
		t.Errorf("%+v", list[i])
	}
}
