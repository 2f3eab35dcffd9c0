package waitlist

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// busy is a provider with 1 task in its own line, 3 of tenant a in two queues and 2 below it, and 200 of tenant b.
func busy(t *testing.T) *process {
	t.Helper()
	p := start(t, tenants(t, []policy.Rule{perSecond("all", 100)}, []policy.Rule{perSecond("own", 1)}))
	p.joins(slices.Concat(tasks("p", "x", 1), tasks("p/a", "x", 2), tasks("p/a", "y", 1), tasks("p/a/deep", "y", 2), tasks("p/b", "x", 200))...)
	return p
}

// WaitingIn and Outline count what waits in scopes and below them.
func TestOutline(t *testing.T) {
	t.Parallel()
	p := busy(t)
	want := []ScopeWaiting{{"p", 206, 1, 2}, {"p/b", 200, 200, 0}, {"p/a", 5, 3, 1}, {"p/a/deep", 2, 2, 0}}
	if got, more, err := p.Outline(t.Context(), "p", 100); !slices.Equal(got, want) || more || err != nil {
		t.Errorf("%+v, %v, %v", got, more, err)
	}
	if got, more, err := p.Outline(t.Context(), "p", 2); !slices.Equal(got, want[:2]) || !more || err != nil {
		t.Errorf("two: %+v, %v, %v", got, more, err)
	}
	got, err := p.WaitingIn(t.Context(), "p", "p/a", "p/none", "p")
	if want := []ScopeWaiting{{"p/a", 5, 3, 3}, {"p/none", 0, 0, 0}, {"p", 206, 1, 4}}; !slices.Equal(got, want) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Count and Fullest are by own lines, fullest first, and Inspect is a scope with those below it.
func TestFullest(t *testing.T) {
	t.Parallel()
	p := busy(t)
	got, counted, more, err := p.Fullest(t.Context(), "p", 2, func(scope string) bool { return scope != "p" })
	if err != nil || more || counted != 3 || len(got) != 2 {
		t.Fatalf("%+v, %d, %v, %v", got, counted, more, err)
	}
	if a := got[1]; a.Scope != "p/a" || a.Own != 3 || a.First != (Ref{"p/a", "x", "p/a.x.0"}) || !a.FirstStatus.Waits || a.FirstStatus.Expected.In > 100*ms {
		t.Errorf("%+v", a)
	}
	heads, err := p.Heads(t.Context(), "p", "p/b", "p/none", "p/a")
	if want := []Ref{{"p/b", "x", "p/b.x.0"}, {"p/a", "x", "p/a.x.0"}, {"p/a", "y", "p/a.y.0"}}; !slices.Equal(heads, want) || err != nil {
		t.Errorf("%v, %v", heads, err)
	}
	p.scopes.Set(limits(t, policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{perSecond("r", 0)}}}}}))
	if got, _, _, err := p.Fullest(t.Context(), "p", 1, nil); err != nil || !got[0].Unmatched || got[0].First.ID != "p/b.x.0" {
		t.Errorf("a scope that the policy denies: %+v, %v", got, err)
	}
	stats, err := p.Inspect(t.Context(), "p/a")
	if err != nil || stats.Waiting != 5 || stats.Scopes != 2 || stats.Dispatched != 0 || stats.NextStart.Known() || stats.Binding.Rule.Name != "r" || !stats.At.Equal(noon) {
		t.Errorf("suspended: %+v, %v", stats, err)
	}
}

// Queued returns pages of a scope's lines, which follow each other by the name of their asynq queue.
func TestQueued(t *testing.T) {
	t.Parallel()
	p := busy(t)
	var ids []string
	for from := 0; from < 3; from++ {
		page, all, err := p.Queued(t.Context(), "p/a", from, 1)
		if err != nil || all != 3 || len(page) != 1 || page[0].Queue != []string{"x", "x", "y"}[from] || page[0].Binding.Rule.Name != "own" && from == 1 {
			t.Fatalf("%d: %+v, %d, %v", from, page, all, err)
		}
		ids = append(ids, page[0].ID)
	}
	if want := []string{"p/a.x.0", "p/a.x.1", "p/a.y.0"}; !slices.Equal(ids, want) {
		t.Errorf("%v", ids)
	}
	page, all, err := p.Queued(t.Context(), "p/b", 150, 100)
	if err != nil || all != 200 || len(page) != 50 || page[49].Ahead != 199 {
		t.Fatalf("%d of %d, %v", len(page), all, err)
	}
	last, err := p.LastQueued(t.Context(), "p", "p/b", "p/none", "p/a")
	if err != nil || last[0].Ahead != 199 || last[0].Expected != page[49].Expected || last[0].Expected.In < 198*second || last[1].Waits || !last[2].Waits {
		t.Errorf("%+v, %v", last, err)
	}
}

// An iterator returns each waiting task of a provider, whatever the size of its parts, and starts over.
func TestWaiting(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, nil, []policy.Rule{perSecond("r", 1)}))
	want := map[Ref]bool{}
	var list []Waiter
	for i := range 100 {
		list = append(list, tasks(fmt.Sprintf("p/t%d", i), fmt.Sprint("q", i%2), 3)...)
	}
	list = append(list, tasks("p/many", "q0", 1200)...)
	p.joins(list...)
	for _, w := range list {
		want[w.Ref()] = true
	}
	for _, most := range []int{1, 700, 100_000} {
		reader, got := p.Waiting("p"), map[Ref]bool{}
		for {
			some, err := reader.Next(t.Context(), most)
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range some {
				if got[ref] || !want[ref] {
					t.Fatalf("%d at once: %v", most, ref)
				}
				got[ref] = true
			}
			if len(some) < most || len(got) == len(want) {
				break
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d at once: %d of %d", most, len(got), len(want))
		}
	}
}

// One process holds a claim until it lapses, and extends it before.
func TestClaim(t *testing.T) {
	t.Parallel()
	one := start(t, tenants(t, nil, nil))
	two := one.w.process(tenants(t, nil, nil))
	claim := func(p *process, again, want bool) {
		t.Helper()
		if mine, err := p.Claim(t.Context(), "p", time.Minute, again); mine != want || err != nil {
			t.Errorf("%v, %v", mine, err)
		}
	}
	claim(one, true, false)
	claim(one, false, true)
	claim(two, false, false)
	claim(two, true, false) // and spoils it: its last extension stands in Redis
}

// The start of a task that waits for runs to end is told by their run times, with a range.
func TestInspectRuns(t *testing.T) {
	t.Parallel()
	runs := policy.Rule{Name: "runs", Algorithm: policy.Concurrency, Limit: 2, Lease: time.Hour}
	p := start(t, tenants(t, []policy.Rule{runs}, nil))
	p.joins(tasks("p", "q", 5)...)
	for _, g := range p.dispatches(5, nil, "q").Granted {
		if err := p.Report(t.Context(), "p", []News{{Ref: g.Ref(), What: Came}}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(id string) WaiterStatus {
		t.Helper()
		s, err := p.InspectWaiter(t.Context(), Ref{"p", "q", id})
		if err != nil || !s.Waits || s.Binding.Rule.Name != "runs" {
			t.Fatalf("%+v, %v", s, err)
		}
		return s
	}
	if got := of("p.q.2"); got.Expected.Known() {
		t.Errorf("before any run has ended: %+v", got)
	}
	s, err := p.scopes.Of("p")
	if err != nil {
		t.Fatal(err)
	}
	p.w.rdb.Set(t.Context(), RunTimesKey(s.Prefix, s.Rules[0]), "100 10000000 0", 0)
	for i, want := range []time.Duration{2525 * ms, 7525 * ms, 12525 * ms} {
		if got := of(fmt.Sprint("p.q.", i+2)).Expected; got.In != want || got.From > want || got.To < want || got.To > want+15*second {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if over := (RunTimes{100, 10 * second, 0}).Wait(PlaceQueue{1, 4}, 2); over.In <= 2525*ms || over.To <= over.In {
		t.Errorf("after the limit was lowered: %+v", over)
	}
	if got := ReadRunTimes("no numbers"); got != (RunTimes{}) || ReadRunTimes(nil) != (RunTimes{}) || (RunTimes{}).Ends(1, 1) != Unknown {
		t.Errorf("%+v", got)
	}
}
