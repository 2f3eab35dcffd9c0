package events

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// A start that was granted ahead does not say what is left: the process asks, at most each ten seconds, whether another start follows or
// not, and not once the rule is known to be exhausted.
func TestGrantedStarts(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		p := newProgram(t, rdb, hourly(t, 10), "", nil, nil)
		other, err := throttle.New(rdb, hourly(t, 10), throttle.Config{})
		must(t, err)
		var d throttle.Decision
		spend := func(n int) {
			for range n {
				d, err = other.Decide(t.Context(), throttle.Request{Scope: "p/a"})
				must(t, err)
			}
		}
		handed := func() {
			for range 100 {
				one := d
				one.Handed = true
				p.events.Decided(t.Context(), one, 0, nil)
			}
			pass(askPause)
			synctest.Wait()
		}
		spend(5)
		if handed(); len(p.seen(Threshold)) != 1 || p.seen(Threshold)[0].Percent != 50 {
			t.Errorf("%+v", p.seen(Threshold))
		}
		spend(5)
		if handed(); len(p.seen(Threshold)) != 1 {
			t.Errorf("it asked again at once: %+v", p.seen(Threshold))
		}
		pass(askEvery)
		synctest.Wait()
		if len(p.seen(Threshold)) != 2 || p.seen(Threshold)[1].Percent != 100 {
			t.Errorf("after the last start: %+v", p.seen(Threshold))
		}
		asked := p.events.quotas.asked["p/a"].at
		if handed(); !p.events.quotas.asked["p/a"].at.Equal(asked) {
			t.Error("it asks about what is exhausted")
		}
	})
}

// docs/llm.md, "Budgets": the end of an answer may use a budget up, or leave less of it than a call takes at first; no start follows.
func TestSettledBudget(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Rules: []policy.Rule{{Name: "day", Algorithm: policy.FixedWindow, Limit: 1000, Per: 24 * time.Hour, Unit: "usd", Cap: 10}},
		}})
		must(t, err)
		p := newProgram(t, rdb, pol, "", nil, nil)
		for _, tt := range []struct{ spent, percent int64 }{{100, 0}, {450, 50}, {110, 50}, {295, 100}} { // 45 are left, and a call takes 100
			d, err := p.limiter.Decide(t.Context(), throttle.Request{Scope: "p", Costs: policy.Costs{"usd": 5000}})
			must(t, err)
			d.Handed = true
			p.events.Decided(t.Context(), d, 0, nil)
			pass(time.Minute) // of the answer
			_, err = p.limiter.Settle(t.Context(), d.Grant, policy.Costs{"usd": tt.spent})
			must(t, err)
			pass(askEvery)
			synctest.Wait()
			percent := int64(0)
			if got := p.seen(Threshold); len(got) > 0 {
				percent = int64(got[len(got)-1].Percent)
			}
			if percent != tt.percent {
				t.Errorf("%d spent: %d %%, want %d", tt.spent, percent, tt.percent)
			}
		}
		if got := p.seen(Threshold); len(got) != 2 || got[1].Used != 955 {
			t.Errorf("%+v", got)
		}
	})
}

// Below a pool, the rules of a tenant and those of the member that its start was charged to are both asked about.
func TestSettledBudgetsBelowAPool(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		day := policy.ScopeConfig{Rules: []policy.Rule{{Name: "day", Algorithm: policy.FixedWindow, Limit: 1000, Per: 24 * time.Hour, Unit: "usd", Cap: 10}}}
		pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {
			Pool: policy.Pool{Members: []policy.Member{{Name: "key"}}}, Scopes: map[string]policy.ScopeConfig{"*": day, "@key": day},
		}})
		must(t, err)
		p := newProgram(t, rdb, pol, "", nil, nil)
		d, err := p.limiter.Decide(t.Context(), throttle.Request{Scope: "p/a", Costs: policy.Costs{"usd": 5000}})
		must(t, err)
		d.Handed = true
		p.events.Decided(t.Context(), d, 0, nil)
		pass(time.Minute) // of the answer
		_, err = p.limiter.Settle(t.Context(), d.Grant, policy.Costs{"usd": 700})
		must(t, err)
		pass(askEvery)
		synctest.Wait()
		about := map[string]bool{}
		for _, e := range p.seen(Threshold) {
			about[e.Scope] = true
		}
		if len(about) != 2 || !about["p/a"] || !about["p/@key"] {
			t.Errorf("reported %v", about)
		}
	})
}
