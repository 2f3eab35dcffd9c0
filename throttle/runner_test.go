package throttle

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// bound is how long a test waits for what must come.
var bound = redistest.Stretch(time.Minute)

func (r *runner) queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue == nil {
		return 0
	}
	return len(r.queue.asked)
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
	p, err := l.scopes.of(scope)
	noError(t, err)
	noError(t, l.runner.rdb.ScriptLoad(t.Context(), lua.Decide.For(p.kinds).Source()).Err())
}

// learnMany lets the server know the script that decides many together.
func learnMany(t *testing.T, l *Limiter) {
	t.Helper()
	noError(t, l.runner.rdb.ScriptLoad(t.Context(), lua.DecideMany.Source()).Err())
}

// together has n callers queue while the senders are held up, calls before, and lets all go. call gets the number of its
// caller; the first maxSenders are the senders. Every error is reported.
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
// pipeline", as one script call for each provider: each caller gets its own answer.
func TestCallersShareRoundTrips(t *testing.T) {
	t.Parallel()
	scopes := map[string]policy.ScopeConfig{}
	for i := range 40 {
		scopes[fmt.Sprint(i)] = policy.ScopeConfig{Rules: []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: int64(100 + i), Per: time.Minute}}}
	}
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: scopes}, "q": {Scopes: scopes}})
	b := newBench(t, redistest.Client(t), Config{}, policy)
	scope := func(i int) string { return []string{"p/", "q/"}[i%2] + fmt.Sprint(i) }
	for i := range 40 {
		b.decide(Request{Scope: scope(i)}) // used lately
	}
	learnMany(t, b.Limiter)
	g := together(t, b.Limiter, 38, nil, func(i int) error {
		d, err := b.Decide(context.Background(), Request{Scope: scope(i), Cost: int64(1 + i), ID: fmt.Sprint("id", i)})
		switch {
		case err != nil:
			return err
		case d.Rules[0].Remaining != 98 || d.Rules[0].Limit != int64(100+i) || d.Grant.ID() != fmt.Sprint("id", i):
			return fmt.Errorf("caller %d got somebody else's answer: %+v", i, d)
		}
		return nil
	})
	if trips, commands := g.trips.Load(), g.commands.Load(); trips != maxSenders+1 || commands != maxSenders+2 {
		t.Errorf("40 decisions took %d round trips and %d commands, want %d and %d", trips, commands, maxSenders+1, maxSenders+2)
	}
}

// An error is the caller's whose rule it concerns, and nobody else's.
func TestErrorsReachTheirCallers(t *testing.T) {
	t.Parallel()
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{window10()}}}}})
	rdb := redistest.Client(t)
	b := newBench(t, rdb, Config{}, policy)
	broken := func(i int) bool { return i%3 == 0 }
	for i := range 20 {
		if broken(i) {
			noError(t, rdb.RPush(t.Context(), keyOf(t, b.Limiter, fmt.Sprint("p/", i), 0), "foreign").Err())
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
	p, err := l.scopes.of(scope)
	noError(t, err)
	return p.keys[rule]
}

// crowd is a limiter whose senders are held up at a gate, so that whoever else
// asks has to queue, and a look past that gate at the same keys.
type crowd struct {
	*bench
	gate   *gate
	watch  *bench
	many   bool       // who queues is decided together
	used   int64      // units taken beforehand
	others chan error // what becomes of those who stay
	ctx    context.Context
	leave  context.CancelFunc
	gone   chan error // what becomes of those who leave
}

// newCrowd makes a crowd under rules of which the first counts units: with a
// concurrency rule each is decided singly, without one all of them together.
func newCrowd(t *testing.T, server *redistest.Server, rules ...policy.Rule) *crowd {
	t.Helper()
	policy := policyOf(t, rules...)
	patient := Config{Timeout: 3 * bound} // so that no time-out does what a context has to
	c := &crowd{
		bench: newBench(t, server.Client(t), patient, policy), watch: newBench(t, server.Client(t), Config{}, policy),
		others: make(chan error), gone: make(chan error),
	}
	c.watch.scopes.keys = c.scopes.keys
	c.ctx, c.leave = context.WithCancel(t.Context())
	t.Cleanup(c.leave)
	if c.many = len(rules) == 1; c.many {
		if err := allowed(c.Limiter, "p/x"); err != nil { // used lately
			t.Fatal(err)
		}
		c.used = 1
	}
	learn(t, c.Limiter, "p/x")
	learnMany(t, c.Limiter)
	c.gate = gated(c.rdb)
	c.gate.close()
	return c
}

// hold holds the senders up at the gate.
func (c *crowd) hold() {
	c.t.Helper()
	for range maxSenders {
		go func() { c.others <- allowed(c.Limiter, "p/x") }()
	}
	redistest.WaitFor(c.t, "the senders", bound, func() bool { return c.gate.held.Load() == maxSenders })
}

// queue has so many callers queue who will leave.
func (c *crowd) queue(n int) {
	c.t.Helper()
	before := c.runner.queued()
	for range n {
		go func() {
			d, err := c.Decide(c.ctx, Request{Scope: "p/x"})
			if d.Allowed || !d.Grant.Zero() {
				c.t.Errorf("a caller who has gone got %+v", d)
			}
			c.gone <- err
		}()
	}
	redistest.WaitFor(c.t, "the callers to queue", bound, func() bool { return c.runner.queued() == before+n })
}

// join has one more caller queue, who stays.
func (c *crowd) join() {
	c.t.Helper()
	before := c.runner.queued()
	go func() { c.others <- allowed(c.Limiter, "p/x") }()
	redistest.WaitFor(c.t, "one more to queue", bound, func() bool { return c.runner.queued() == before+1 })
}

// send lets the senders go, and returns when what has queued has reached the server and its reply is held up at the gate.
func (c *crowd) send() {
	c.t.Helper()
	c.gate.step()
	c.stay(maxSenders)
	redistest.WaitFor(c.t, "the pipeline", bound, func() bool { return c.gate.held.Load() == 1 })
}

// stay has so many of those who stay be allowed.
func (c *crowd) stay(n int) {
	c.t.Helper()
	for range n {
		if err := <-c.others; err != nil {
			c.t.Errorf("a caller with a live context: %v", err)
		}
	}
}

// left has those who have queued leave, so many, while the gate is shut: at once.
func (c *crowd) left(n int) {
	c.t.Helper()
	c.leave()
	for range n {
		c.cancelled()
	}
}

func (c *crowd) cancelled() {
	c.t.Helper()
	select {
	case err := <-c.gone:
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
			c.t.Errorf("got %v, want the context's own error", err)
		}
	case <-time.After(bound):
		c.t.Fatal("a caller whose context has ended did not leave")
	}
}

// taken is how many units and places are in use.
func (c *crowd) taken() (units, places int64) {
	c.t.Helper()
	d, err := c.watch.Peek(context.Background(), Request{Scope: "p/x"})
	noError(c.t, err)
	units = 10 - d.Rules[0].Remaining - c.used
	if c.many {
		return units, units
	}
	return units, 10 - d.Rules[1].Remaining
}

func (c *crowd) wantTaken(want int64) {
	c.t.Helper()
	if units, places := c.taken(); units != want || places != want {
		c.t.Errorf("%d units and %d places are taken, want %d", units, places, want)
	}
}

func (c *crowd) waitTaken(want int64) {
	c.t.Helper()
	redistest.WaitFor(c.t, "what they took to be given back", bound, func() bool {
		units, places := c.taken()
		return units == want && places == want
	})
}

// "A caller whose context ends while others send for it leaves at once; one that sends for itself leaves when the client
// does. Either way what may have been granted to it is given back": once it may have been sent, and only then.
func TestCancelledCallGivesBack(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*crowd){
		"alone, and the reply is lost": func(c *crowd) {
			c.gate.lose.Store(1)
			go func() { _, err := c.Decide(c.ctx, Request{Scope: "p/x"}); c.gone <- err }()
			redistest.WaitFor(c.t, "the call", bound, func() bool { return c.gate.held.Load() == 1 })
			c.wantTaken(1)
			c.leave()
			c.gate.open()
			c.cancelled()
			c.waitTaken(0)
		},
		"queued, some before they are sent": func(c *crowd) {
			c.hold()
			c.queue(3)
			c.join()
			c.left(3)
			c.send()
			c.wantTaken(maxSenders + 1)
			c.gate.open()
			c.stay(1)
		},
		"queued, before the reply": func(c *crowd) {
			c.hold()
			c.queue(3)
			c.join()
			c.send()
			c.wantTaken(maxSenders + 4)
			c.left(3)
			c.gate.open()
			c.stay(1)
			c.waitTaken(maxSenders + 1)
		},
		"queued, and the reply is lost": func(c *crowd) {
			c.hold()
			c.queue(3)
			c.send()
			c.wantTaken(maxSenders + 3)
			c.left(3)
			c.gate.lose.Store(1)
			c.gate.open()
			c.waitTaken(maxSenders)
		},
	}
	for name, test := range tests {
		for how, rules := range map[string][]policy.Rule{"singly": {window10(), runs10()}, "together": {window10()}} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				test(newCrowd(t, redistest.Shared(t), rules...))
			})
		}
	}
}

// "One decision is one script call": one EVALSHA and no other command, whatever the number of levels and rules.
func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rules := []policy.Rule{
		{Name: "a", Algorithm: policy.SlidingWindow, Limit: 100, Per: sec}, {Name: "b", Algorithm: policy.TokenBucket, Limit: 100, Per: sec, Burst: 100},
		{Name: "c", Algorithm: policy.FixedWindow, Limit: 100, Per: time.Minute}, {Name: "d", Algorithm: policy.Concurrency, Limit: 100},
	}
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules, Scopes: map[string]policy.ScopeConfig{
		"*": {Rules: rules, Scopes: map[string]policy.ScopeConfig{"*": {Rules: rules}}},
	}}})
	rdb := server.Client(t)
	l := newLimiter(t, rdb, policy, Config{})
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
