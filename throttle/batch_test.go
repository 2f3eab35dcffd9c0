package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// bound is how long a test waits for what must come.
var bound = redistest.Stretch(time.Minute)

func (s *sender) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
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
	d, err := l.Allow(ctx, scope)
	if err == nil && !d.Allowed {
		err = errors.New("denied")
	}
	return err
}

// learn lets the server know the script that decides.
func learn(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	noError(t, rdb.ScriptLoad(ctx, lua.Decide.Source()).Err())
}

// askTogether has requests decided in one call of the script.
func (b *bench) askTogether(reqs ...Request) (all []Decision) {
	b.t.Helper()
	var batch []*ask
	for _, req := range reqs {
		p, err := b.prepare(&req)
		noError(b.t, err)
		batch = append(batch, p.ask(&req))
	}
	b.sender.together(slices.Clone(batch))
	for _, a := range batch {
		var d Decision
		noError(b.t, a.err)
		noError(b.t, b.answered(ctx, a, &d))
		all = append(all, d)
	}
	return all
}

// together has n callers queue while the senders are held up, calls before, and lets all go. call gets the number of its
// caller; the first maxSenders are the senders. Every error is reported.
func together(t *testing.T, l *Limiter, n int, before func(), call func(i int) error) *gate {
	t.Helper()
	g := gated(l.rdb)
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
	redistest.WaitFor(t, "the others to queue", bound, func() bool { return l.sender.queued() == n })
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

// "decisions asked for while one is on the way go out together", as one script call for each provider, at once: each caller gets
// its own answer.
func TestCallersShareRoundTrips(t *testing.T) {
	t.Parallel()
	scopes := map[string]policy.ScopeConfig{}
	for i := range 40 {
		scopes[fmt.Sprint(i)] = policy.ScopeConfig{Rules: []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: int64(100 + i), Per: time.Minute}}}
	}
	policy := limitsOf(t, map[string]policy.ScopeConfig{"p": {Scopes: scopes}, "q": {Scopes: scopes}})
	b := newBench(t, redistest.Client(t), Config{}, policy)
	learn(t, b.rdb)
	g := together(t, b.Limiter, 38, nil, func(i int) error {
		d, err := b.Decide(ctx, Request{Scope: []string{"p/", "q/"}[i%2] + fmt.Sprint(i), Cost: int64(1 + i), ID: fmt.Sprint("id", i)})
		switch {
		case err != nil:
			return err
		case d.Rules[0].Remaining != 99 || d.Rules[0].Limit != int64(100+i) || d.Grant.ID() != fmt.Sprint("id", i):
			return fmt.Errorf("caller %d got another's answer: %+v", i, d)
		}
		return nil
	})
	if trips := g.trips.Load(); trips != maxSenders+2 {
		t.Errorf("40 decisions took %d calls, want %d", trips, maxSenders+2)
	}
}

func keyOf(t *testing.T, l *Limiter, scope string, rule int) string {
	t.Helper()
	p, err := l.plan(scope)
	noError(t, err)
	return wire.StateKey(p.Prefix, p.Rules[rule])
}

// crowd is a limiter whose senders are held up at a gate, so that whoever else asks has to queue, and a look past that gate at the
// same keys.
type crowd struct {
	*bench
	gate   *gate
	watch  *bench
	others chan error // what becomes of those who stay
	ctx    context.Context
	leave  context.CancelFunc
	gone   chan error // what becomes of those who leave
}

func newCrowd(t *testing.T, server *redistest.Server) *crowd {
	t.Helper()
	b := newBench(t, server.Client(t), Config{Timeout: 3 * bound}, policyOf(t, window10(), runs10())) // no time-out does what a context has to
	c := &crowd{bench: b, watch: b.beside(server.Client(t), b.Policy()), others: make(chan error), gone: make(chan error)}
	c.ctx, c.leave = context.WithCancel(t.Context())
	t.Cleanup(c.leave)
	learn(t, c.rdb)
	c.gate = gated(c.rdb)
	c.gate.close()
	return c
}

// asks has one ask who will leave.
func (c *crowd) asks() {
	d, err := c.Decide(c.ctx, Request{Scope: "p/x"})
	if d.Allowed || !d.Grant.Zero() {
		c.t.Errorf("a caller who has gone got %+v", d)
	}
	c.gone <- err
}

// queue holds the senders up at the gate, and has three callers queue who will leave, and so many who stay.
func (c *crowd) queue(stay int) {
	c.t.Helper()
	staying := func() { c.others <- allowed(c.Limiter, "p/x") }
	for range maxSenders {
		go staying()
	}
	redistest.WaitFor(c.t, "the senders", bound, func() bool { return c.gate.held.Load() == maxSenders })
	for range 3 {
		go c.asks()
	}
	for range stay {
		go staying()
	}
	redistest.WaitFor(c.t, "the callers to queue", bound, func() bool { return c.sender.queued() == 3+stay })
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

// left has so many leave, at once, though the gate may be shut.
func (c *crowd) left(n int) {
	c.t.Helper()
	c.leave()
	for range n {
		select {
		case err := <-c.gone:
			if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
				c.t.Errorf("got %v, want the context's own error", err)
			}
		case <-time.After(bound):
			c.t.Fatal("a caller whose context has ended did not leave")
		}
	}
}

// taken waits until so many units, and as many places, are in use.
func (c *crowd) taken(want int64) {
	c.t.Helper()
	redistest.WaitFor(c.t, fmt.Sprint(want, " to be taken"), bound, func() bool {
		d, err := c.watch.Peek(ctx, Request{Scope: "p/x"})
		noError(c.t, err)
		return 10-d.Rules[0].Remaining == want && 10-d.Rules[1].Remaining == want
	})
}

// "A caller whose context ends while others send for it leaves at once; one that sends for itself leaves when the client
// does. Either way what may have been granted to it is given back": once it may have been sent, and only then.
func TestCancelledCallGivesBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*crowd){
		"alone, and the reply is lost": func(c *crowd) {
			c.gate.lose.Store(1)
			go c.asks()
			c.taken(1)
			c.leave()
			c.gate.open()
			c.left(1)
			c.taken(0)
		},
		"queued, some before they are sent": func(c *crowd) {
			c.queue(1)
			c.left(3)
			c.send()
			c.taken(maxSenders + 1)
			c.gate.open()
			c.stay(1)
		},
		"queued, before the reply": func(c *crowd) {
			c.queue(1)
			c.send()
			c.taken(maxSenders + 4)
			c.left(3)
			c.gate.open()
			c.stay(1)
			c.taken(maxSenders + 1)
		},
		"queued, and the reply is lost": func(c *crowd) {
			c.queue(0)
			c.send()
			c.taken(maxSenders + 3)
			c.left(3)
			c.gate.lose.Store(1)
			c.gate.open()
			c.taken(maxSenders)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newCrowd(t, redistest.Shared(t)))
		})
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
	noError(t, allowed(l, "p/x/y")) // the script is known from now on
	g := gated(rdb)
	for name, ask := range map[string]func(context.Context, Request) (Decision, error){"decide": l.Decide, "peek": l.Peek} {
		_, _ = ask(ctx, Request{Scope: "p/x/y"})
		trips := g.trips.Load()
		commands := redistest.Commands(t, server.Client(t), func() {
			if d, err := ask(ctx, Request{Scope: "p/x/y"}); err != nil || !d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		})
		if g.trips.Load()-trips != 1 || commands["evalsha"] != 1 || commands["time"] != 1 || commands["eval"] != 0 {
			t.Errorf("%s took %d round trips: %v", name, g.trips.Load()-trips, commands)
		}
	}
}
