package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/test/countapi"
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

// unitRules are the rules of units as the checker judges them: each by itself, for the calls that
// cost anything of its unit, with so many times the capacity.
var unitRules = []struct {
	name, unit string
	rule       func(times int) string
	holds      func(at time.Time) bool
}{
	{"calls", policy.Requests, func(n int) string {
		return fmt.Sprintf("rules: [{name: calls, algorithm: sliding-window, limit: %d, per: 1m}]", n*30)
	}, always},
	{"words", "tokens", func(n int) string {
		return fmt.Sprintf("rules: [{name: words, algorithm: sliding-window, limit: %d, per: 1m}]", n*900)
	}, always},
	{"night", policy.Requests, func(n int) string {
		return fmt.Sprintf("rules: [{name: night, algorithm: fixed-window, limit: %d, per: 5m}]", n*20)
	}, night},
	{"tenant", "tokens", func(n int) string {
		return fmt.Sprintf(`scopes: {"*": {rules: [{name: tenant, algorithm: token-bucket, limit: 300, per: 1m, burst: %d}]}}`, n*200)
	}, always},
}

func always(time.Time) bool { return true }

// night says that the rule of hours held at a moment, and has for longer than a start is late.
func night(at time.Time) bool { return inHours(at) && !nearHours(at) }

func inHours(at time.Time) bool {
	m := at.Minute()
	return m < 10 || m >= 30 && m < 45
}

// nearHours says that they began or ended a moment ago.
func nearHours(at time.Time) bool { return inHours(at) != inHours(at.Add(-50*time.Millisecond)) }

// spending is what a run of the provider is charged: its estimate at its start, and debts.
type spending struct {
	id, scope string
	began     time.Duration
	by        map[string]*account // by rule
	unknown   bool                // a reply was lost, or hours have just changed: other units may be charged
}

// account is what is charged under one rule.
type account struct {
	start int64
	debts []debt
	over  int64
}

type debt struct {
	at    time.Duration
	units int64
}

func (a *account) total() int64 {
	total := a.start
	for _, d := range a.debts {
		total += d.units
	}
	return total
}

// back takes units back, what was charged last first.
func (a *account) back(units int64) {
	for i := len(a.debts) - 1; i >= 0; i-- {
		less := min(units, a.debts[i].units)
		a.debts[i].units, units = a.debts[i].units-less, units-less
	}
	a.start -= units
}

// costsOf draws what a task of the provider costs.
func (w *world) costsOf() policy.Costs {
	costs := policy.Costs{"tokens": []int64{0, 20, 90, 180}[w.random.IntN(4)]}
	if costs["tokens"] > 0 && w.random.IntN(4) == 0 {
		costs[policy.Requests] = 0
	}
	return costs
}

// spend settles what a run has spent, as handlers do: not at all, at once or bit by bit, less or
// more, or it leaves that to who hears of it later.
func (p *process) spend(ctx context.Context, spec queue.Spec, id string, began time.Duration) {
	w := p.w
	at := w.began.Add(began)
	c := &spending{id: id, scope: spec.Scope, began: began, by: map[string]*account{}, unknown: nearHours(at)}
	for _, r := range unitRules {
		c.by[r.name] = &account{}
		if r.holds(at) {
			c.by[r.name].start = cmp.Or(spec.Cost, spec.Costs.Of(r.unit))
		}
	}
	w.mu.Lock()
	w.spent = append(w.spent, c)
	how, steps := w.luck.IntN(5), 1+w.luck.IntN(3)
	costs := make([]policy.Costs, steps)
	for i := range costs {
		costs[i] = w.final()
	}
	w.mu.Unlock()
	switch how {
	case 0:
	case 1:
		if err := worker.SaveGrant(ctx, time.Hour); err != nil {
			return
		}
		w.mu.Lock()
		w.kept = append(slices.DeleteFunc(w.kept, func(k *spending) bool { return k.id == id }), c)
		w.mu.Unlock()
	default:
		for _, costs := range costs {
			s, err := worker.Settle(ctx, costs)
			w.settled(c, costs, s, err)
		}
	}
}

// final draws what was spent in the end.
func (w *world) final() policy.Costs {
	costs := policy.Costs{"tokens": []int64{0, 10, 85, 170, 250, 600}[w.luck.IntN(6)]}
	if w.luck.IntN(4) == 0 {
		costs[policy.Requests] = int64(w.luck.IntN(3))
	}
	return costs
}

// settled notes a settlement. What it says must be what was spent.
func (w *world) settled(c *spending, costs policy.Costs, s throttle.Settlement, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		c.unknown = true
		for _, r := range unitRules {
			if spent, named := costs[r.unit]; named {
				c.by[r.name].back(max(0, c.by[r.name].total()-spent))
			}
		}
		return
	}
	for _, r := range s.Rules {
		a := c.by[r.Rule]
		a.back(max(0, a.total()+r.Over-r.Spent))
		a.debts, a.over = append(a.debts, debt{time.Since(w.began), r.Debt}), r.Over
		if got := a.total() + a.over; got != r.Spent && !c.unknown {
			w.Errorf("task %s: %s is charged %d, and spent %d: %+v", c.id, r.Rule, got, r.Spent, r)
		}
	}
}

// hear has somebody hear of some runs that were kept: what they spent, or that they were cancelled.
func (w *world) hear() {
	w.mu.Lock()
	kept := w.kept
	w.kept = nil
	w.mu.Unlock()
	l := w.limiters[0]
	for _, c := range kept {
		g, err := l.LoadGrant(w.Context(), c.scope, c.id)
		if err != nil {
			if !errors.Is(err, throttle.ErrGrantNotFound) && !errors.Is(err, throttle.ErrUnavailable) {
				w.Errorf("task %s is kept, and cannot be found: %v", c.id, err)
			}
			continue
		}
		if w.random.IntN(3) == 0 {
			_ = l.Refund(w.Context(), g) // where its reply is lost it may have come through
			w.mu.Lock()
			for _, a := range c.by {
				*a = account{}
			}
			w.mu.Unlock()
			continue
		}
		w.mu.Lock()
		costs := w.final()
		w.mu.Unlock()
		s, err := l.Settle(w.Context(), g, costs)
		w.settled(c, costs, s, err)
	}
}

// zones all have the same quarters of an hour, of which p's quota is: it is judged alike in each.
var zones = []string{"UTC", "America/Los_Angeles", "Australia/Lord_Howe", "Asia/Kathmandu"}

// change changes limits of the provider, and the zone of the other's calendar, for a while in
// which traffic goes on.
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

// judgeUnits asks the checker rule by rule: without debts none is over its limit, and with them
// none over twice as much, whatever runs have spent.
func (w *world) judgeUnits() {
	debts := 0
	for _, r := range unitRules {
		var starts, all []countapi.Call
		note := func(to *[]countapi.Call, c *spending, at time.Duration, units int64) {
			if units > 0 && r.holds(w.began.Add(at)) {
				*to = append(*to, countapi.Call{Seq: int64(len(*to)), ID: c.id, Scope: c.scope, Cost: units, Arrived: at, Departed: at, Status: 200})
			}
		}
		for _, c := range w.spent {
			a := c.by[r.name]
			note(&starts, c, c.began, a.start)
			note(&all, c, c.began, a.start)
			for _, d := range a.debts {
				note(&all, c, d.at, d.units)
				debts += int(min(1, d.units))
			}
		}
		w.judgeRule(r.rule(1), starts)
		w.judgeRule(r.rule(2), all)
	}
	w.Logf("%d runs of units, %d debts", len(w.spent), debts)
}

func (w *world) judgeRule(rule string, calls []countapi.Call) {
	report := checker.Judge(w, "limits: {u: {"+rule+"}}", checker.Input{Calls: calls, Jitter: 5 * time.Millisecond, Epoch: w.began})
	for _, row := range report.Rows {
		if row.Exceeded {
			w.Errorf("over: %s: %+v", rule, row)
		}
	}
}

// ofUnits says whether a scope is of the provider whose costs are by unit.
func ofUnits(scope string) bool { return strings.HasPrefix(scope, "u/") }
