package waitlist

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// "Only the queues are ground truth": whatever else is damaged is made anew from them, and the order within each stays.
func TestDamage(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, spoil := range map[string]func(rdb redis.UniversalClient, prefix string){
		"blocked":    func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"blocked", "x", 0) },
		"ready":      func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"ready", "x", 0) },
		"ready node": func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"ready:q:/a", "x", 0) },
		"left":       func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"left:q:", "x", 0) },
		"rules text": func(rdb redis.UniversalClient, prefix string) { rdb.HSet(ctx, prefix+"rules", "/a", "short") },
		"flight": func(rdb redis.UniversalClient, prefix string) {
			rdb.HSet(ctx, prefix+"flight", "q:x", "short")
			rdb.ZAdd(ctx, prefix+"flights", redis.Z{Member: "q:x"})
		},
		"flights":  func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"flights", "x", 0) },
		"units":    func(rdb redis.UniversalClient, prefix string) { rdb.HSet(ctx, prefix+"units", "", "x") },
		"costs":    func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"costs", "x", 0) },
		"sequence": func(rdb redis.UniversalClient, prefix string) { rdb.Set(ctx, prefix+"sequence", "x", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
			p.joins(slices.Concat(tasks("p/a", "q", 5), tasks("p/b", "q", 5))...)
			p.dispatches(0, nil, "q")
			p.w.rdb.Del(ctx, p.Prefix("p")+name)
			spoil(p.w.rdb, p.Prefix("p"))
			p.joins(tasks("p/c", "q", 5)...)
			var byScope [3][]string
			order := p.drain("q")
			for _, id := range order {
				byScope[id[2]-'a'] = append(byScope[id[2]-'a'], id)
			}
			for _, its := range byScope {
				if len(its) != 5 || !slices.IsSorted(its) && name != "flight" { // whose reply was lost, with its grants
					t.Errorf("%v", order)
				}
			}
			if said := p.log.String(); strings.Count(said, "damaged value found") != 1 || !strings.Contains(said, "provider=p") {
				t.Errorf("log: %q", said)
			}
		})
	}
}

// What repair does not mend is the call's error, and is not tried again for a second.
func TestNothingToRepair(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	p.joins(tasks("p", "q", 1)...)
	p.w.rdb.HSet(t.Context(), p.Prefix("p")+"r::r", "of", "another type")
	_, err := p.Dispatch(t.Context(), Request{Provider: "p", Max: 1, Serves: []wire.Weighted{{Queue: "q", Weight: 1}}})
	if !errors.Is(err, wire.ErrUnavailable) || !strings.Contains(err.Error(), `"p"`) || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("%v", err)
	}
	if p.repair(t.Context(), "p", err) {
		t.Error("it was repaired twice")
	}
	for _, other := range []error{nil, context.Canceled, errors.New("dial tcp")} {
		if damaged(other) {
			t.Errorf("%v is damage", other)
		}
	}
}

// A task that was lost from the tree, not from its line, is entered again when it joins again.
func TestJoinHeals(t *testing.T) {
	t.Parallel()
	p := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	p.joins(tasks("p/a", "q", 2)...)
	p.w.rdb.Del(t.Context(), p.Prefix("p")+"ready", p.Prefix("p")+"ready:q:", p.Prefix("p")+"ready:q:/a")
	p.joins(tasks("p/a", "q", 1)...)
	if got := p.drain("q"); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// An error wraps wire.ErrUnavailable and names the provider; that of a caller's context is its own.
func TestErrors(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	p := newWorld(t, rdb).process(tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	calls := map[string]func(ctx context.Context) error{
		"Join":     func(ctx context.Context) error { _, err := p.Join(ctx, tasks("p", "q", 1)); return err },
		"Dispatch": func(ctx context.Context) error { _, err := p.Dispatch(ctx, Request{Provider: "p"}); return err },
		"Report":   func(ctx context.Context) error { return p.Report(ctx, "p", []News{{What: Came}}) },
		"Standing": func(ctx context.Context) error { _, _, err := p.Standing(ctx, Ref{"p", "q", "x"}); return err },
		"Claim":    func(ctx context.Context) error { _, err := p.Claim(ctx, "p", second, false); return err },
		"Scan":     func(ctx context.Context) error { _, _, err := p.Scan(ctx, "p", "rules", 0); return err },
	}
	server.Kill9()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range calls {
		if err := call(t.Context()); !errors.Is(err, wire.ErrUnavailable) || !strings.Contains(err.Error(), `"p"`) {
			t.Errorf("%s: %v", name, err)
		}
		if err := call(gone); !errors.Is(err, context.Canceled) || errors.Is(err, wire.ErrUnavailable) {
			t.Errorf("%s of a caller that has gone: %v", name, err)
		}
	}
}

type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// A call that meets a slot on the move is sent again.
func TestCallWaitsForAMove(t *testing.T) {
	t.Parallel()
	rdb, left := redistest.Client(t), atomic.Int64{}
	left.Store(3)
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if !strings.HasPrefix(cmd.Name(), "eval") || left.Add(-1) < 0 {
			return send()
		}
		return refusal("TRYAGAIN Multiple keys request during rehashing of slot")
	}))
	p := newWorld(t, rdb).process(tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	if got := p.joins(tasks("p", "q", 1)...); got[0].Ahead != 0 || left.Load() >= 0 {
		t.Errorf("%+v after %d refusals", got, left.Load())
	}
}

// wakesOf counts what a process is woken for.
func wakesOf(t *testing.T, p *process) *atomic.Int64 {
	t.Helper()
	n := &atomic.Int64{}
	t.Cleanup(p.OnWake(func(provider string) {
		if provider == "p" {
			n.Add(1)
		}
	}))
	return n
}

func (w *world) listeners(n int64) {
	w.t.Helper()
	channel := w.base + ":wake"
	redistest.WaitFor(w.t, "listeners", 10*second, func() bool { return w.rdb.PubSubNumSub(context.Background(), channel).Val()[channel] == n })
}

// What comes free, and the first task of a line, wakes this process at once and the others by Redis; a process that starts asks for
// the providers that are active.
func TestWakes(t *testing.T) {
	t.Parallel()
	one := start(t, tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	two := one.w.process(tenants(t, nil, nil))
	here, there := wakesOf(t, one), wakesOf(t, two)
	one.w.listeners(2)
	one.joins(tasks("p", "q", 2)...)
	if here.Load() != 1 {
		t.Errorf("this process was woken %d times", here.Load())
	}
	redistest.WaitFor(t, "a wake by a first task", 10*second, func() bool { return there.Load() == 1 })
	one.joins(Waiter{Scope: "p", Queue: "q", ID: "behind others"})
	for range 100 {
		one.Wake("p")
	}
	redistest.WaitFor(t, "a wake and the last of a hundred", 10*second, func() bool { return there.Load() == 3 })
	if here.Load() != 101 {
		t.Errorf("this process was woken %d times", here.Load())
	}
	active, err := two.ActiveProviders(t.Context(), time.Now().Add(-time.Minute))
	if err != nil || len(active) != 1 || time.Since(active["p"]) > time.Minute {
		t.Errorf("%v, %v", active, err)
	}
	if active, err := two.ActiveProviders(t.Context(), time.Now().Add(time.Minute)); err != nil || len(active) != 0 {
		t.Errorf("%v, %v", active, err)
	}
	if ttl := one.w.rdb.TTL(t.Context(), one.activeKey()).Val(); ttl < 23*time.Hour || ttl > 24*time.Hour {
		t.Errorf("%s", ttl)
	}
}

// All of it works on a cluster.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	p := newWorld(t, redistest.Cluster(t)).process(tenants(t, []policy.Rule{perSecond("r", 10)}, nil))
	woken := wakesOf(t, p.w.process(tenants(t, nil, nil)))
	p.w.listeners(1)
	list := slices.Concat(tasks("p/a", "q", 100), tasks("p/b", "q", 100))
	p.joins(list...)
	redistest.WaitFor(t, "a wake", 10*second, func() bool { return woken.Load() > 0 })
	p.w.rdb.Set(t.Context(), p.Prefix("p")+"blocked", "x", 0)
	if got := p.drain("q"); len(got) != len(list) {
		t.Errorf("%d of %d", len(got), len(list))
	}
	if active, err := p.ActiveProviders(t.Context(), time.Time{}); err != nil || len(active) != 1 {
		t.Errorf("%v, %v", active, err)
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
