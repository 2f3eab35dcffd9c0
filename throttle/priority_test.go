package throttle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// tenantsUnder is an API that two tenants share, whose level "*" has more fields.
func tenantsUnder(t *testing.T, fields string) *policy.Policy {
	t.Helper()
	return parsedPolicy(t, fmt.Sprintf(`
limits:
  p:
    rules:
      - {name: r, algorithm: token-bucket, limit: 1, per: 1s}
      - {name: tokens, algorithm: token-bucket, limit: 1000000, per: 1s, burst: 1000000, unit: tokens}
    scopes: {"*": {%s}}
`, fields))
}

// started has all who wait start one by one, and returns their tickets in that order.
func (b *bench) started(asks []Waiter) (tickets []string) {
	b.t.Helper()
	costs := map[string]policy.Costs{}
	for _, a := range asks {
		costs[a.ID] = a.Costs
	}
	for range 3 * len(asks) {
		b.pass(sec)
		for _, p := range b.dispatch(DispatchRequest{Provider: "p", Max: 1}).Granted {
			if d := b.decide(Request{Scope: p.Scope, Turn: Turn{WaiterID: p.ID}, Costs: costs[p.ID], MaxDelay: sec}); !d.Allowed {
				b.t.Fatalf("%s: %+v", p.ID, d)
			}
			tickets = append(tickets, p.ID)
		}
	}
	if len(tickets) != len(asks) {
		b.t.Fatalf("%d of %d have started: %q", len(tickets), len(asks), tickets)
	}
	return tickets
}

// ways are how tasks come to wait: by asking themselves, or planned together.
var ways = map[string]func(*bench, []Waiter){
	"one by one": func(b *bench, asks []Waiter) {
		for _, a := range asks {
			if d := b.decide(Request{Scope: a.Scope, Cost: a.Cost, Costs: a.Costs, Turn: Turn{WaiterID: a.ID, Priority: a.Priority, Lane: a.Lane, Stride: a.Stride}}); !d.Position.Waits {
				b.t.Fatalf("%s does not wait: %+v", a.ID, d)
			}
		}
	},
	"together": lineUpAll,
}

// asksOf are n tasks of a tenant.
func asksOf(tenant string, n, priority int, costs policy.Costs) (asks []Waiter) {
	for i := range n {
		asks = append(asks, Waiter{Scope: "p/" + tenant, ID: fmt.Sprint(tenant, i), Priority: priority, Costs: costs})
	}
	return asks
}

// docs/limits.md: "A cap that changes counts for tasks that ask from then on; those that stand in line keep their places."
func TestChangedCapCountsFromThenOn(t *testing.T) {
	t.Parallel()
	for way, join := range ways {
		onBothIn(t, way, Config{}, tenantsUnder(t, ""), func(b *bench) {
			b.decide(Request{Scope: "p"})
			meek, stood := asksOf("meek", 4, 0, nil), asksOf("greedy", 2, 1000000, nil)
			join(b, meek)
			join(b, stood)
			b.SetPolicy(tenantsUnder(b.t, "max_priority: 0"))
			join(b, stood) // they ask again, and keep their places
			late := asksOf("late", 4, 1000000, nil)
			join(b, late)
			b.SetPolicy(tenantsUnder(b.t, "max_priority: 3"))
			last := Waiter{Scope: "p/last", ID: "last", Priority: 1000000}
			join(b, []Waiter{last})
			want := []string{"greedy0", "greedy1", "last", "late0", "meek0", "late1", "meek1", "late2", "meek2", "late3", "meek3"}
			if got := b.started(slices.Concat(meek, stood, late, []Waiter{last})); !slices.Equal(got, want) {
				b.t.Errorf("the order is %q, want %q", got, want)
			}
		})
	}
}

// What a turn asks for and cannot be is refused, whichever way it comes.
func TestTurnRefused(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, tenantsUnder(t, "max_priority: 0"), func(b *bench) {
		for want, turn := range map[string]Turn{
			"Priority is 1000001; the most is 1000000 either way":  {Priority: policy.MaxPriority + 1},
			"Priority is -1000001; the most is 1000000 either way": {Priority: -policy.MaxPriority - 1},
			".Lane is 129 bytes": {Lane: strings.Repeat("x", 129)}, ".Stride is -1": {Lane: "x", Stride: -1}, ".Stride is": {Lane: "x", Stride: maxStride + 1},
		} {
			turn.WaiterID = "t"
			if _, err := b.Decide(ctx, Request{Scope: "p", Turn: turn}); err == nil || !strings.Contains(err.Error(), want) {
				b.t.Errorf("Decide: %v", err)
			}
			placed, err := b.Waitlist().Join(ctx, []Waiter{{Scope: "p", ID: "t", Priority: turn.Priority, Lane: turn.Lane, Stride: turn.Stride}}, 0, time.Millisecond)
			if err != nil || placed[0].Err == nil || !strings.Contains(placed[0].Err.Error(), want) {
				b.t.Errorf("Join: %+v, %v", placed, err)
			}
		}
	})
}
