package traps

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	us   = time.Microsecond
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour

	// epoch is where virtual time begins, in seconds: a whole day, so that every
	// fixed window begins there too.
	epoch = 1_800_057_600

	// bound is how long a test waits for what must happen.
	bound = 120 * sec
)

// world is a Redis, a name of its own in it, and a clock for the test to turn.
type world struct {
	*testing.T
	rdb    *redis.Client
	mini   *miniredis.Miniredis // nil for a real Redis
	clock  *clock
	prefix string
}

// onBoth runs test on a real Redis and on miniredis, which is what the embedded
// server is made of.
func onBoth(t *testing.T, test func(*world)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(onReal(t))
	})
	t.Run("miniredis", func(t *testing.T) {
		t.Parallel()
		test(onMini(t))
	})
}

func onReal(t *testing.T) *world {
	t.Helper()
	return newWorld(t, redistest.Client(t), nil)
}

// onMini speaks TCP, as the embedded server does: a pipe in memory has no room
// for the pipelines of many callers.
func onMini(t *testing.T) *world {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	rdb := redis.NewClient(miniOptions(m))
	t.Cleanup(func() { _ = rdb.Close() })
	return newWorld(t, rdb, m)
}

func miniOptions(m *miniredis.Miniredis) *redis.Options {
	return &redis.Options{Addr: m.Addr(), ReadTimeout: bound, DisableIdentity: true}
}

func newWorld(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis) *world {
	t.Helper()
	w := &world{T: t, rdb: rdb, mini: m, clock: &clock{own: m != nil}, prefix: redistest.Prefix(t)}
	rdb.AddHook(w.clock)
	return w
}

// anew forgets all that was spent.
func (w *world) anew() { w.prefix = redistest.Prefix(w.T) }

// at turns the clock to d after the epoch, where it stands still. Without it the
// clock is the server's own.
func (w *world) at(d time.Duration) {
	now := time.Unix(epoch, 0).Add(d)
	if w.mini != nil {
		w.mini.SetTime(now)
	}
	w.clock.now.Store(now.UnixMicro())
}

// clock is a hook that stands in for Redis's clock: every script takes the time
// as its first argument, "" for the server's own, and gets the test's instead.
// So a real Redis is steered through the public API, as miniredis is by SetTime.
// Its keys still expire by its own clock, which is the slower one.
type clock struct {
	now atomic.Int64
	own bool // the server's own is what the test turns
}

func (c *clock) turn(cmd redis.Cmder) {
	now := c.now.Load()
	if i := firstArg(cmd); now != 0 && i > 0 && cmd.Args()[i] == "" {
		if !c.own {
			cmd.Args()[i] = strconv.FormatInt(now, 10)
		}
		if since := sinceArgs()[cmd.Args()[1]]; since > 0 {
			cmd.Args()[i+since] = 0
		}
	}
}

// sinceArgs tells, by the scripts' hashes and texts, how far behind the clock the argument is that says
// what the clock shows at least. A clock that stands still while a test takes its time has not stepped back.
var sinceArgs = sync.OnceValue(func() map[any]int {
	at := map[any]int{}
	const since = 5
	for set := range 1 << len(lua.Kinds) {
		kinds := ""
		for i := range len(lua.Kinds) {
			if set>>i&1 == 1 {
				kinds += lua.Kinds[i : i+1]
			}
		}
		variant := lua.Settle.For(kinds)
		at[variant.SHA()], at[variant.Source()] = since, since
	}
	return at
})

func (c *clock) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *clock) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.turn(cmd)
		return next(ctx, cmd)
	}
}

func (c *clock) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.turn(cmd)
		}
		return next(ctx, cmds)
	}
}

// firstArg returns where ARGV[1] stands in a script's call, 0 for other commands.
func firstArg(cmd redis.Cmder) int {
	if !strings.HasPrefix(cmd.Name(), "eval") {
		return 0
	}
	keys, _ := cmd.Args()[2].(int)
	if i := 3 + keys; i < len(cmd.Args()) {
		return i
	}
	return 0
}

// spy is a hook that sees the scripts' calls that were answered.
type spy struct {
	mu    sync.Mutex
	calls [][]any
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.see(cmd, err)
		return err
	}
}

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			s.see(cmd, cmd.Err())
		}
		return err
	}
}

func (s *spy) see(cmd redis.Cmder, err error) {
	if firstArg(cmd) == 0 || err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, slices.Clone(cmd.Args()))
}

// keys returns the keys that were named, each once.
func (s *spy) keys() []string {
	var keys []string
	for _, args := range s.calls {
		for _, key := range args[3 : 3+args[2].(int)] {
			keys = append(keys, key.(string))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// limiter is one process's view of the limits.
type limiter struct {
	*throttle.Limiter
	w *world
}

// limiter returns a limiter whose provider p has the rules. Those of one world
// share what is spent, rule by rule.
func (w *world) limiter(rules ...policy.Rule) limiter {
	w.Helper()
	return w.limiterOn(w.rdb, w.policy(rules...))
}

func (w *world) policy(rules ...policy.Rule) *policy.Policy {
	w.Helper()
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// parsed reads a limits.yaml.
func (w *world) parsed(text string) *policy.Policy {
	w.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// limiterOn has no pad, so that times are exact.
func (w *world) limiterOn(rdb redis.UniversalClient, p *policy.Policy) limiter {
	w.Helper()
	l, err := throttle.New(rdb, p, throttle.Config{Prefix: w.prefix, StartTolerance: -1, Timeout: bound})
	if err != nil {
		w.Fatal(err)
	}
	return limiter{l, w}
}

func (l limiter) decide(req throttle.Request) throttle.Decision {
	l.w.Helper()
	if req.Scope == "" {
		req.Scope = "p/x"
	}
	d, err := l.Decide(context.Background(), req)
	if err != nil {
		l.w.Fatalf("%+v: %v", req, err)
	}
	return d
}

func (l limiter) take(cost int64) throttle.Decision {
	l.w.Helper()
	return l.decide(throttle.Request{Cost: cost})
}

// admitted returns how many of n calls in a row are admitted.
func (l limiter) admitted(n int) int {
	l.w.Helper()
	count := 0
	for range n {
		if l.take(1).Allowed {
			count++
		}
	}
	return count
}

// left is how many units the only rule has left.
func (l limiter) left() int64 {
	l.w.Helper()
	d, err := l.Peek(context.Background(), throttle.Request{Scope: "p/x"})
	if err != nil {
		l.w.Fatal(err)
	}
	return d.Rules[0].Remaining
}

func (l limiter) giveBack(d throttle.Decision) {
	l.w.Helper()
	if err := l.Refund(context.Background(), d.Grant); err != nil {
		l.w.Fatal(err)
	}
}

// size is n, and a part of it on miniredis, whose scripts take long under the
// race detector.
func (w *world) size(n int) int {
	if w.mini == nil {
		return n
	}
	return max(n/10, 10)
}

// keys returns the keys of this world that exist.
func (w *world) keys() []string {
	w.Helper()
	keys, err := w.rdb.Keys(context.Background(), w.prefix+":*").Result()
	if err != nil {
		w.Fatal(err)
	}
	slices.Sort(keys)
	return keys
}

// state is all that the limiter keeps but attempt ids, and when it expires.
func (w *world) state() string {
	w.Helper()
	ctx := context.Background()
	var b strings.Builder
	for _, key := range w.keys() {
		if strings.Contains(key, "@") {
			continue
		}
		value := w.rdb.Get(ctx, key).Val()
		if value == "" {
			value = fmt.Sprint(w.rdb.ZRangeWithScores(ctx, key, 0, -1).Val())
		}
		expires := w.rdb.PTTL(ctx, key).Val()
		if w.mini == nil {
			expires = w.rdb.PExpireTime(ctx, key).Val()
		}
		fmt.Fprintf(&b, "%s = %q until %v\n", key, value, expires)
	}
	return b.String()
}

func bucket(limit int64, per time.Duration, burst int64) policy.Rule {
	return policy.Rule{Name: "bucket", Algorithm: policy.TokenBucket, Limit: limit, Per: per, Burst: burst}
}

func sliding(limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Name: "sliding", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
}

func fixed(limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Name: "fixed", Algorithm: policy.FixedWindow, Limit: limit, Per: per}
}

func places(limit int64, lease time.Duration) policy.Rule {
	return policy.Rule{Name: "places", Algorithm: policy.Concurrency, Limit: limit, Lease: lease}
}

// rates are the rules that count units in time: each admits limit at once and
// limit more after per.
func rates(limit int64, per time.Duration) []policy.Rule {
	return []policy.Rule{bucket(limit, per, limit), sliding(limit, per), fixed(limit, per)}
}

// kinds are the rules of all four algorithms.
func kinds(limit int64, per time.Duration) []policy.Rule {
	return append(rates(limit, per), places(limit, per))
}

// forEach runs test for each rule, on both servers.
func forEach(t *testing.T, rules []policy.Rule, test func(w *world, rule policy.Rule)) {
	t.Helper()
	for _, rule := range rules {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(w *world) { test(w, rule) })
		})
	}
}
