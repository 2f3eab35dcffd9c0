package throttle

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// eachPrefetched runs a test in a bubble for each algorithm, with 1000 units for long, under more rules.
func eachPrefetched(t *testing.T, more []policy.Rule, test func(t *testing.T, p *prefetcher, r policy.Rule)) {
	t.Helper()
	for name, r := range prefetchRules(1000) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefetching(t, policyOf(t, append([]policy.Rule{r}, more...)...), func(p *prefetcher) { test(t, p, r) })
		})
	}
}

// "One call then charges the units of many decisions", and each says what all that were asked for leave; about as many are
// charged ahead "as the process lately used within a prefetch". "Units that were not used in time are refunded."
func TestPrefetch(t *testing.T) {
	t.Parallel()
	eachPrefetched(t, nil, func(t *testing.T, p *prefetcher, r policy.Rule) {
		prefetched, most, told := 0, int64(0), int64(0)
		p.cfg.OnSpent = func(s Spent) { told += s.Tasks }
		for n := range int64(600) {
			at := time.Now()
			d := p.ask(Request{Scope: "p/x"})
			if left := 1000 - 1 - n; d.Rules[0].Remaining != left && r.Algorithm != policy.TokenBucket || d.Rules[0].Remaining > left || d.Rules[0].Remaining < left-1 {
				t.Fatalf("decision %d leaves %d", n, d.Rules[0].Remaining)
			}
			if d.Wait != 0 || d.Binding != 0 || d.RetryAfter != 0 || d.Degraded || d.At.After(at) || at.Sub(d.At) > fifty {
				t.Fatalf("at %s: %+v", at, d)
			}
			if d.Prefetched {
				prefetched++
			}
			most = max(most, p.held("p/x"))
			<-time.After(ms)
		}
		if calls := p.way.scripts.Load(); calls > 60 || prefetched < 540 || told != 600 || most > 50 || most < 20 {
			t.Errorf("600 decisions, of which %d were told, took %d calls, and %d took none; %d units were held where 50 are used within a prefetch", told, calls, prefetched, most)
		}
		<-time.After(fifty)
		synctest.Wait()
		if left, held := p.left("p/x"), p.held("p/x"); held != 0 || left != 400 && (left != 399 || r.Algorithm != policy.TokenBucket) {
			t.Errorf("%d are held, and %d are left of 400", held, left)
		}
		if d := p.ask(Request{Scope: "p/x"}); d.Prefetched {
			t.Errorf("got %+v", d)
		}
	})
}

// "counted from before the call was sent": a unit is handed out for the least prefetch of its rules after that, and no longer.
func TestPrefetchedInTime(t *testing.T) {
	t.Parallel()
	short := minuteOf(1000)
	short.Name, short.Prefetch = "short", 40*ms
	for _, late := range []bool{false, true} {
		prefetching(t, policyOf(t, minuteOf(1000), short), func(p *prefetcher) {
			p.fill("p/x", 1)
			for p.held("p/x") > 0 {
				p.ask(Request{Scope: "p/x"})
			}
			p.way.takes(20*ms, 5*ms)
			sent := time.Now()
			p.ask(Request{Scope: "p/x"})
			if p.held("p/x") == 0 {
				t.Fatal("nothing was charged ahead")
			}
			<-time.After(time.Until(sent.Add(short.Prefetch)) - 1)
			if late {
				<-time.After(1)
			}
			d := p.ask(Request{Scope: "p/x"})
			if d.Prefetched == late || !late && time.Since(d.At) != 20*ms-1 {
				t.Errorf("late is %t: %+v at %s", late, d, time.Now())
			}
		})
	}
}

// "its start is no later than the prefetch and the pad after the charge"
func TestPrefetchedStartInTime(t *testing.T) {
	t.Parallel()
	strict := policy.Rule{Name: "other", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Minute, Prefetch: fifty}
	eachPrefetched(t, []policy.Rule{strict}, func(t *testing.T, p *prefetcher, _ policy.Rule) {
		p.fill("p/x", 10)
		charged := time.Now()
		<-time.After(fifty - 1)
		d := p.ask(Request{Scope: "p/x"})
		if !d.Prefetched {
			t.Fatalf("got %+v", d)
		}
		d.under, _ = p.plan("p/x")
		<-time.After(time.Until(charged.Add(fifty + 5*ms)))
		if !p.inTime(&d) {
			t.Error("a start is late before its time")
		}
		<-time.After(1)
		if p.inTime(&d) {
			t.Error("a start that comes too late is in time")
		}
	})
}

// "A decision is given back and settled as any other": exactly its own units come back, once.
func TestPrefetchedIsGivenBackAndSettled(t *testing.T) {
	t.Parallel()
	eachPrefetched(t, nil, func(t *testing.T, p *prefetcher, r policy.Rule) {
		p.fill("p/x", 20)
		two, more := p.ask(Request{Scope: "p/x", Cost: 2}), p.ask(Request{Scope: "p/x", Cost: 3})
		if !two.Prefetched || !more.Prefetched || two.Grant.ID() == more.Grant.ID() {
			t.Fatalf("got %+v and %+v", two, more)
		}
		before := p.left("p/x")
		came := func(what string, want int64) {
			t.Helper()
			if got := p.left("p/x") - before; got != want {
				t.Errorf("%s: %d came back, want %d", what, got, want)
			}
		}
		for range 2 {
			noError(t, p.Refund(p.t.Context(), two.Grant))
			came("given back", 2)
		}
		settled := []int64{1, 5, 3}
		if r.Algorithm == policy.TokenBucket {
			settled = settled[:1] // a debt is charged after the stock, and keeps that from coming back in full
		}
		for _, spent := range settled {
			_, err := p.Settle(p.t.Context(), more.Grant, policy.Costs{policy.Requests: spent})
			noError(t, err)
			came(fmt.Sprint("spent ", spent), 2+3-spent)
		}
	})
}

// "It goes back at once when the policy changes".
func TestPrefetchedAndAnotherPolicy(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(1000)), func(p *prefetcher) {
		asked := p.fill("p/x", 20)
		p.SetPolicy(policyOf(t, minuteOf(800)))
		synctest.Wait()
		if left := p.left("p/x"); left != 800-asked {
			t.Errorf("%d of 800 are left, %d were asked for", left, asked)
		}
	})
}

// "and when this process notes an API's pause or correction".
func TestPrefetchedAndAPIs(t *testing.T) {
	t.Parallel()
	// A refusal cuts no rule that stands above its scope: the pause alone empties the stock.
	policy := parsedPolicy(t, `limits: {p: {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1m, prefetch: 50ms}], scopes: {"*": {}}}}`)
	for scope, here := range map[string]bool{"p/x": true, "p/x/y": false, "p/z": false} {
		prefetching(t, policy, func(p *prefetcher) {
			asked := p.fill("p/x", 20)
			_, err := p.Report(p.t.Context(), scope, refusedFor(time.Minute))
			noError(t, err)
			synctest.Wait()
			d, err := p.Allow(p.t.Context(), "p/x")
			if err != nil || d.Allowed == here || d.Paused != here || d.Prefetched {
				t.Errorf("%s is paused: %+v, %v", scope, d, err)
			}
			if here {
				noError(t, p.ResetUpstream(p.t.Context(), "p/x"))
				if left := p.left("p/x"); left != 1000-asked {
					t.Errorf("%d are left, %d were asked for", left, asked)
				}
			}
		})
	}
	policy = parsedPolicy(t, `limits: {p: {scopes: {"*": {rules: [{name: r, algorithm: sliding-window, limit: 1000, per: 1m, prefetch: 50ms}]}}}}`)
	prefetching(t, policy, func(p *prefetcher) { // a limit of the API's own is no pause
		asked := p.fill("p/x", 20)
		_, err := p.Report(p.t.Context(), "p/x", owns(500, time.Minute))
		noError(t, err)
		synctest.Wait()
		if held, left := p.held("p/x"), p.left("p/x"); held != 0 || left != 500-asked {
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
		other := newPrefetcher(p.t, p.rdb, policyOf(t, minuteOf(40)))
		other.ask(Request{Scope: "p/x", Cost: other.left("p/x")})
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
}

// "All units of a limit can be used": by one process, and by two in turns.
func TestPrefetchLeavesNothingUnused(t *testing.T) {
	t.Parallel()
	for name, r := range prefetchRules(200) {
		for _, processes := range []int{1, 3} {
			t.Run(fmt.Sprint(name, processes), func(t *testing.T) {
				t.Parallel()
				prefetching(t, policyOf(t, r), func(p *prefetcher) {
					all := []*prefetcher{p}
					for range processes - 1 {
						all = append(all, newPrefetcher(p.t, p.rdb, policyOf(t, r)))
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
		"a start soon": {req: Request{MaxDelay: sec}, want: true},
		"two rules":    {more: []policy.Rule{prefetchRules(1000)["bucket"]}, want: true},
		"another rule": {more: []policy.Rule{plain}},
		"places":       {more: []policy.Rule{{Name: "c", Algorithm: policy.Concurrency, Limit: 10_000}}},
		"a task":       {},
		"costs":        {req: Request{Cost: 1, Costs: policy.Costs{policy.Requests: 2}}},
		"its own id":   {},
		"a shadow":     {more: []policy.Rule{{Name: "s", Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Minute, Shadow: true}}, want: true},
	} {
		prefetching(t, policyOf(t, append(row.more, minuteOf(1000))...), func(p *prefetcher) {
			prefetched := 0
			for i := range 100 {
				req := row.req
				switch req.Scope = "p/x"; name {
				case "a task":
					req.Waiter = waiter(fmt.Sprint(i))
				case "its own id":
					req.ID = fmt.Sprint(i)
				}
				if p.ask(req).Prefetched {
					prefetched++
				}
			}
			if prefetched > 50 != row.want || prefetched > 0 != row.want {
				t.Errorf("%s: %d of 100 were prefetched", name, prefetched)
			}
		})
	}
}

// "While Redis does not answer, what is in stock is used": after it the rules' on_redis_error decides, as ever.
func TestPrefetchedInAnOutage(t *testing.T) {
	t.Parallel()
	for policy, starts := range map[policy.FailurePolicy]bool{policy.FailClosed: false, policy.FailOpen: true} {
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
			d, err := p.Allow(p.t.Context(), "p/x")
			if d.Allowed != starts || d.Degraded != starts || d.Prefetched || errors.Is(err, ErrUnavailable) == starts {
				t.Errorf("%s: %+v, %v", policy, d, err)
			}
		})
	}
}

// "If much is left over, the process charges ahead more rarely": after units were not used in time, none are charged for 20 prefetches.
func TestPrefetchPaysOff(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(1_000_000)), func(p *prefetcher) {
		p.fill("p/x", 30)
		<-time.After(fifty)
		synctest.Wait()
		for left := time.Now(); ; <-time.After(ms) {
			if p.ask(Request{Scope: "p/x", Cost: 10}).Prefetched {
				if took := time.Since(left); took < restFor*fifty || took > restFor*fifty+10*ms {
					t.Errorf("drawn again after %s", took)
				}
				return
			}
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
			if now := p.left("p/x"); now < left/2-1 {
				t.Fatalf("of %d that were left %d are: %+v", left, now, d)
			}
			left = p.left("p/x")
		}
	})
}

// A draw whose reply is too late to be of use goes back, and there is none again for a while.
func TestPrefetchFromFarAway(t *testing.T) {
	t.Parallel()
	prefetching(t, policyOf(t, minuteOf(10_000)), func(p *prefetcher) {
		p.way.takes(30*ms, 30*ms)
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
		if left := p.left("p/x"); drawn.Load() > 0 || left != 10_000-asked.Load() {
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
				p.way.takes(0, 0)
				<-time.After(time.Until(eight) - sec - time.Duration(3*round)*ms)
				p.way.takes(late.there, late.back)
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
