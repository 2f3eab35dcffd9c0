package throttle

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
)

// bound is how long a test waits for what must come.
const bound = 20 * time.Second

func (r *runner) queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

func optionsOf(t testing.TB) *redis.Options {
	t.Helper()
	opts := *redistest.Client(t).Options()
	return &opts
}

func clientOf(t testing.TB, opts *redis.Options) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// allowed is nil when one unit of scope is granted.
func allowed(l *Limiter, scope string) error {
	d, err := l.Allow(context.Background(), scope)
	if err == nil && !d.Allowed {
		err = errors.New("denied")
	}
	return err
}

// learn lets the server know the script that decides on scope.
func learn(t *testing.T, l *Limiter, scope string) {
	t.Helper()
	p, err := l.plans.of(scope)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.runner.rdb.ScriptLoad(t.Context(), lua.Decide.For(p.kinds).Source).Err(); err != nil {
		t.Fatal(err)
	}
}

// together has n callers queue while the senders are held up, calls before, and
// lets all go. call gets the number of its caller; the first maxSenders are the
// senders. Every error is reported.
func together(t *testing.T, l *Limiter, n int, before func(), call func(i int) error) *gate {
	t.Helper()
	g := gated(l.runner.rdb)
	g.close()
	results := make(chan error)
	begin := func(i int) {
		go func() { results <- call(i) }()
	}
	for i := range maxSenders {
		begin(i)
	}
	redistest.WaitFor(t, "the senders", bound, func() bool { return g.held.Load() == maxSenders })
	for i := range n {
		begin(maxSenders + i)
	}
	redistest.WaitFor(t, "the others to queue", bound, func() bool { return l.runner.queued() == n })
	if before != nil {
		before()
	}
	g.open()
	for range maxSenders + n {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	return g
}

// "decisions asked for while one is on the way go out together in the next
// pipeline": each caller gets its own answer.
func TestCallersShareRoundTrips(t *testing.T) {
	t.Parallel()
	scopes := map[string]Node{}
	for i := range 40 {
		scopes[fmt.Sprint(i)] = Node{Rules: []Rule{{Name: "r", Algorithm: SlidingWindow, Limit: int64(100 + i), Per: time.Minute}}}
	}
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {Scopes: scopes}})
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, redistest.Client(t), Config{}, policy)
	learn(t, b.Limiter, "p/1")
	g := together(t, b.Limiter, 38, nil, func(i int) error {
		d, err := b.Decide(context.Background(), Request{Scope: "p/" + fmt.Sprint(i), Cost: int64(1 + i), ID: fmt.Sprint("id", i)})
		switch {
		case err != nil:
			return err
		case d.Rules[0].Remaining != 99 || d.Rules[0].Limit != int64(100+i) || d.Grant.ID() != fmt.Sprint("id", i):
			return fmt.Errorf("caller %d got somebody else's answer: %+v", i, d)
		}
		return nil
	})
	if trips := g.trips.Load(); trips != maxSenders+1 {
		t.Errorf("40 decisions took %d round trips, want %d", trips, maxSenders+1)
	}
}

// "Unbatched sends each decision as a command of its own, at once."
func TestUnbatched(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{Unbatched: true}, policyOf(t, window10()))
	learn(t, b.Limiter, "p/x")
	g := gated(rdb)
	g.close()
	results := make(chan error)
	for range 10 {
		go func() { results <- allowed(b.Limiter, "p/x") }()
	}
	redistest.WaitFor(t, "ten commands on the way", bound, func() bool { return g.held.Load() == 10 })
	g.open()
	for range 10 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if g.alone.Load() != 10 || g.trips.Load() != 10 {
		t.Errorf("%d round trips, %d of single commands; want 10 of 10", g.trips.Load(), g.alone.Load())
	}
}

// An error is the caller's whose rule it concerns, and nobody else's.
func TestErrorsReachTheirCallers(t *testing.T) {
	t.Parallel()
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {Scopes: map[string]Node{"*": {Rules: []Rule{window10()}}}}})
	if err != nil {
		t.Fatal(err)
	}
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{}, policy)
	broken := func(i int) bool { return i%3 == 0 }
	for i := range 20 {
		if broken(i) {
			if err := rdb.RPush(t.Context(), keyOf(t, b.Limiter, fmt.Sprint("p/", i), 0), "foreign").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	together(t, b.Limiter, 18, nil, func(i int) error {
		d, err := b.Allow(context.Background(), fmt.Sprint("p/", i))
		if got, want := errors.Is(err, ErrUnavailable), broken(i); got != want || d.Allowed == want {
			return fmt.Errorf("caller %d: %+v, %w", i, d, err)
		}
		return nil
	})
}

func keyOf(t *testing.T, l *Limiter, scope string, rule int) string {
	t.Helper()
	p, err := l.plans.of(scope)
	if err != nil {
		t.Fatal(err)
	}
	return p.keys[rule]
}

// "Units that a cancelled call may have taken are given back": the caller who
// sends for itself, and the one for whom others send.
func TestCancelledCallGivesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, window10(), runs10()))
	rest := func() (units, places int64) {
		d, err := b.Peek(context.Background(), Request{Scope: "p/x"})
		if err != nil {
			t.Error(err)
		}
		return d.Rules[0].Remaining, d.Rules[1].Remaining
	}
	t.Run("alone", func(t *testing.T) {
		g := gated(b.runner.rdb)
		g.close()
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() {
			d, err := b.Decide(ctx, Request{Scope: "p/x", Cost: 4})
			if d.Allowed {
				t.Error("a caller who has gone was allowed")
			}
			result <- err
		}()
		redistest.WaitFor(t, "the call", bound, func() bool { return g.held.Load() == 1 })
		cancel()
		g.open()
		if err := <-result; !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, want the context's own error", err)
		}
		redistest.WaitFor(t, "all to be given back", bound, func() bool {
			units, places := rest()
			return units == 10 && places == 10
		})
	})
}

// A caller whose context ends before its call is sent costs nothing.
func TestGoneBeforeSent(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, window10()))
	ctx, cancel := context.WithCancel(t.Context())
	before := func() {
		cancel()
		redistest.WaitFor(t, "the callers to leave", bound, func() bool { return b.runner.leavers() == 2 })
	}
	together(t, b.Limiter, 3, before, func(i int) error {
		if i < maxSenders || i == maxSenders {
			return allowed(b.Limiter, "p/x")
		}
		if _, err := b.Allow(ctx, "p/x"); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("got %w, want the context's own error", err)
		}
		return nil
	})
	if left := b.decide(Request{Scope: "p/x"}).Rules[0].Remaining; left != 10-4 {
		t.Errorf("%d units are left, want 6", left)
	}
}

func (r *runner) leavers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, p := range r.queue {
		if p.state.Load() == left {
			n++
		}
	}
	return n
}

// "a lone call is sent at once by its own caller": no goroutine is started, none
// is left behind. Not parallel: it counts goroutines.
func TestGoroutines(t *testing.T) { //nolint:paralleltest // see above
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{}, policyOf(t, window10()))
	b.decide(Request{Scope: "p/x"}) // connects
	counter := &counting{}
	rdb.AddHook(counter)
	before := runtime.NumGoroutine()
	b.decide(Request{Scope: "p/x"})
	if counter.during != before || counter.calls != 1 {
		t.Errorf("%d goroutines during a lone call, %d before; %d calls", counter.during, before, counter.calls)
	}
	together(t, b.Limiter, 6, nil, func(int) error { return allowed(b.Limiter, "p/x") })
	redistest.WaitFor(t, "the goroutines to end", bound, func() bool { return runtime.NumGoroutine() <= before })
}

type counting struct{ during, calls int }

func (c *counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.calls == 0 {
			c.during = runtime.NumGoroutine()
			c.calls++
		}
		return next(ctx, cmd)
	}
}

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// "One decision is one script call": one EVALSHA and no other command, whatever
// the number of levels and rules.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rules := []Rule{
		{Name: "a", Algorithm: SlidingWindow, Limit: 100, Per: sec}, {Name: "b", Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 100},
		{Name: "c", Algorithm: FixedWindow, Limit: 100, Per: time.Minute}, {Name: "d", Algorithm: Concurrency, Limit: 100},
	}
	policy, err := NewPolicy(UnmatchedDeny, map[string]Node{"p": {Rules: rules, Scopes: map[string]Node{
		"*": {Rules: rules, Scopes: map[string]Node{"*": {Rules: rules}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	rdb := server.Client(t)
	l, err := New(rdb, policy, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := allowed(l, "p/x/y"); err != nil {
		t.Fatal(err) // the script is known from now on
	}
	g := gated(rdb)
	for name, ask := range map[string]func() error{
		"decide": func() error { return allowed(l, "p/x/y") },
		"peek": func() error {
			_, err := l.Peek(context.Background(), Request{Scope: "p/x/y"})
			return err
		},
	} {
		_ = ask()
		trips := g.trips.Load()
		commands := redistest.Commands(t, server.Client(t), func() {
			if err := ask(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if g.trips.Load()-trips != 1 || commands["evalsha"] != 1 || commands["time"] != 1 || commands["eval"] != 0 {
			t.Errorf("%s took %d round trips: %v", name, g.trips.Load()-trips, commands)
		}
	}
}
