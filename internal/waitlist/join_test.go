package waitlist

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// Join gives places in order within a scope and queue, a task that has a place keeps it, and each learns what it waits for.
func TestJoin(t *testing.T) {
	t.Parallel()
	slow := perSecond("slow", 1)
	slow.MaxWait = time.Minute
	p := start(t, tenants(t, []policy.Rule{perSecond("all", 100)}, []policy.Rule{slow}))
	var mixed []Waiter
	for i := range 100 {
		mixed = append(mixed, tasks("p/a", "q", 100)[i], tasks("p/b", "q", 100)[i], tasks("p/a", "other", 100)[i])
	}
	out := p.joins(mixed...)
	for i, one := range out {
		if one.Ahead != int64(i/3) || one.MaxWait != time.Minute {
			t.Fatalf("%v: %+v", mixed[i], one)
		}
	}
	if last := out[297]; last.Binding.Rule.Name != "slow" || last.Expected < 196*second || last.Expected > 200*second { // with 99 of the other queue
		t.Errorf("the hundredth: %+v", last)
	}
	again := p.joins(mixed[3], Waiter{Scope: "p/a", Queue: "q", ID: "first", Priority: 7}, Waiter{Scope: "p/a", Queue: "q", ID: "last", Priority: -7})
	if again[0].Ahead != 2 && again[0].Ahead != 1 || again[1].Ahead != 0 || again[2].Ahead != 101 {
		t.Errorf("again, and by priority: %+v", again)
	}
}

// A task that can never start has no place, and neither has one that no rule applies to.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	p := start(t, limits(t, policy.UnmatchedAllow, map[string]policy.ScopeConfig{
		"p": {Rules: []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 5, Per: second}}},
	}))
	out, err := p.Join(t.Context(), []Waiter{
		{Scope: "p", Queue: "q", ID: "dear", Cost: 6},
		{Scope: "p", Queue: "q", ID: "dear by unit", Costs: policy.Costs{"requests": 6}},
		{Scope: "p", Queue: "q", ID: "negative", Cost: -1},
		{Scope: "p//x", Queue: "q", ID: "no scope"},
		{Scope: "p", Queue: "q", ID: "high", Priority: policy.MaxPriority + 1},
		{Scope: "p", Queue: "q", ID: "nothing", Costs: policy.Costs{"requests": 0}},
		{Scope: "other", Queue: "q", ID: "free"},
		{Scope: "p", Queue: "q", ID: "fits", Cost: 5},
	})
	must(t, err)
	for i := range 3 {
		if !errors.As(out[i].Err, new(*policy.CostError)) {
			t.Errorf("%d: %+v", i, out[i])
		}
	}
	if !errors.As(out[3].Err, new(*policy.ScopeError)) || out[4].Err == nil || out[5].Err == nil || !out[6].Free || out[7].Err != nil || out[7].Ahead != 0 {
		t.Errorf("%+v", out[3:])
	}
	for id, want := range map[string]bool{"dear": false, "fits": true} {
		if queued, _, err := p.Standing(t.Context(), Ref{"p", "q", id}); queued != want || err != nil {
			t.Errorf("%s: %v, %v", id, queued, err)
		}
	}
}

// While the limits pause a scope, its tasks wait for the pause that ends last; a pause without an end is Never over.
func TestJoinPaused(t *testing.T) {
	t.Parallel()
	rules := []policy.Rule{perSecond("r", 1)}
	p := start(t, limits(t, policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules, Scopes: map[string]policy.ScopeConfig{
		"a": {Pause: policy.PauseOn, PausedUntil: noon.Add(time.Hour)}, "b": {Pause: policy.PauseOn},
	}}}))
	for scope, want := range map[string]time.Duration{"p/a": time.Hour, "p/b": wire.Forever} {
		if got := p.joins(tasks(scope, "q", 2)...)[0]; got.Expected != want || !got.Binding.Paused() {
			t.Errorf("%s: %+v", scope, got)
		}
	}
	if d := p.dispatches(10, nil, "q"); len(d.Granted) > 0 || !d.Waits || d.Next > time.Hour {
		t.Errorf("%+v", d)
	}
}

// "Rules that began or ended to apply": texts that are out of date by the reply's clock are sent again, whatever this process's says.
func TestJoinWhenHoursEnd(t *testing.T) {
	t.Parallel()
	day, night := perSecond("day", 1), perSecond("night", 10)
	day.Active = wallclock.MustParseWindow("* 8-19 * * *", "UTC")
	night.Active = wallclock.MustParseWindow("* 20-23,0-7 * * *", "UTC")
	p := start(t, tenants(t, []policy.Rule{day, night}, nil))
	p.w.pass(10 * time.Hour) // this process takes it to be noon
	p.joins(tasks("p", "q", 1)...)
	if got := p.joins(Waiter{Scope: "p", Queue: "q", ID: "second"})[0]; got.Binding.Rule.Name != "night" {
		t.Errorf("at night: %+v", got)
	}
	if got := p.dispatches(1, nil, "q"); !slices.Equal(idsOf(got), []string{"p.q.0"}) || got.Granted[0].Scope.Rules[0].Rule.Name != "night" {
		t.Errorf("%+v", got)
	}
	// In the morning other rules apply, and dispatch brings them along.
	p.w.pass(10 * time.Hour)
	if got := p.dispatches(1, nil, "q"); !slices.Equal(idsOf(got), []string{"second"}) || got.Granted[0].Scope.Rules[0].Rule.Name != "day" {
		t.Errorf("%+v", got)
	}
}

// Rejoin gives a task the place that it had, or puts it to the front behind those that were put there before.
func TestRejoin(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{perSecond("r", 1)}, nil))
	p.joins(tasks("p", "q", 5)...)
	granted := p.dispatches(1, nil, "q").Granted[0]
	must(t, p.Report(t.Context(), "p", []News{{Ref: granted.Ref(), What: Came}}))
	for _, back := range []struct {
		id    string
		place int64
	}{{granted.ID, granted.Score}, {"front0", 0}, {"front1", 0}} {
		if got, err := p.Rejoin(t.Context(), Waiter{Scope: "p", Queue: "q", ID: back.id}, back.place); err != nil || got.Err != nil {
			t.Fatal(got, err)
		}
	}
	p.joins(Waiter{Scope: "p", Queue: "q", ID: "urgent", Priority: policy.MaxPriority})
	want := []string{"front0", "front1", "urgent", "p.q.0", "p.q.1", "p.q.2", "p.q.3", "p.q.4"}
	if got := p.drain("q"); !slices.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}
