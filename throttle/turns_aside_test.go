package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// "Of more than a look brings along, the next 32 four times a second": so all are looked at, and
// no look follows another without a pause.
func TestManyTooDear(t *testing.T) {
	t.Parallel()
	own := []policy.Rule{{Name: "own", Algorithm: policy.SlidingWindow, Limit: 20, Per: time.Minute}}
	account := []policy.Rule{{Name: "account", Algorithm: policy.TokenBucket, Limit: 1000, Per: sec, Burst: 1000}}
	t.Run("alone", func(t *testing.T) { manyTooDear(t, tenants(t, "p", nil, own)) })
	t.Run("below an account", func(t *testing.T) { manyTooDear(t, tenants(t, "p", account, own)) })
}

func manyTooDear(t *testing.T, policy *policy.Policy) {
	t.Helper()
	const tenantsAside = 100
	onBoth(t, Config{}, policy, func(b *bench) {
		for i := range tenantsAside {
			scope := fmt.Sprint("p/t", i)
			b.heed(scope, owns(4, time.Minute))
			if d := b.decide(Request{Scope: scope, Turn: Turn{WaiterID: fmt.Sprint(i)}, Cost: 10}); !d.Position.Waits {
				b.t.Fatalf("%d was granted: %+v", i, d)
			}
		}
		look := func() Dispatched {
			b.t.Helper()
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 9})
			if err != nil || !woken.Waiting {
				b.t.Fatalf("%+v, %v", woken, err)
			}
			return woken
		}
		for range 4 { // each steps aside
			b.pass(10 * sec)
			look()
		}
		for _, i := range []int{tenantsAside - 1, 0, 64, tenantsAside / 2} {
			b.heed(fmt.Sprint("p/t", i), owns(20, time.Minute))
			var took time.Duration
			for {
				woken := look()
				if len(woken.Granted) > 0 {
					if p := woken.Granted[0]; p.ID != fmt.Sprint(i) {
						b.t.Fatalf("%v was released, not %d", p, i)
					}
					b.decide(Request{Scope: fmt.Sprint("p/t", i), Turn: Turn{WaiterID: fmt.Sprint(i)}, Cost: 10})
					break
				}
				if woken.Next <= 0 || woken.Next > sec {
					b.t.Fatalf("after %v the next look is in %v", took, woken.Next)
				}
				if took += woken.Next; took > 3*sec {
					b.t.Fatalf("%d waits for %v, and its rule is free", i, took)
				}
				b.pass(woken.Next)
			}
		}
	})
}

// A task that no rule is to admit once it has grown keeps nobody waiting: it costs too much for
// one rule for a while, and for another for good.
func TestTooDearForGood(t *testing.T) {
	t.Parallel()
	limits := func(low int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "own", Algorithm: policy.SlidingWindow, Limit: 20, Per: time.Minute},
			policy.Rule{Name: "low", Algorithm: policy.FixedWindow, Limit: low, Per: time.Hour})
	}
	onBoth(t, Config{}, limits(20), func(b *bench) {
		b.heed("p", owns(4, time.Minute))
		for ticket, cost := range []int64{10, 1} {
			if d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(ticket)}, Cost: cost}); !d.Position.Waits {
				b.t.Fatalf("%+v", d)
			}
		}
		b.SetPolicy(limits(5))
		b.pass(sec)
		woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 9, CheckAll: true})
		if err != nil || len(woken.Granted) != 1 || woken.Granted[0].ID != "1" {
			b.t.Errorf("%+v, %v: the second should be released", woken, err)
		}
	})
}

// "A task that a lowered limit can never admit waits beside its line": priority 5 is before
// priority 0 again when the limit is what it was, and nobody waits for it meanwhile.
func TestTooDearForTheRuleKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limit := func(limit int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: sec, Burst: limit})
	}
	onBoth(t, Config{}, limit(10), func(b *bench) {
		b.decide(Request{Scope: "p/a", ID: NewID(), Cost: 10})
		lineUpAll(b, []Waiter{
			{Scope: "p/a", ID: "cheap"}, {Scope: "p/a", ID: "dear first", Cost: 10, Priority: 5},
			{Scope: "p/a", ID: "dear second", Cost: 9, Priority: 5}, {Scope: "p/a", ID: "dear last", Cost: 8},
			{Scope: "p/b", ID: "other"},
		})
		var order []string
		look := func(back []WaiterRef) {
			b.t.Helper()
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, CheckAll: true, Unpark: back})
			if err != nil {
				b.t.Fatal(err)
			}
			for _, p := range woken.Granted {
				b.decide(Request{Scope: p.Scope, Turn: Turn{WaiterID: p.ID}, Cost: map[string]int64{"dear first": 10, "dear second": 9, "dear last": 8}[p.ID], ID: NewID()})
				order = append(order, p.ID)
			}
		}
		b.SetPolicy(limit(5))
		for range 3 {
			b.pass(sec)
			look(nil)
		}
		if got := fmt.Sprint(order); got != "[cheap other]" && got != "[other cheap]" {
			b.t.Fatalf("%s were released while the others are too dear", got)
		}
		b.decide(Request{Scope: "p/c", ID: NewID(), Cost: 4})
		lineUpAll(b, []Waiter{{Scope: "p/a", ID: "later"}})
		order = nil
		b.SetPolicy(limit(10))
		places, err := b.Waitlist().Parked(ctx, "p", 0, 100)
		if err != nil {
			b.t.Fatal(err)
		}
		look(places)
		for range 4 {
			b.pass(sec)
			look(nil)
		}
		if got := fmt.Sprint(order); got != "[dear first dear second dear last later]" {
			b.t.Errorf("%s is the order when the limit is what it was", got)
		}
	})
}

// A task that is too dear, and is put back once a second to see whether it fits, keeps nobody of its
// line waiting who takes nothing of its rule.
func TestTooDearPutBackKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	limits := func(input int64) *policy.Policy {
		return policyOf(t,
			policy.Rule{Name: "input", Algorithm: policy.TokenBucket, Limit: input, Per: time.Hour, Burst: input, Unit: "input"},
			policy.Rule{Name: "output", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 10, Unit: "output"})
	}
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprint("back ", back), func(t *testing.T) {
			onBoth(t, Config{}, limits(100), func(b *bench) {
				b.decide(Request{Scope: "p/z", Costs: policy.Costs{"input": 100, "output": 10}, ID: NewID()})
				asks := []Waiter{
					{Scope: "p/b", ID: "b", Costs: policy.Costs{"input": 5}},
					{Scope: "p/a", ID: "dear", Costs: policy.Costs{"input": 50}},
				}
				const cheap = 60
				for i := range cheap {
					asks = append(asks, Waiter{Scope: "p/a", ID: fmt.Sprintf("cheap %02d", i), Costs: policy.Costs{"output": 1}})
				}
				lineUpAll(b, asks)
				b.SetPolicy(limits(10))
				started := 0
				for i := range 100 { // ten seconds: there are units for all
					req := DispatchRequest{Provider: "p", Max: 100, CheckAll: i == 0}
					if back && i%10 == 0 {
						places, err := b.Waitlist().Parked(ctx, "p", 0, 200)
						if err != nil {
							b.t.Fatal(err)
						}
						req.Unpark = places
					}
					woken, err := b.Waitlist().Dispatch(ctx, req)
					if err != nil {
						b.t.Fatal(err)
					}
					for _, p := range woken.Granted {
						if d := b.decide(Request{Scope: p.Scope, Turn: Turn{WaiterID: p.ID}, Costs: policy.Costs{"output": 1}, ID: NewID()}); d.Allowed {
							started++
						}
					}
					b.pass(sec / 10)
				}
				if started < cheap {
					b.t.Errorf("%d of %d have started, and their units are free", started, cheap)
				}
			})
		})
	}
}

// "200 a call": no call is held up by how many are too dear.
func TestParksSomeAtATime(t *testing.T) {
	t.Parallel()
	limit := func(limit int64) *policy.Policy {
		return policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: sec, Burst: limit})
	}
	onBoth(t, Config{}, limit(10), func(b *bench) {
		const dear = 500
		b.decide(Request{Scope: "p/a", ID: NewID(), Cost: 10})
		asks := make([]Waiter, dear)
		for i := range asks {
			asks[i] = Waiter{Scope: "p/a", ID: fmt.Sprint("g/", i), Cost: 10}
		}
		lineUpAll(b, asks)
		b.SetPolicy(limit(5))
		for calls := 1; calls <= 3; calls++ {
			woken, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, CheckAll: true})
			if err != nil || len(woken.Granted) > 0 || calls < 3 && woken.Next > 0 {
				b.t.Fatalf("%+v, %v", woken, err)
			}
			places, err := b.Waitlist().Parked(ctx, "p", 0, 2*dear)
			tasks := slices.DeleteFunc(places, func(p WaiterRef) bool { return p.ID == "g/" })
			if want := min(200*calls, dear); err != nil || len(tasks) != want {
				b.t.Errorf("after %d calls %d are parked, not %d: %v", calls, len(tasks), want, err)
			}
		}
	})
}
