package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
	"github.com/headway-go/headway/worker"
)

// units is a provider whose tasks cost requests and tokens, of which they only estimate how
// many: tenants have weights, and a rule has hours.
const units = `
  u:
    rules:
      - {name: calls, algorithm: sliding-window, limit: 30, per: 1m}
      - {name: words, algorithm: sliding-window, limit: 900, per: 1m, unit: tokens}
      - {name: night, algorithm: fixed-window, limit: 20, per: 5m, active: "0-9,30-44 * * * *"}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 300, per: 1m, burst: 200, unit: tokens}
      t0: {weight: 3}
      t1: {scopes: {"*": {weight: 1}, chat: {weight: 5}}}
`

// lowered is what the limits of the provider's first two rules are for a while.
var lowered = []int64{12, 300}

// costsOf draws what a task of the provider costs.
func (w *world) costsOf() policy.Costs {
	costs := policy.Costs{"tokens": []int64{0, 20, 90, 180}[w.random.IntN(4)]}
	if costs["tokens"] > 0 && w.random.IntN(4) == 0 {
		costs[policy.Requests] = 0
	}
	return costs
}

// kept is a run that somebody will hear of later.
type kept struct {
	scope, id string
	costs     policy.Costs
}

// spend settles more than a run of the provider was charged, as some handlers do, once or twice, or leaves that to who hears of
// it later. Debts only put off other starts, so the starts alone must keep the limits: the checker judges them as they were
// estimated. What is charged after settlements is TestSettleHistories' in package throttle.
func (p *process) spend(ctx context.Context, spec queue.Spec, id string) {
	w := p.w
	w.mu.Lock()
	how := w.luck.IntN(16)
	costs := policy.Costs{"tokens": max(spec.Cost, spec.Costs["tokens"]) + []int64{0, 10, 70, 500}[w.luck.IntN(4)]}
	w.mu.Unlock()
	switch how {
	case 0:
		if worker.SaveGrant(ctx, time.Hour) == nil {
			w.mu.Lock()
			w.kept = append(w.kept, kept{spec.Scope, id, costs})
			w.mu.Unlock()
		}
	case 1, 2:
		for range how {
			_, _ = worker.Settle(ctx, costs) // it fails while Redis is away
			costs = policy.Costs{"tokens": costs["tokens"] + 40}
		}
	}
}

// hear settles the runs that were kept.
func (w *world) hear() {
	w.mu.Lock()
	all := w.kept
	w.kept = nil
	w.mu.Unlock()
	for _, k := range all {
		g, err := w.limiters[0].LoadGrant(w.Context(), k.scope, k.id)
		if err == nil {
			_, err = w.limiters[0].Settle(w.Context(), g, k.costs)
		}
		if err != nil && !errors.Is(err, throttle.ErrGrantNotFound) && !errors.Is(err, throttle.ErrUnavailable) {
			w.Errorf("task %s is kept, and cannot be settled: %v", k.id, err)
		}
	}
}

// zones all have the same quarters of an hour, of which p's quota is: it is judged alike in each.
var zones = []string{"UTC", "America/Los_Angeles", "Australia/Lord_Howe", "Asia/Kathmandu"}

// change changes limits of the provider, and the zone of the other's calendar, for a while in which traffic goes on.
func (w *world) change() {
	w.meanwhile(func(limits map[string]policy.ScopeConfig) {
		quota := &limits["p"].Rules[1]
		quota.Resets = wallclock.MustParse(quota.Resets.Cron(), zones[w.random.IntN(len(zones))])
		for i, limit := range lowered {
			if w.random.IntN(2) == 0 {
				limits["u"].Rules[i].Limit = limit
			}
		}
	})
}

// ofUnits says whether a scope is of the provider whose costs are by unit.
func ofUnits(scope string) bool { return strings.HasPrefix(scope, "u/") }
