package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

const fifty = 50 * ms

// way is a client's way to its server: so long there, and so long back. It counts scripts.
type way struct {
	there, back atomic.Int64
	cut         atomic.Bool // nothing comes through
	scripts     atomic.Int64
	settled     atomic.Int64 // of them, what gave back under sliding windows
}

func (w *way) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *way) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !runsScript(cmd) {
			return next(ctx, cmd)
		}
		w.count(cmd)
		return w.pass(func() error { return next(ctx, cmd) })
	}
}

func (w *way) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			w.count(cmd)
		}
		return w.pass(func() error { return next(ctx, cmds) })
	}
}

func (w *way) count(cmd redis.Cmder) {
	w.scripts.Add(1)
	if sha, _ := cmd.Args()[1].(string); sha == lua.Settle.For("S").SHA() {
		w.settled.Add(1)
	}
}

func (w *way) pass(next func() error) error {
	if d := w.there.Load(); d > 0 {
		<-time.After(time.Duration(d))
	}
	if w.cut.Load() {
		return errors.New("cut off")
	}
	err := next()
	if d := w.back.Load(); d > 0 {
		<-time.After(time.Duration(d))
	}
	return err
}

// prefetcher is a limiter in a bubble, beside a server whose clock is the bubble's.
type prefetcher struct {
	*Limiter
	t   *testing.T
	rdb redis.UniversalClient
	way *way
}

func newPrefetcher(t *testing.T, rdb redis.UniversalClient, cfg Config, policy *policy.Policy) *prefetcher {
	t.Helper()
	l, err := New(rdb, policy, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &prefetcher{l, t, rdb, nil}
}

// prefetching runs a test in a bubble.
func prefetching(t *testing.T, policy *policy.Policy, test func(*prefetcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, rdb := redistest.Miniredis(t)
		w := &way{}
		rdb.AddHook(w)
		p := newPrefetcher(t, rdb, Config{}, policy)
		p.way = w
		test(p)
		w.there.Store(0)
		w.back.Store(0)
		<-time.After(sec) // what is in stock goes back
	})
}

// ask takes one decision, which must be a grant.
func (p *prefetcher) ask(req Request) Decision {
	p.t.Helper()
	d, err := p.Decide(p.t.Context(), req)
	if err != nil || !d.Allowed {
		p.t.Fatalf("%+v: got %+v, %v", req, d, err)
	}
	return d
}

// fill asks, at one moment, until so many units at least are in stock, and returns how many were handed out.
func (p *prefetcher) fill(scope string, least int64) (asked int64) {
	p.t.Helper()
	for p.held(scope) < least {
		if asked++; asked > 1000 {
			p.t.Fatal("nothing is charged ahead")
		}
		p.ask(Request{Scope: scope})
	}
	return asked
}

// held is how many units are in stock.
func (p *prefetcher) held(scope string) int64 {
	p.t.Helper()
	held, _ := p.stock(scope).seen()
	return held
}

func (p *prefetcher) stock(scope string) *stock {
	p.t.Helper()
	of, err := p.scopes.of(scope)
	if err != nil || of.stock == nil {
		p.t.Fatalf("no stock, %v", err)
	}
	return of.stock
}

func (s *stock) seen() (held int64, drawing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, s.drawing
}

// left is what Redis says that the rules of a scope have left.
func (p *prefetcher) left(scope string) []int64 {
	p.t.Helper()
	d, err := p.Peek(p.t.Context(), Request{Scope: scope})
	if err != nil {
		p.t.Fatal(err)
	}
	return remaining(d)
}

// minuteOf is so many units in a minute, some of which are charged ahead.
func minuteOf(limit int64) policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Minute, Prefetch: fifty}
}

func prefetchRules(limit int64) map[string]policy.Rule {
	rules := map[string]policy.Rule{
		"sliding": minuteOf(limit),
		"bucket":  {Algorithm: policy.TokenBucket, Limit: limit, Per: 24 * time.Hour, Burst: limit},
		"fixed":   {Algorithm: policy.FixedWindow, Limit: limit, Per: 24 * time.Hour},
		"day":     {Algorithm: policy.Calendar, Limit: limit, Resets: wallclock.MustParse("0 12 * * *", "UTC")},
	}
	for name, r := range rules {
		r.Name, r.Prefetch = name, fifty
		rules[name] = r
	}
	return rules
}

// "One call then charges the units of many decisions", and each says what all that were asked for leave.
func TestPrefetch(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(1000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefetching(t, policyOf(t, r), func(p *prefetcher) {
				prefetched := 0
				for n := range int64(600) {
					at := time.Now()
					d := p.ask(Request{Scope: "p/x"})
					if left := 1000 - 1 - n; d.Rules[0].Remaining != left && r.Algorithm != policy.TokenBucket || d.Rules[0].Remaining > left || d.Rules[0].Remaining < left-1 {
						t.Fatalf("decision %d leaves %d", n, d.Rules[0].Remaining)
					}
					if d.Wait != 0 || d.Binding != 0 || d.RetryAfter != 0 || d.Degraded || d.Position != noTurn || d.At.After(at) || at.Sub(d.At) > fifty {
						t.Fatalf("at %s: %+v", at, d)
					}
					if d.Prefetched {
						prefetched++
					}
					<-time.After(ms)
				}
				if calls := p.way.scripts.Load(); calls > 60 || prefetched < 540 {
					t.Errorf("600 decisions took %d calls, and %d took none", calls, prefetched)
				}
			})
		})
	}
}

// "What was not used in time is given back, in its place".
func TestPrefetchedComesBack(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(1000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefetching(t, policyOf(t, r), func(p *prefetcher) {
				asked := p.fill("p/x", 20)
				if left, held := p.left("p/x")[0], p.held("p/x"); left > 1000-asked-held {
					t.Fatalf("%d were asked for, %d are held, and %d are left", asked, held, left)
				}
				<-time.After(fifty)
				synctest.Wait()
				want := 1000 - asked
				if r.Algorithm == policy.TokenBucket {
					want-- // its slack
				}
				if left, held := p.left("p/x")[0], p.held("p/x"); held != 0 || left != want {
					t.Errorf("%d were asked for, %d are held, and %d are left", asked, held, left)
				}
				d := p.ask(Request{Scope: "p/x"})
				if d.Prefetched {
					t.Errorf("got %+v", d)
				}
			})
		})
	}
}

// "counted from before the call was sent": a unit is handed out for the prefetch after that, and no longer.
func TestPrefetchedInTime(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		prefetching(t, policyOf(t, minuteOf(1000)), func(p *prefetcher) {
			p.fill("p/x", 1)
			for p.held("p/x") > 0 {
				p.ask(Request{Scope: "p/x"})
			}
			p.way.there.Store(int64(20 * ms))
			p.way.back.Store(int64(5 * ms))
			sent := time.Now()
			p.ask(Request{Scope: "p/x"})
			if p.held("p/x") == 0 {
				t.Fatal("nothing was charged ahead")
			}
			<-time.After(time.Until(sent.Add(fifty)) - 1)
			if late {
				<-time.After(1)
			}
			d := p.ask(Request{Scope: "p/x"})
			if d.Prefetched == late || !late && time.Since(d.At) != 30*ms-1 {
				t.Errorf("late is %t: %+v at %s", late, d, time.Now())
			}
		})
	}
}

// "its start is no later than the prefetch and the pad after the charge"
func TestPrefetchedStartInTime(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(1000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := policyOf(t, r, policy.Rule{Name: "other", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Minute, Prefetch: fifty})
			prefetching(t, policy, func(p *prefetcher) {
				p.fill("p/x", 10)
				charged := time.Now()
				<-time.After(fifty - 1)
				d := p.ask(Request{Scope: "p/x"})
				if !d.Prefetched {
					t.Fatalf("got %+v", d)
				}
				d.under, _ = p.scopes.of("p/x")
				<-time.After(time.Until(charged.Add(fifty + 5*ms)))
				if !p.inTime(&d) {
					t.Error("a start is late before its time")
				}
				<-time.After(1)
				if p.inTime(&d) {
					t.Error("a start that comes too late is in time")
				}
			})
		})
	}
}

// The end of a fixed window: what was charged just before its slack is used up to a pad before its end, and no later.
func TestPrefetchedAtTheEndOfAWindow(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, prefetchRules(1000)["fixed"]), func(p *prefetcher) {
		<-time.After(24*time.Hour - 58*ms)
		p.fill("p/x", 10)
		<-time.After(45 * ms)
		d, err := p.Start(p.t.Context(), Request{Scope: "p/x"})
		if err != nil || !d.Prefetched || time.Since(d.At) != 45*ms {
			t.Fatalf("got %+v, %v", d, err)
		}
		d.under, _ = p.scopes.of("p/x")
		<-time.After(8 * ms)
		if !p.inTime(&d) {
			t.Error("a start a pad before the end comes too late")
		}
		<-time.After(1)
		if p.inTime(&d) {
			t.Error("a start less than a pad before the end is in time")
		}
		<-time.After(ms)
		calls := p.way.scripts.Load()
		for range 20 {
			if d, err := p.Allow(p.t.Context(), "p/x"); err != nil || d.Allowed || d.Rules[0].Remaining == 0 {
				t.Fatalf("got %+v, %v", d, err)
			}
		}
		if n := p.way.scripts.Load() - calls; n > 22 {
			t.Errorf("20 denials took %d calls", n)
		}
	})
}

// "A decision is given back and settled as any other": exactly its own units come back, once.
func TestPrefetchedIsGivenBackAndSettled(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(1000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefetching(t, policyOf(t, r), func(p *prefetcher) {
				p.fill("p/x", 20)
				two := p.ask(Request{Scope: "p/x", Cost: 2})
				more := p.ask(Request{Scope: "p/x", Cost: 3})
				if !two.Prefetched || !more.Prefetched || two.Grant.ID() == more.Grant.ID() {
					t.Fatalf("got %+v and %+v", two, more)
				}
				before := p.left("p/x")[0]
				came := func(what string, want int64) {
					t.Helper()
					if got := p.left("p/x")[0] - before; got != want {
						t.Errorf("%s: %d came back, want %d", what, got, want)
					}
				}
				for range 2 {
					if err := p.Refund(p.t.Context(), two.Grant); err != nil {
						t.Error(err)
					}
					came("given back", 2)
				}
				settled := []int64{1, 5, 3}
				if r.Algorithm == policy.TokenBucket {
					settled = settled[:1] // a debt is charged after the stock, and keeps that from coming back in full
				}
				for _, spent := range settled {
					if _, err := p.Settle(p.t.Context(), more.Grant, policy.Costs{policy.Requests: spent}); err != nil {
						t.Error(err)
					}
					came(fmt.Sprint("spent ", spent), 2+3-spent)
				}
				if err := p.Refund(p.t.Context(), more.Grant); err != nil {
					t.Error(err)
				}
				came("given back after that", 5)
				held := p.held("p/x")
				<-time.After(fifty)
				synctest.Wait()
				came("what was in stock", 5+held)
			})
		})
	}
}

// "It goes back at once when the policy changes": the stock, and what is drawn by then.
func TestPrefetchedAndAnotherPolicy(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(1000)), func(p *prefetcher) {
		asked := p.fill("p/x", 20)
		old := p.stock("p/x")
		p.SetPolicy(policyOf(t, minuteOf(800)))
		synctest.Wait()
		if o := old.order(time.Now(), 1, 1000); o.units != 0 || o.from != nil {
			t.Errorf("by the policy before there is %+v", o)
		}
		if left := p.left("p/x")[0]; left != 800-asked {
			t.Errorf("%d of 800 are left, %d were asked for", left, asked)
		}
		if d := p.ask(Request{Scope: "p/x"}); d.Prefetched {
			t.Errorf("got %+v", d)
		}
		asked++
		asked += p.fill("p/x", 1)
		for p.held("p/x") > 0 {
			p.ask(Request{Scope: "p/x"})
			asked++
		}
		old = p.stock("p/x")
		p.way.back.Store(int64(10 * ms))
		done := make(chan Decision)
		go func() {
			d, _ := p.Allow(p.t.Context(), "p/x")
			done <- d
		}()
		<-time.After(ms)
		if _, drawing := old.seen(); !drawing {
			t.Fatal("nothing is drawn")
		}
		p.SetPolicy(policyOf(t, minuteOf(900)))
		d := <-done
		<-time.After(20 * ms) // on the way back
		if left := p.left("p/x")[0]; !d.Allowed || left != 900-asked-1 {
			t.Errorf("%+v; %d of 900 are left, %d were asked for", d, left, asked+1)
		}
	})
}

// "and when this process notes an API's pause or correction", of the scope or above it; that of another scope leaves it.
func TestPrefetchedAndAPIs(t *testing.T) {
	t.Parallel()
	// A refusal cuts no rule that stands above its scope: the pause alone empties the stock.
	policy := parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1m, prefetch: 50ms}], scopes: {"*": {}}}}`)
	for scope, here := range map[string]bool{"p/x": true, "p/x/y": false, "p/z": false} {
		prefetching(t, policy, func(p *prefetcher) {
			asked := p.fill("p/x", 20)
			held := p.held("p/x")
			if _, err := p.Report(p.t.Context(), scope, refusedFor(time.Minute)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			d, err := p.Allow(p.t.Context(), "p/x")
			if err != nil || d.Allowed == here || d.Paused != here || d.Prefetched == here {
				t.Errorf("%s is paused: %+v, %v", scope, d, err)
			}
			if here {
				if err := p.ResetUpstream(p.t.Context(), "p/x"); err != nil {
					t.Fatal(err)
				}
				if left := p.left("p/x")[0]; left != 1000-asked {
					t.Errorf("%d are left, %d were asked for", left, asked)
				}
			} else if now := p.held("p/x"); now != held-1 {
				t.Errorf("%s is paused, and %d of %d are held", scope, now, held)
			}
		})
	}
	policy = parsedPolicy(t, `limits: {p: {scopes: {"*": {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1m, prefetch: 50ms}]}}}}`)
	prefetching(t, policy, func(p *prefetcher) { // a limit of the API's own is no pause
		asked := p.fill("p/x", 20)
		a := owns(500, time.Minute)
		if _, err := p.Report(p.t.Context(), "p/x", a); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if held, left := p.held("p/x"), p.left("p/x")[0]; held != 0 || left != 500-asked {
			t.Errorf("%d are held, and %d are left of 500, %d were asked for", held, left, asked)
		}
	})
}

// "A denial is Redis's own": where units in stock are too few for a request that is denied, they go back and it is asked again.
func TestPrefetchedIsNotMissing(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(40)), func(p *prefetcher) {
		asked := p.fill("p/x", 3)
		held := p.held("p/x")
		other := newPrefetcher(p.t, p.rdb, Config{}, policyOf(t, minuteOf(40)))
		other.ask(Request{Scope: "p/x", Cost: other.left("p/x")[0]})
		if d, err := other.Allow(p.t.Context(), "p/x"); err != nil || d.Allowed {
			t.Fatalf("got %+v, %v", d, err)
		}
		d, err := p.Decide(p.t.Context(), Request{Scope: "p/x", Cost: held + 1})
		if err != nil || d.Allowed || p.held("p/x") != 0 || d.RetryAfter < 59*sec {
			t.Errorf("got %+v, %v of %d", d, err, asked)
		}
		if d := p.ask(Request{Scope: "p/x", Cost: held}); d.Prefetched {
			t.Errorf("got %+v", d)
		}
	})
	prefetching(t, policyOf(t, minuteOf(40)), func(p *prefetcher) { // by one who is not served from stock
		p.fill("p/x", 3)
		held := p.held("p/x")
		other := newPrefetcher(p.t, p.rdb, Config{}, policyOf(t, minuteOf(40)))
		other.ask(Request{Scope: "p/x", Cost: other.left("p/x")[0]})
		p.ask(Request{Scope: "p/x", Cost: held, ID: "mine"})
	})
}

// "All units of a limit can be used": by one process, and by two in turns.
func TestPrefetchLeavesNothingUnused(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(200) {
		for _, processes := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(name, processes), func(t *testing.T) {
				t.Parallel()
				prefetching(t, policyOf(t, r), func(p *prefetcher) {
					all := []*prefetcher{p}
					for range processes - 1 {
						all = append(all, newPrefetcher(p.t, p.rdb, Config{}, policyOf(t, r)))
					}
					granted, denied, prefetched := 0, 0, 0
					for i := 0; denied < 20*processes; i++ {
						d, err := all[i%processes].Allow(p.t.Context(), "p/x")
						switch {
						case err != nil:
							t.Fatal(err)
						case d.Allowed:
							granted, denied = granted+1, 0
						default:
							denied++
							<-time.After(5 * ms)
						}
						if d.Prefetched {
							prefetched++
						}
					}
					least := 200
					if r.Algorithm == policy.TokenBucket {
						if least--; processes > 1 { // its slack, and what others charge after it keeps some from coming back
							least = 160
						}
					}
					if granted > 200 || granted < least || prefetched < 50 {
						t.Errorf("%d were granted of 200, %d of them prefetched", granted, prefetched)
					}
				})
			})
		}
	}
}

// "The path of a request has to be of such rules alone", and it asks for a number of units, once, and without a ticket.
func TestPrefetchIsNotForAll(t *testing.T) {
	t.Parallel()
	plain := minuteOf(1000)
	plain.Prefetch, plain.Name = 0, "plain"
	for name, row := range map[string]struct {
		more []policy.Rule
		req  Request
		want bool
	}{
		"of its own":   {want: true},
		"a start soon": {req: Request{MaxDelay: sec}, want: true},
		"two rules":    {more: []policy.Rule{prefetchRules(1000)["bucket"]}, want: true},
		"another rule": {more: []policy.Rule{plain}},
		"places":       {more: []policy.Rule{{Name: "c", Algorithm: policy.Concurrency, Limit: 10_000}}},
		"a ticket":     {req: Request{Turn: Turn{WaiterID: "t"}}},
		"costs":        {req: Request{Cost: 1, Costs: policy.Costs{policy.Requests: 2}}},
		"its own id":   {req: Request{ID: "mine"}},
		"a shadow":     {more: []policy.Rule{{Name: "s", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Minute, Shadow: true}}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefetching(t, policyOf(t, append(row.more, minuteOf(1000))...), func(p *prefetcher) {
				prefetched := 0
				for i := range 100 {
					req := row.req
					if req.Scope = "p/x"; req.Turn.WaiterID != "" {
						req.Turn.WaiterID += fmt.Sprint(i)
					}
					if req.ID != "" {
						req.ID += fmt.Sprint(i)
					}
					if p.ask(req).Prefetched {
						prefetched++
					}
				}
				if prefetched > 50 != row.want || prefetched > 0 != row.want {
					t.Errorf("%d of 100 were prefetched", prefetched)
				}
				synctest.Wait()
			})
		})
	}
}

// "The least prefetch of its rules counts".
func TestLeastPrefetchCounts(t *testing.T) {
	t.Parallel()
	short := minuteOf(1000)
	short.Name, short.Prefetch = "short", 10*ms
	prefetching(t, policyOf(t, minuteOf(1000), short), func(p *prefetcher) {
		p.fill("p/x", 10)
		<-time.After(10*ms - 1)
		if d := p.ask(Request{Scope: "p/x"}); !d.Prefetched {
			t.Errorf("got %+v", d)
		}
		<-time.After(1)
		if d := p.ask(Request{Scope: "p/x"}); d.Prefetched {
			t.Errorf("got %+v", d)
		}
	})
}

// "While Redis does not answer, what is in stock is used": after it the rules' on_redis_error decides, as ever.
func TestPrefetchedInAnOutage(t *testing.T) {
	t.Parallel()
	for policy, want := range map[policy.FailurePolicy]string{policy.FailClosed: "unavailable", policy.FailOpen: "degraded"} {
		r := minuteOf(1000)
		r.OnRedisError = policy
		prefetching(t, policyOf(t, r), func(p *prefetcher) {
			p.fill("p/x", 5)
			p.way.cut.Store(true)
			for p.held("p/x") > 1 {
				if d := p.ask(Request{Scope: "p/x"}); !d.Prefetched || d.Degraded {
					t.Fatalf("got %+v", d)
				}
			}
			<-time.After(fifty)
			got := ""
			d, err := p.Allow(p.t.Context(), "p/x")
			switch {
			case errors.Is(err, ErrUnavailable):
				got = "unavailable"
			case err == nil && d.Allowed && d.Degraded && !d.Prefetched:
				got = "degraded"
			}
			if got != want {
				t.Errorf("%s: %+v, %v", policy, d, err)
			}
		})
	}
}

// "If the process dies, they stay spent": no more than it used within the last prefetch.
func TestPrefetchedAndDead(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(10_000)), func(p *prefetcher) {
		most := int64(0)
		for range 2000 {
			p.ask(Request{Scope: "p/x"})
			most = max(most, p.held("p/x"))
			<-time.After(ms)
		}
		if most > 50 || most < 20 {
			t.Errorf("%d units were held where 50 are used within a prefetch", most)
		}
	})
}

// Where what draws leave over costs more calls than they have saved, there is none for as many prefetches; what they
// save lets them leave something over.
func TestPrefetchPaysOff(t *testing.T) {
	t.Parallel()
	for saved, want := range map[int]time.Duration{0: 8 * fifty, 7: 4 * fifty, 8: fifty, 1000: fifty} {
		prefetching(t, policyOf(t, minuteOf(1_000_000)), func(p *prefetcher) {
			p.fill("p/x", 30)
			s := p.stock("p/x")
			s.mu.Lock()
			s.saved = min(saved, mostSaved)
			s.mu.Unlock()
			left := time.Now()
			<-time.After(fifty)
			synctest.Wait()
			for time.Since(left) < 2*sec {
				if _, drawing := s.seen(); drawing || p.ask(Request{Scope: "p/x", Cost: 10}).Prefetched {
					break
				}
				<-time.After(ms)
			}
			if took := time.Since(left); took < want || took > want+4*fifty+10*ms {
				t.Errorf("%d calls were saved: drawn again after %s, want %s", saved, took, want)
			}
		})
	}
	prefetching(t, policyOf(t, minuteOf(1_000_000)), func(p *prefetcher) {
		for range 1000 {
			p.ask(Request{Scope: "p/x"})
			<-time.After(ms)
		}
		s := p.stock("p/x")
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.saved != mostSaved {
			t.Errorf("%d calls are saved", s.saved)
		}
	})
}

// "never more than half of what the rules had left": others find units too.
func TestPrefetchLeavesHalf(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(100)), func(p *prefetcher) {
		left := int64(100)
		for range 100 {
			before := p.way.scripts.Load()
			d := p.ask(Request{Scope: "p/x"})
			if p.way.scripts.Load() == before {
				continue
			}
			if now := p.left("p/x")[0]; now < left/2-1 {
				t.Fatalf("of %d that were left %d are: %+v", left, now, d)
			}
			left = p.left("p/x")[0]
		}
	})
}

// A draw whose reply is too late to be of use goes back, and there is none again for a while.
func TestPrefetchFromFarAway(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(10_000)), func(p *prefetcher) {
		p.way.there.Store(int64(30 * ms))
		p.way.back.Store(int64(30 * ms))
		var group sync.WaitGroup
		var asked, drawn atomic.Int64
		began := time.Now()
		for range 20 {
			group.Go(func() {
				for time.Since(began) < 2*sec {
					if d, err := p.Allow(p.t.Context(), "p/x"); err != nil || !d.Allowed {
						t.Errorf("got %+v, %v", d, err)
					} else if d.Prefetched {
						drawn.Add(1)
					}
					asked.Add(1)
				}
			})
		}
		group.Wait()
		<-time.After(sec)
		if left := p.left("p/x")[0]; drawn.Load() > 0 || left != 10_000-asked.Load() {
			t.Errorf("%d of %d were prefetched, and %d are left", drawn.Load(), asked.Load(), left)
		}
		if n := p.way.settled.Load(); n == 0 || n > 3 {
			t.Errorf("in two seconds there were %d draws of no use", n)
		}
	})
}

// Units that were charged in the last moment of a rule's hours are not used after it.
func TestPrefetchedAndHours(t *testing.T) {
	t.Parallel()
	day, night := minuteOf(100_000), minuteOf(100_000)
	day.Name, day.Active = "day", wallclock.MustParseWindow(dayHours, "UTC")
	night.Name, night.Active = "night", wallclock.MustParseWindow(nightHours, "UTC")
	for _, late := range []struct{ there, back time.Duration }{{0, 10 * ms}, {10 * ms, 0}} {
		prefetching(t, policyOf(t, day, night), func(p *prefetcher) {
			eight := time.Date(2000, 1, 1, 20, 0, 0, 0, time.UTC)
			for round := range 6 {
				p.way.there.Store(0)
				p.way.back.Store(0)
				<-time.After(time.Until(eight) - sec - time.Duration(3*round)*ms)
				p.way.there.Store(int64(late.there))
				p.way.back.Store(int64(late.back))
				for time.Until(eight) > -60*ms {
					began := time.Now()
					d, err := p.Allow(p.t.Context(), "p/x")
					if err != nil || !d.Allowed {
						t.Fatalf("got %+v, %v", d, err)
					}
					start := time.Now()
					if !d.Prefetched {
						start = d.At
					}
					if want := map[bool]string{true: "day", false: "night"}[start.Before(eight)]; d.Rules[0].Rule != want {
						t.Errorf("asked %s before the hour: %+v", eight.Sub(began), d)
					}
					<-time.After(ms / 2)
				}
				eight = eight.Add(24 * time.Hour)
			}
		})
	}
}
