package waitlist

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// "Each turn is granted once", to a caller that serves the task's queue, at most Lead and Spread ahead, and never more than the rules
// admit.
func TestDispatchByTwo(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: second}
	one := start(t, tenants(t, []policy.Rule{rule}, nil))
	two := one.w.process(tenants(t, []policy.Rule{rule}, nil))
	for _, scope := range []string{"p/a", "p/b"} {
		one.joins(slices.Concat(tasks(scope, "x", 20), tasks(scope, "y", 20))...)
	}
	var starts []int64
	seen := map[Ref]bool{}
	news := map[*process][]News{}
	for rounds := 0; len(seen) < 80; rounds++ {
		if rounds > 500 {
			t.Fatalf("only %d of 80 have started", len(seen))
		}
		next := 50 * ms
		for p, queue := range map[*process]string{one: "x", two: "y"} {
			d := p.dispatches(5, news[p], queue)
			news[p] = nil
			for _, g := range d.Granted {
				if g.Queue != queue || seen[g.Ref()] || g.Wait > 100*ms || time.Until(g.Starts) > 200*ms {
					t.Fatalf("%+v", g)
				}
				seen[g.Ref()], starts = true, append(starts, g.Start)
				news[p] = append(news[p], News{Ref: g.Ref(), What: Came})
			}
			next = min(next, max(d.Next, ms))
		}
		one.w.pass(next)
	}
	slices.Sort(starts)
	for i := 10; i < len(starts); i++ {
		if starts[i]-starts[i-10] < second.Microseconds() {
			t.Fatalf("11 starts within %d µs: %v", starts[i]-starts[i-10], starts)
		}
	}
	if took := time.Duration(starts[79]-starts[0]) * time.Microsecond; took > 7500*ms {
		t.Errorf("80 starts at 10 a second took %s", took)
	}
}

// "Scopes with other rules than before": a caller whose policy is newer brings its rules along. Tasks of a scope that it denies stay
// and delay no others, and those of a scope that has no rules any more start.
func TestDispatchUnderAnotherPolicy(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, nil, []policy.Rule{perSecond("r", 1)}))
	for i := range 100 {
		p.joins(tasks(fmt.Sprintf("p/t%d", i), "q", 2)...)
	}
	p.w.pass(second)
	if got := len(p.dispatches(200, nil, "q").Granted); got != 100 {
		t.Fatalf("%d of 100 started at once", got)
	}
	p.scopes.Set(limits(t, policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{
		"t1": {Rules: []policy.Rule{perSecond("r", 10)}}, "t2": {Rules: []policy.Rule{perSecond("r", 0)}},
	}}}))
	p.w.pass(150 * ms) // a tenth of a second refills one unit of the new rate
	d := p.dispatches(200, nil, "q")
	if got := idsOf(d); !slices.Equal(got, []string{"p/t1.q.1"}) || d.Granted[0].Scope == nil || d.Next < deniedPause {
		t.Errorf("%v, again in %s", got, d.Next)
	}
	p.scopes.Set(limits(t, policy.UnmatchedAllow, nil))
	p.w.pass(second)
	var ids []string
	for range 20 {
		ids = append(ids, idsOf(p.dispatches(200, nil, "q"))...)
		p.w.pass(deniedPause)
	}
	if len(ids) != 99 {
		t.Errorf("%d of the other 99 started without rules", len(ids))
	}
}

// A granted task that Came is no longer in flight; one that is Unused has its place and its units back; one that is Used has neither;
// one that is Gone has left, waiting or granted, and its units are back.
func TestNews(t *testing.T) {
	t.Parallel()
	bucket := policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 4}
	runs := policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 2}
	p := start(t, tenants(t, []policy.Rule{bucket}, []policy.Rule{runs}))
	ref := func(d Dispatched, i int) Ref { return d.Granted[i].Ref() }
	p.joins(slices.Concat(tasks("p/a", "q", 4), tasks("p/b", "q", 2))...)
	first := p.dispatches(3, nil, "q")
	if got := idsOf(first); !slices.Equal(got, []string{"p/a.q.0", "p/b.q.0", "p/a.q.1"}) {
		t.Fatalf("first %v", got)
	}
	if queued, granted, err := p.Standing(t.Context(), ref(first, 0)); queued || !granted || err != nil {
		t.Fatalf("in flight: %v, %v, %v", queued, granted, err)
	}
	// One unit is left, and another comes back with the first, which then goes before the third of its line. The place that the third
	// grant held under the concurrency rule comes back, its unit does not.
	second := p.dispatches(10, []News{{Ref: ref(first, 0), What: Unused}, {Ref: ref(first, 1), What: Came}, {Ref: ref(first, 2), What: Used}}, "q")
	if got := idsOf(second); !slices.Equal(got, []string{"p/b.q.1", "p/a.q.0"}) {
		t.Fatalf("second %v", got)
	}
	// No unit is left. Both in flight are gone, and so is one that waits: the other that waits takes one of the two units.
	gone := []News{{Ref: ref(second, 0), What: Gone}, {Ref: ref(second, 1), What: Gone}, {Ref: tasks("p/a", "q", 4)[2].Ref(), What: Gone}}
	third := p.dispatches(10, gone, "q")
	if got := idsOf(third); !slices.Equal(got, []string{"p/a.q.3"}) {
		t.Fatalf("third %v", got)
	}
	if d := p.dispatches(10, []News{{Ref: ref(third, 0), What: Came}}, "q"); d.Waits || len(d.Granted) > 0 {
		t.Errorf("at the end: %+v", d)
	}
}

// A grant that is not reported within 3 s is Overdue, to one caller a second.
func TestOverdue(t *testing.T) {
	t.Parallel()
	one := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	two := one.w.process(tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	one.joins(tasks("p", "q", 1)...)
	if got := one.dispatches(1, nil, "q"); len(got.Granted) != 1 || got.Next > 3*second {
		t.Fatalf("%+v", got)
	}
	one.w.pass(2999 * ms)
	if got := two.dispatches(1, nil); len(got.Overdue) != 0 || !got.Waits {
		t.Errorf("before: %+v", got)
	}
	one.w.pass(2 * ms)
	if got := two.dispatches(1, nil); !slices.Equal(got.Overdue, []Ref{{"p", "q", "p.q.0"}}) {
		t.Errorf("after: %+v", got)
	}
	if got := one.dispatches(1, nil); len(got.Overdue) != 0 {
		t.Errorf("at once: %+v", got)
	}
	one.w.pass(second)
	if got := one.dispatches(1, nil); len(got.Overdue) != 1 {
		t.Errorf("a second later: %+v", got)
	}
}

// A task that costs more than a rule will ever admit is Refused, and loses its place: the limits were lowered.
func TestRefused(t *testing.T) {
	t.Parallel()
	rule := policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 5, Per: second}
	p := start(t, tenants(t, []policy.Rule{rule}, nil))
	p.joins(Waiter{Scope: "p/a", Queue: "odd name:", ID: "x:1", Costs: policy.Costs{"requests": 5}}, tasks("p/a", "odd name:", 1)[0])
	rule.Limit = 4
	p.scopes.Set(tenants(t, []policy.Rule{rule}, nil))
	d := p.dispatches(10, nil, "odd name:")
	if !slices.Equal(d.Refused, []Ref{{"p/a", "odd name:", "x:1"}}) || !slices.Equal(idsOf(d), []string{"p/a.odd name:.0"}) {
		t.Errorf("%+v", d)
	}
	if queued, granted, err := p.Standing(t.Context(), d.Refused[0]); queued || granted || err != nil {
		t.Errorf("%v, %v, %v", queued, granted, err)
	}
}

// asynq's queues share by their weights, or go strictly.
func TestDispatchByWeight(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	p.joins(slices.Concat(tasks("p", "low", 30), tasks("p", "high", 30))...)
	count := func(n int, serves ...wire.Weighted) string {
		t.Helper()
		var order []string
		for len(order) < n {
			d, err := p.Dispatch(t.Context(), Request{Provider: "p", Lead: 20 * ms, Spread: 80 * ms, Max: 10, Serves: serves})
			must(t, err)
			for _, g := range d.Granted {
				order = append(order, g.Queue[:1])
			}
			p.w.pass(max(d.Next, ms))
		}
		return strings.Join(order, "")
	}
	if got := count(12, wire.Weighted{Queue: "low", Weight: 1}, wire.Weighted{Queue: "high", Weight: 3}); strings.Count(got, "l") < 2 || strings.Count(got, "l") > 4 {
		t.Errorf("by weight: %s", got)
	}
	if got := count(10, wire.Weighted{Queue: "high"}, wire.Weighted{Queue: "low"}); strings.Count(got, "h") < len(got)-1 {
		t.Errorf("strictly: %s", got)
	}
}
