package throttle

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// bench is a limiter whose clock is the test's own, on one kind of server.
type bench struct {
	*Limiter
	t   *testing.T
	rdb redis.UniversalClient
	now *atomic.Int64 // µs since epoch
}

// epoch is where tests begin: a whole day, so that every fixed window begins there too.
const epoch = 1_800_057_600_000_000

// onBoth runs a test on a real Redis and then on miniredis, which hides what the real one shows and is what the embedded
// server is made of. The two run one after the other, since they share the test's variables. Tests run in parallel.
func onBoth(t *testing.T, cfg Config, policy *policy.Policy, test func(*bench)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { test(newBench(t, redistest.Client(t), cfg, policy)) })
	t.Run("miniredis", func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		test(newBench(t, rdb, cfg, policy))
	})
}

// onBothIn is onBoth in a subtest of its own, beside the others.
func onBothIn(t *testing.T, name string, cfg Config, policy *policy.Policy, test func(*bench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		onBoth(t, cfg, policy, test)
	})
}

func newBench(t *testing.T, rdb redis.UniversalClient, cfg Config, policy *policy.Policy) *bench {
	t.Helper()
	cfg.Prefix = redistest.Prefix(t)
	if cfg.StartTolerance == 0 {
		cfg.StartTolerance = -1
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = bound // on busy processors, a server may be given none of them for seconds
	}
	l := newLimiter(t, rdb, policy, cfg)
	b := &bench{Limiter: l, t: t, rdb: rdb, now: new(atomic.Int64)}
	b.now.Store(epoch)
	l.clock = func() string { return strconv.FormatInt(b.now.Load(), 10) }
	return b
}

// beside is a limiter of another process, over the same state and clock.
func (b *bench) beside(rdb redis.UniversalClient, policy *policy.Policy) *bench {
	b.t.Helper()
	cfg := b.cfg
	if cfg.StartTolerance == 0 {
		cfg.StartTolerance = -1
	}
	l := newLimiter(b.t, rdb, policy, cfg)
	l.clock = b.clock
	return &bench{Limiter: l, t: b.t, rdb: rdb, now: b.now}
}

// under is beside with another policy of p: a process that was started after its limits had changed.
func (b *bench) under(rules ...policy.Rule) *bench {
	b.t.Helper()
	return b.beside(b.rdb, policyOf(b.t, rules...))
}

// pass lets time pass by the server's clock.
func (b *bench) pass(d time.Duration) { b.now.Add(d.Microseconds()) }

func (b *bench) at(us int64) { b.now.Store(epoch + us) }

func (b *bench) decide(req Request) Decision {
	b.t.Helper()
	d, err := b.Decide(ctx, req)
	if err != nil {
		b.t.Fatalf("at %dµs: %+v: %v", b.now.Load()-epoch, req, err)
	}
	return d
}

// grants wants a request to be allowed, or else to be told how long to wait.
func (b *bench) grants(req Request, retry time.Duration) Decision {
	b.t.Helper()
	d := b.decide(req)
	if d.Allowed != (retry == 0) || d.RetryAfter != retry {
		b.t.Errorf("%+v is not allowed in %s: %+v", req, retry, d)
	}
	return d
}

func (b *bench) giveBack(g Grant) {
	b.t.Helper()
	noError(b.t, b.Refund(ctx, g))
}

func (b *bench) plan(scope string) *plan {
	b.t.Helper()
	p, err := b.Limiter.plan(scope)
	noError(b.t, err)
	return p
}

// peek is what Peek says of the scope p/x.
func (b *bench) peek() Decision {
	b.t.Helper()
	d, err := b.Peek(ctx, Request{Scope: "p/x"})
	noError(b.t, err)
	return d
}

// queued has tasks of a scope wait in the queue default.
func (b *bench) queued(scope string, ids ...string) {
	b.t.Helper()
	var tasks []waitlist.Waiter
	for _, id := range ids {
		tasks = append(tasks, waitlist.Waiter{Scope: scope, Queue: "default", ID: id})
	}
	joined, err := b.Waitlist().Join(ctx, tasks)
	noError(b.t, err)
	for _, j := range joined {
		noError(b.t, j.Err)
	}
}

// dispatched grants waiting tasks of p their starts, so far ahead.
func (b *bench) dispatched(lead time.Duration, news ...waitlist.News) []waitlist.Granted {
	b.t.Helper()
	noError(b.t, b.Waitlist().Report(ctx, "p", news))
	d, err := b.Waitlist().Dispatch(ctx, waitlist.Request{Provider: "p", Max: 10, Lead: lead, Serves: []wire.Weighted{{Queue: "default", Weight: 1}}})
	noError(b.t, err)
	return d.Granted
}

// waiter is a task of the queue default.
func waiter(id string) Waiter { return Waiter{Queue: "default", ID: id, MaxDelay: MaxDelayLimit} }

// tenants is a policy of provider p with rules for it and for each tenant.
func tenants(t testing.TB, rules, tenant []policy.Rule) *policy.Policy {
	t.Helper()
	return limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules, Scopes: map[string]policy.ScopeConfig{"*": {Rules: tenant}}}})
}

func policyOf(t testing.TB, rules ...policy.Rule) *policy.Policy {
	t.Helper()
	return limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules}})
}

func limitsOf(t testing.TB, levels map[string]policy.ScopeConfig) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.UnmatchedDeny, levels)
	noError(t, err)
	return p
}

var noError = redistest.Must

func newLimiter(t testing.TB, rdb redis.UniversalClient, policy *policy.Policy, cfg Config) *Limiter {
	t.Helper()
	l, err := New(rdb, policy, cfg)
	noError(t, err)
	return l
}

// answer is what one decision of a step table must be: the binding rule's own.
type answer struct {
	allowed      bool
	remaining    int64
	retry, reset time.Duration
}

func (a answer) String() string {
	return fmt.Sprintf("{allowed %t, remaining %d, retry %s, reset %s}", a.allowed, a.remaining, a.retry, a.reset)
}

func allow(remaining int64, reset time.Duration) answer { return answer{true, remaining, 0, reset} }

func deny(remaining int64, retry, reset time.Duration) answer {
	return answer{false, remaining, retry, reset}
}

func answerOf(d Decision) answer {
	r, _ := d.BindingRule()
	return answer{d.Allowed, r.Remaining, r.RetryAfter, r.ResetAfter}
}

var ctx = context.Background()

const (
	ms     = time.Millisecond
	sec    = time.Second
	hour   = time.Hour
	oneDay = 24 * time.Hour
)

// step is a decision at some time since epoch, and what it must be.
type step struct {
	at   time.Duration
	cost int64
	want answer
}

// algorithm is a rule alone on its path, and decisions of it in their order.
type algorithm struct {
	rule  policy.Rule
	steps []step
}

func testSteps(t *testing.T, tests map[string]algorithm) {
	t.Helper()
	for name, test := range tests {
		onBothIn(t, name, Config{}, policyOf(t, test.rule), func(b *bench) {
			for i, s := range test.steps {
				b.at(s.at.Microseconds())
				if got := answerOf(b.decide(Request{Scope: "p/x", Cost: s.cost})); got != s.want {
					b.t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

// Each algorithm, step by step, alone on its path.
func TestSteps(t *testing.T) {
	t.Parallel()
	testSteps(t, map[string]algorithm{
		"token bucket: burst, then pace": {policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 3}, []step{
			0: {0, 1, allow(2, 100*ms)},
			1: {0, 2, allow(0, 300*ms)},
			2: {0, 1, deny(0, 100*ms, 300*ms)},
			3: {100*ms - 1*time.Microsecond, 1, deny(0, time.Microsecond, 200*ms+time.Microsecond)},
			4: {100 * ms, 1, allow(0, 300*ms)},
			5: {1000 * ms, 3, allow(0, 300*ms)},
			6: {1250 * ms, 3, deny(2, 50*ms, 50*ms)},
		}},
		"token bucket: a rate that divides nothing": {policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 3, Per: sec}, []step{
			0: {0, 1, allow(0, 333334*time.Microsecond)},
			1: {333333 * time.Microsecond, 1, deny(0, time.Microsecond, time.Microsecond)},
			2: {333334 * time.Microsecond, 1, allow(0, 333334*time.Microsecond)},
			3: {666667 * time.Microsecond, 1, deny(0, time.Microsecond, time.Microsecond)},
			4: {666668 * time.Microsecond, 1, allow(0, 333334*time.Microsecond)},
		}},
		"sliding window: strict in any window": {policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 3, Per: sec}, []step{
			0: {0, 1, allow(2, sec)},
			1: {400 * ms, 2, allow(0, sec)},
			2: {500 * ms, 1, deny(0, 500*ms, 900*ms)},
			3: {500 * ms, 2, deny(0, 900*ms, 900*ms)},
			4: {1000*ms - time.Microsecond, 1, deny(0, time.Microsecond, 400*ms+time.Microsecond)},
			5: {1000 * ms, 1, allow(0, sec)},
			6: {1400 * ms, 3, deny(2, 600*ms, 600*ms)},
			7: {2000 * ms, 3, allow(0, sec)},
		}},
		"fixed window: from its first unit": {policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: 2, Per: sec, OpensOnUse: true}, []step{
			0: {900 * ms, 1, allow(1, sec)},
			1: {1500 * ms, 1, allow(0, 400*ms)},
			2: {1500 * ms, 1, deny(0, 400*ms, 400*ms)},
			3: {1900*ms - time.Microsecond, 1, deny(0, time.Microsecond, time.Microsecond)},
			4: {1900 * ms, 2, allow(0, sec)},
			5: {3700 * ms, 1, allow(1, sec)},
			6: {4699 * ms, 1, allow(0, ms)},
			7: {4700 * ms, 2, allow(0, sec)},
		}},
		"concurrency: places of holders that crashed, until the lease ends": {policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 2, Lease: 30 * sec}, []step{
			0: {0, 5, allow(1, 30*sec)},
			1: {10 * sec, 1, allow(0, 30*sec)},
			2: {10 * sec, 1, deny(0, 20*sec, 30*sec)},
			3: {30 * sec, 1, allow(0, 30*sec)},
		}},
	})
}

func parsedPolicy(tb testing.TB, text string) *policy.Policy {
	tb.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	noError(tb, err)
	return p
}

func parsedScope(tb testing.TB, s string) policy.Scope {
	tb.Helper()
	scope, err := policy.ParseScope(s)
	noError(tb, err)
	return scope
}
