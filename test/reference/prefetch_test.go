package reference

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/wallclock"
)

// far has each call take up to so long there, and as long back.
type far struct{ most time.Duration }

func (f far) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f far) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer f.pass()
		f.pass()
		return next(ctx, cmd)
	}
}

func (f far) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer f.pass()
		f.pass()
		return next(ctx, cmds)
	}
}

func (f far) pass() { <-time.After(rand.N(f.most)) }

// crowd is several processes whose callers come and go, and start what they are granted up to a pad late.
type crowd struct {
	t        *testing.T
	rules    []policy.Rule
	policies [2]*policy.Policy
	began    time.Time
	idle     time.Time // until then nobody comes

	mu               sync.Mutex
	spent            []Spent
	granted, ofStock int
}

const (
	crowdLasts = 45 * time.Second
	crowdSize  = 8
	crowdPad   = 5 * time.Millisecond
	crowdFar   = 2 * time.Millisecond
)

// "The bound stays as strict": several processes charge units ahead, are idle, come back in crowds, give back and settle,
// change their policies and hear of pauses, and whatever they start keeps the bound in any window at all.
func TestPrefetchKeepsTheBound(t *testing.T) {
	t.Parallel()
	bucket := policy.Rule{Algorithm: policy.TokenBucket, Limit: 300, Per: 10 * time.Second, Burst: 300}
	window := policy.Rule{Algorithm: policy.SlidingWindow, Limit: 120, Per: 10 * time.Second}
	fixed := policy.Rule{Algorithm: policy.FixedWindow, Limit: 400, Per: 10 * time.Second}
	onUse := policy.Rule{Algorithm: policy.FixedWindow, Limit: 400, Per: 10 * time.Second, OpensOnUse: true}
	minute := policy.Rule{Algorithm: policy.Calendar, Limit: 1500, Resets: wallclock.MustParse("* * * * *", "UTC")}
	for name, rules := range map[string][]policy.Rule{
		"sliding window": {window}, "token bucket": {bucket}, "fixed window": {fixed}, "window on use": {onUse}, "calendar": {minute}, "a path": {minute, window, bucket},
	} {
		for i, r := range rules {
			rules[i].Name, rules[i].Prefetch = string(r.Algorithm), 50*time.Millisecond
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seeds := 1
			if s, err := strconv.Atoi(os.Getenv("PREFETCH_SEEDS")); err == nil {
				seeds = s
			}
			granted, ofStock := 0, 0
			for range seeds {
				seed := rand.Uint64()
				synctest.Test(t, func(t *testing.T) {
					c := crowd{t: t, rules: rules, began: time.Now()}
					c.run(seed)
					c.judge(seed)
					granted, ofStock = granted+c.granted, ofStock+c.ofStock
				})
			}
			if ofStock < granted/20 {
				t.Errorf("of %d that were granted %d were charged ahead", granted, ofStock)
			}
			t.Logf("%d granted, %d of them charged ahead", granted, ofStock)
		})
	}
}

func (c *crowd) run(seed uint64) {
	for i := range c.policies {
		rules := append([]policy.Rule(nil), c.rules...)
		rules[0].MaxWait = time.Duration(i+1) * time.Hour
		policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
		if err != nil {
			c.t.Fatal(err)
		}
		c.policies[i] = policy
	}
	m, _ := redistest.Miniredis(c.t)
	var group sync.WaitGroup
	for i := range uint64(3) {
		rdb := redis.NewClient(redistest.MiniredisOptions(m))
		defer func() { _ = rdb.Close() }()
		rdb.AddHook(far{crowdFar})
		l, err := throttle.New(rdb, c.policies[0], throttle.Config{StartTolerance: crowdPad, Unbatched: i == 2})
		if err != nil {
			c.t.Fatal(err)
		}
		for j := range uint64(crowdSize) {
			group.Go(func() { c.call(l, rand.New(rand.NewPCG(seed, crowdSize*i+j))) })
		}
		group.Go(func() { c.disturb(l, rand.New(rand.NewPCG(seed, 100+i))) })
	}
	group.Go(func() { c.rest(rand.New(rand.NewPCG(seed, 200))) })
	group.Wait()
	<-time.After(time.Second) // what is in stock goes back
}

func (c *crowd) over() bool { return time.Since(c.began) > crowdLasts }

// rest has everybody come for a while, and then nobody.
func (c *crowd) rest(rng *rand.Rand) {
	for !c.over() {
		<-time.After(time.Duration(rng.Int64N(int64(4 * time.Second))))
		idle := time.Duration(rng.Int64N(int64(11 * time.Second)))
		c.mu.Lock()
		c.idle = time.Now().Add(idle)
		c.mu.Unlock()
		<-time.After(idle)
	}
}

// disturb changes the policy for one with the same limits, and now and then hears of a pause.
func (c *crowd) disturb(l *throttle.Limiter, rng *rand.Rand) {
	for i := 0; !c.over(); i++ {
		<-time.After(time.Duration(rng.Int64N(int64(5 * time.Second))))
		if rng.IntN(4) > 0 {
			l.SetPolicy(c.policies[i%2])
		} else if _, err := l.Report(c.t.Context(), "p/x", upstream.Hint{Limited: true, RetryKnown: true, Retry: time.Second}); err != nil {
			c.t.Error(err)
		}
	}
}

// call asks, starts, gives back and settles.
func (c *crowd) call(l *throttle.Limiter, rng *rand.Rand) {
	for !c.over() {
		c.mu.Lock()
		idle := time.Until(c.idle)
		c.mu.Unlock()
		<-time.After(idle)
		cost := []int64{1, 1, 1, 1, 2, 5}[rng.IntN(6)]
		req := throttle.Request{Scope: "p/x", Cost: cost}
		decide := l.Decide
		if rng.IntN(3) == 0 {
			decide = l.Start
		}
		d, err := decide(c.t.Context(), req)
		switch {
		case err != nil:
			c.t.Error(err)
			return
		case !d.Allowed:
			<-time.After(min(d.RetryAfter, 3*time.Second) + time.Duration(rng.Int64N(int64(3*time.Millisecond))))
			continue
		}
		<-time.After(time.Duration(rng.Int64N(int64(crowdPad))))
		c.start(l, d, cost, rng)
		<-time.After(time.Duration(rng.ExpFloat64() * float64(2*time.Millisecond)))
	}
}

func (c *crowd) start(l *throttle.Limiter, d throttle.Decision, cost int64, rng *rand.Rand) {
	what := rng.IntN(20)
	c.mu.Lock()
	c.granted++
	if d.Prefetched {
		c.ofStock++
	}
	if what == 1 {
		cost = max(1, cost-1)
	}
	if what > 0 {
		c.spent = append(c.spent, Spent{Start: time.Now().UnixMicro(), Units: cost})
	}
	c.mu.Unlock()
	var err error
	switch what {
	case 0:
		err = l.Refund(c.t.Context(), d.Grant)
	case 1:
		_, err = l.Settle(c.t.Context(), d.Grant, policy.Costs{"requests": cost})
	}
	if err != nil {
		c.t.Error(err)
	}
}

func (c *crowd) judge(seed uint64) {
	for _, r := range c.rules {
		model := Rule{Algorithm: Algorithm(r.Algorithm), Limit: r.Limit, Per: r.Per.Microseconds(), Burst: r.Burst, OnUse: r.OpensOnUse, Begins: every(time.Minute)}
		if fault := Over(model, c.spent); fault != "" {
			c.t.Errorf("seed %d: %s: %s", seed, r.Name, fault)
		}
	}
}

// "The bound stays as strict": units that are used as late as they may be, before others come for what is free by then.
func TestPrefetchedAndUsedLate(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]policy.Rule{
		"sliding window":    {Algorithm: policy.SlidingWindow, Limit: 120, Per: 10 * time.Second},
		"coarse cells":      {Algorithm: policy.SlidingWindow, Limit: 500, Per: 10 * time.Second},
		"token bucket":      {Algorithm: policy.TokenBucket, Limit: 12_000, Per: 10 * time.Second, Burst: 1000},
		"fixed window":      {Algorithm: policy.FixedWindow, Limit: 120, Per: 10 * time.Second},
		"window on use":     {Algorithm: policy.FixedWindow, Limit: 120, Per: 10 * time.Second, OpensOnUse: true},
		"calendar":          {Algorithm: policy.Calendar, Limit: 120, Resets: wallclock.MustParse("* * * * *", "UTC")},
		"calendar, carried": {Algorithm: policy.Calendar, Limit: 120, Resets: wallclock.MustParse("* * * * *", "UTC"), Rollover: 30},
	} {
		r.Name, r.Prefetch = "r", 50*time.Millisecond
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { usedLate(t, r) })
		})
	}
}

func usedLate(t *testing.T, r policy.Rule) {
	t.Helper()
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{r}}})
	if err != nil {
		t.Fatal(err)
	}
	_, rdb := redistest.Miniredis(t)
	var processes [2]*throttle.Limiter
	for i := range processes {
		if processes[i], err = throttle.New(rdb, pol, throttle.Config{StartTolerance: crowdPad}); err != nil {
			t.Fatal(err)
		}
	}
	var spent []Spent
	prefetched := 0
	take := func(l *throttle.Limiter, late time.Duration) throttle.Decision {
		d, err := l.Allow(t.Context(), "p/x")
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			spent = append(spent, Spent{Start: time.Now().Add(late).UnixMicro(), Units: 1})
		}
		if d.Prefetched {
			prefetched++
		}
		return d
	}
	per := max(r.Per, time.Minute)
	until := func(at time.Time) { <-time.After(time.Until(at)) }
	moments := []time.Duration{1, 6, 20, 40, 49, 51, 54, 56, 5000}
	if testing.Short() {
		moments = []time.Duration{6, 49, 51, 56}
	}
	for _, ms := range moments {
		rush := time.Now().Truncate(per).Add(2 * per).Add(-ms * time.Millisecond)
		if r.Algorithm == policy.TokenBucket { // what was used long before its rate has let go
			for until(rush.Add(-500 * time.Millisecond)); time.Until(rush) > 0; <-time.After(time.Millisecond) {
				take(processes[0], 0)
			}
		}
		until(rush)
		for seen := false; ; {
			d := take(processes[0], 0)
			if !d.Allowed || seen && !d.Prefetched {
				break // its call has charged for those to come
			}
			seen = d.Prefetched
		}
		until(rush.Add(r.Prefetch - 1))
		for range 50 {
			take(processes[0], crowdPad-1)
		}
		for again := max(r.Per, 10*time.Second); time.Since(rush) < again+120*time.Millisecond; <-time.After(time.Millisecond) {
			if since := time.Since(rush); since > 120*time.Millisecond && since < again-5*time.Millisecond {
				until(rush.Add(again - 5*time.Millisecond))
			}
			for take(processes[1], 0).Allowed {
				continue
			}
		}
	}
	<-time.After(time.Second) // what is in stock goes back
	model := Rule{Algorithm: Algorithm(r.Algorithm), Limit: r.Limit, Per: r.Per.Microseconds(), Burst: r.Burst, Rollover: r.Rollover, OnUse: r.OpensOnUse, Begins: every(time.Minute)}
	if fault := Over(model, spent); fault != "" {
		t.Error(fault)
	}
	if prefetched < 30 {
		t.Errorf("%d of %d were charged ahead", prefetched, len(spent))
	}
}
