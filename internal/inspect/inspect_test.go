package inspect

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const second, ms = time.Second, time.Millisecond

// noon is what the clocks of the scripts and of the process show.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// world is the waitlist of a Redis, and its reader.
type world struct {
	Reader
	t      *testing.T
	rdb    redis.UniversalClient
	scopes *wire.Scopes
}

func start(t *testing.T, p *policy.Policy) *world {
	t.Helper()
	w := &world{t: t, rdb: redistest.Client(t)}
	base := redistest.Prefix(t)
	w.scopes = wire.NewScopes(p, wire.Compiler{Base: base, Tolerance: ms}, func(string) time.Time { return noon }, func(*wire.Scope, *policy.Policy) any { return nil })
	w.Reader = Of(waitlist.New(waitlist.Config{
		Redis: w.rdb, Scopes: w.scopes, Clocks: &wire.Clocks{}, Base: base, Timeout: redistest.Stretch(2 * second), Logger: slog.New(slog.DiscardHandler),
		Clock: func() string { return strconv.FormatInt(noon.UnixMicro(), 10) }, ID: "a process",
	}))
	return w
}

var must = redistest.Must

// limits is a policy of rules by scope.
func limits(t *testing.T, tree map[string]policy.ScopeConfig) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.UnmatchedDeny, tree)
	must(t, err)
	return p
}

// tenants is a provider p with rules of its own and of each tenant.
func tenants(t *testing.T, own, each []policy.Rule) *policy.Policy {
	t.Helper()
	return limits(t, map[string]policy.ScopeConfig{"p": {Rules: own, Scopes: map[string]policy.ScopeConfig{"*": {Rules: each}}}})
}

// perSecond is a bucket of one unit at a time.
func perSecond(name string, limit int64) policy.Rule {
	return policy.Rule{Name: name, Algorithm: policy.TokenBucket, Limit: limit, Per: second}
}

// tasks returns n tasks of a scope and queue, named after both.
func tasks(scope, queue string, n int) (list []waitlist.Waiter) {
	for i := range n {
		list = append(list, waitlist.Waiter{Scope: scope, Queue: queue, ID: fmt.Sprintf("%s.%s.%d", scope, queue, i)})
	}
	return list
}

// joins gives tasks places.
func (w *world) joins(list ...waitlist.Waiter) {
	w.t.Helper()
	_, err := w.list.Join(w.t.Context(), list)
	must(w.t, err)
}

// busy is a provider with 1 task in its own line, 3 of tenant a in two queues and 2 below it, and 200 of tenant b.
func busy(t *testing.T) *world {
	t.Helper()
	p := start(t, tenants(t, []policy.Rule{perSecond("all", 100)}, []policy.Rule{perSecond("own", 1)}))
	p.joins(slices.Concat(tasks("p", "x", 1), tasks("p/a", "x", 2), tasks("p/a", "y", 1), tasks("p/a/deep", "y", 2), tasks("p/b", "x", 200))...)
	return p
}

// WaitingIn and Outline count what waits in scopes and below them.
func TestOutline(t *testing.T) {
	t.Parallel()
	p := busy(t)
	want := []ScopeCount{{Scope: "p", Tasks: 206, Own: 1}, {Scope: "p/b", Tasks: 200, Own: 200}, {Scope: "p/a", Tasks: 5, Own: 3}, {Scope: "p/a/deep", Tasks: 2, Own: 2}}
	if got, more, err := p.Outline(t.Context(), "p", 100); !slices.Equal(got, want) || more || err != nil {
		t.Errorf("%+v, %v, %v", got, more, err)
	}
	if got, more, err := p.Outline(t.Context(), "p", 2); !slices.Equal(got, want[:2]) || !more || err != nil {
		t.Errorf("two: %+v, %v, %v", got, more, err)
	}
	got, err := p.WaitingIn(t.Context(), "p", "p/a", "p/none", "p")
	if want := []ScopeCount{{"p/a", 5, 3, 3}, {"p/none", 0, 0, 0}, {"p", 206, 1, 4}}; !slices.Equal(got, want) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Count is by own lines, fullest first, with the status of the first tasks, and Scope is a scope with those below it.
func TestCount(t *testing.T) {
	t.Parallel()
	p := busy(t)
	got, more, err := p.Count(t.Context(), "p", func(scope string) bool { return scope != "p" })
	if err = cmp.Or(err, p.InspectFirst(t.Context(), "p", got)); err != nil || more || len(got) != 3 {
		t.Fatalf("%+v, %v, %v", got, more, err)
	}
	if a := got[1]; a.Scope != "p/a" || a.Own != 3 || a.First != (waitlist.Ref{Scope: "p/a", Queue: "x", ID: "p/a.x.0"}) || !a.FirstStatus.Waits || a.FirstStatus.Expected.In > 100*ms {
		t.Errorf("%+v", a)
	}
	heads, err := p.Heads(t.Context(), "p", "p/b", "p/none", "p/a")
	if want := []waitlist.Ref{{Scope: "p/b", Queue: "x", ID: "p/b.x.0"}, {Scope: "p/a", Queue: "x", ID: "p/a.x.0"}, {Scope: "p/a", Queue: "y", ID: "p/a.y.0"}}; !slices.Equal(heads, want) || err != nil {
		t.Errorf("%v, %v", heads, err)
	}
	p.scopes.Set(limits(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"a": {Rules: []policy.Rule{perSecond("r", 0)}}}}}))
	if err := p.InspectFirst(t.Context(), "p", got); err != nil || !got[0].Unmatched || got[0].First.ID != "p/b.x.0" {
		t.Errorf("a scope that the policy denies: %+v, %v", got, err)
	}
	stats, err := p.Scope(t.Context(), "p/a")
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
func TestTasks(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, nil, []policy.Rule{perSecond("r", 1)}))
	want := map[waitlist.Ref]bool{}
	var list []waitlist.Waiter
	for i := range 100 {
		list = append(list, tasks(fmt.Sprintf("p/t%d", i), fmt.Sprint("q", i%2), 3)...)
	}
	list = append(list, tasks("p/many", "q0", 1200)...)
	p.joins(list...)
	for _, w := range list {
		want[w.Ref()] = true
	}
	for _, most := range []int{1, 700, 100_000} {
		reader, got := p.Tasks("p"), map[waitlist.Ref]bool{}
		for {
			some, err := reader.Next(t.Context(), most)
			must(t, err)
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

// The start of a task that waits for runs to end is estimated from their run times, with a range.
func TestInspectRuns(t *testing.T) {
	t.Parallel()
	runs := policy.Rule{Name: "runs", Algorithm: policy.Concurrency, Limit: 2, Lease: time.Hour}
	p := start(t, tenants(t, []policy.Rule{runs}, nil))
	p.joins(tasks("p", "q", 5)...)
	got, err := p.list.Dispatch(t.Context(), waitlist.Request{Provider: "p", Max: 5, Serves: []wire.Weighted{{Queue: "q", Weight: 1}}})
	must(t, err)
	for _, g := range got.Granted {
		if s, err := p.Task(t.Context(), g.Ref()); err != nil || !s.Dispatched || s.Waits {
			t.Errorf("%+v, %v", s, err)
		}
		must(t, p.list.Report(t.Context(), "p", []waitlist.News{{Ref: g.Ref(), What: waitlist.Came}}))
	}
	of := func(id string) WaiterStatus {
		t.Helper()
		s, err := p.Task(t.Context(), waitlist.Ref{Scope: "p", Queue: "q", ID: id})
		if err != nil || !s.Waits || s.Binding.Rule.Name != "runs" {
			t.Fatalf("%+v, %v", s, err)
		}
		return s
	}
	if got := of("p.q.2"); got.Expected.Known() {
		t.Errorf("before any run has ended: %+v", got)
	}
	s, err := p.scopes.Of("p")
	must(t, err)
	p.rdb.Set(t.Context(), RunTimesKey(s.Prefix, s.Rules[0]), "100 10000000 0", 0)
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

// Runs that end first start nothing before the other rules admit it.
func TestInspectRunsUnderARate(t *testing.T) {
	t.Parallel()
	runs := policy.Rule{Name: "runs", Algorithm: policy.Concurrency, Limit: 2, Lease: time.Hour}
	rate := policy.Rule{Name: "rate", Algorithm: policy.SlidingWindow, Limit: 2, Per: time.Hour}
	p := start(t, tenants(t, []policy.Rule{runs, rate}, nil))
	p.joins(tasks("p", "q", 5)...)
	_, err := p.list.Dispatch(t.Context(), waitlist.Request{Provider: "p", Max: 5, Serves: []wire.Weighted{{Queue: "q", Weight: 1}}})
	must(t, err)
	s, err := p.scopes.Of("p")
	must(t, err)
	p.rdb.Set(t.Context(), RunTimesKey(s.Prefix, s.Rules[0]), "100 10000000 0", 0)
	for i := 2; i < 5; i++ {
		s, err := p.Task(t.Context(), waitlist.Ref{Scope: "p", Queue: "q", ID: fmt.Sprint("p.q.", i)})
		if err != nil || s.Expected.In < time.Hour-second || s.Binding.Rule.Name != "rate" {
			t.Errorf("%d: %+v, %v", i, s, err)
		}
	}
}

// The line of a scope takes turns with those of other asynq queues, if their tasks are served too.
func TestInspectQueuesShareAScope(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{{Name: "rate", Algorithm: policy.SlidingWindow, Limit: 2, Per: time.Hour}}, nil))
	p.joins(slices.Concat(tasks("p", "q", 4), tasks("p", "r", 4))...)
	starts := func(want ...time.Duration) {
		t.Helper()
		for i, w := range want {
			s, err := p.Task(t.Context(), waitlist.Ref{Scope: "p", Queue: "r", ID: fmt.Sprint("p.r.", i)})
			if err != nil || s.Expected.In < w || s.Expected.In > w+second {
				t.Errorf("%d: %+v, %v", i, s, err)
			}
		}
	}
	starts(0, time.Hour, 2*time.Hour, 3*time.Hour)
	s, err := p.scopes.Of("p")
	must(t, err)
	must(t, p.rdb.HSet(t.Context(), s.Prefix+"queues", "q", 0, "r", noon.UnixMicro()).Err())
	starts(0, 0, time.Hour, time.Hour)
}

// A line whose queue the tree has lost is read all the same.
func TestInspectALostQueue(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{perSecond("rate", 1)}, nil))
	p.joins(slices.Concat(tasks("p", "q", 2), tasks("p", "r", 2))...)
	s, err := p.scopes.Of("p")
	must(t, err)
	must(t, p.rdb.HDel(t.Context(), s.Prefix+"queues", "q").Err())
	if s, err := p.Task(t.Context(), waitlist.Ref{Scope: "p", Queue: "q", ID: "p.q.1"}); err != nil || !s.Waits {
		t.Errorf("%+v, %v", s, err)
	}
}

// A task of a scope that the policy pauses starts after the end of the pause by its rules, or never.
func TestInspectPaused(t *testing.T) {
	t.Parallel()
	p := start(t, limits(t, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{perSecond("r", 1)}, Scopes: map[string]policy.ScopeConfig{
		"a": {Pause: policy.PauseOn, PausedUntil: noon.Add(time.Hour)}, "b": {Pause: policy.PauseOn},
	}}}))
	p.joins(slices.Concat(tasks("p/a", "q", 2), tasks("p/b", "q", 2))...)
	a, err := p.Task(t.Context(), waitlist.Ref{Scope: "p/a", Queue: "q", ID: "p/a.q.1"})
	if err != nil || !a.Binding.Paused() || a.Expected.In < time.Hour || a.Expected.In > time.Hour+5*second {
		t.Errorf("%+v, %v", a, err)
	}
	b, err := p.Task(t.Context(), waitlist.Ref{Scope: "p/b", Queue: "q", ID: "p/b.q.1"})
	if err != nil || !b.Binding.Paused() || b.Expected.Known() {
		t.Errorf("%+v, %v", b, err)
	}
}
