package throttle

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

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
	if cfg.Logger == nil {
		cfg.Logger = slog.New(undamaged{t: t})
	}
	l := newLimiter(t, rdb, policy, cfg)
	b := &bench{Limiter: l, t: t, rdb: rdb, now: new(atomic.Int64)}
	b.now.Store(epoch)
	l.clock = func() string { return strconv.FormatInt(b.now.Load(), 10) }
	return b
}

// undamaged fails a test in which a script has failed at a value: the call would be sent once more,
// and the script's fault go unseen.
type undamaged struct {
	slog.Handler
	t *testing.T
}

func (u undamaged) Enabled(context.Context, slog.Level) bool { return true }

func (u undamaged) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "damaged") {
		r.Attrs(func(a slog.Attr) bool {
			u.t.Errorf("%s: %s", r.Message, a)
			return true
		})
	}
	return nil
}

// under is a limiter with another policy over the same state and clock: what a
// process is that was started after the limits had changed.
func (b *bench) under(rules ...policy.Rule) *bench {
	b.t.Helper()
	cfg := b.cfg
	if cfg.StartTolerance == 0 {
		cfg.StartTolerance = -1
	}
	l := newLimiter(b.t, b.rdb, policyOf(b.t, rules...), cfg)
	l.clock = b.clock
	return &bench{Limiter: l, t: b.t, rdb: b.rdb, now: b.now}
}

func (b *bench) at(us int64) { b.now.Store(epoch + us) }

// dispatch grants those of p whose turn it is.
func (b *bench) dispatch(req DispatchRequest) Dispatched {
	b.t.Helper()
	req.Provider = "p"
	d, err := b.Waitlist().Dispatch(ctx, req)
	noError(b.t, err)
	return d
}

// placesOf are the places of those who were granted.
func placesOf(list []Granted) (places []WaiterRef) {
	for _, g := range list {
		places = append(places, g.WaiterRef)
	}
	return places
}

func (b *bench) decide(req Request) Decision {
	b.t.Helper()
	d, err := b.Decide(context.Background(), req)
	if err != nil {
		b.t.Fatalf("at %dµs: %+v: %v", b.now.Load()-epoch, req, err)
	}
	return d
}

func (b *bench) giveBack(g Grant) {
	b.t.Helper()
	noError(b.t, b.Refund(context.Background(), g))
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

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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

func answerOf(d Decision) answer {
	r, _ := d.BindingRule()
	return answer{d.Allowed, r.Remaining, r.RetryAfter, r.ResetAfter}
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

type step struct {
	at   time.Duration
	cost int64
	want answer
}

func TestSteps(t *testing.T) {
	t.Parallel()
	allow := func(remaining int64, reset time.Duration) answer { return answer{true, remaining, 0, reset} }
	deny := func(remaining int64, retry, reset time.Duration) answer {
		return answer{false, remaining, retry, reset}
	}
	tests := map[string]struct {
		rule  policy.Rule
		steps []step
	}{
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
		"concurrency: places until the lease ends": {policy.Rule{Name: "r", Algorithm: policy.Concurrency, Limit: 2, Lease: 30 * sec}, []step{
			0: {0, 5, allow(1, 30*sec)},
			1: {10 * sec, 1, allow(0, 30*sec)},
			2: {10 * sec, 1, deny(0, 20*sec, 30*sec)},
			3: {30 * sec, 1, allow(0, 30*sec)},
		}},
	}
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

func parsedPolicy(tb testing.TB, text string) *policy.Policy {
	tb.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func parsedScope(tb testing.TB, s string) policy.Scope {
	tb.Helper()
	scope, err := policy.ParseScope(s)
	if err != nil {
		tb.Fatal(err)
	}
	return scope
}

// unitOf is what a rule counts that no policy has written the defaults of.
func unitOf(r policy.Rule) string {
	if r.Unit == "" && r.Algorithm != policy.Concurrency {
		return policy.Requests
	}
	return r.Unit
}

var allAlgorithms = []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow, policy.Concurrency, policy.Calendar}

const (
	hour   = time.Hour
	oneDay = 24 * time.Hour
)

// maxBucketTest is the longest time, in µs, that a bucket of a policy may take to fill.
const maxBucketTest = 1<<52 - 1

// scriptOf calls a script past the limiter, as any client of Redis can.
func scriptOf(s *lua.Script, kinds string) *redis.Script {
	return redis.NewScript(s.For(kinds).Source())
}
