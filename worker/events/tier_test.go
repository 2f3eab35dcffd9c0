package events

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// A database that fails is reported once in ten minutes, whatever the names, and each tier that the limits do not have besides.
func TestTierEvents(t *testing.T) {
	inFakeTime(t, func(t *testing.T, rdb *redis.Client) {
		rules := policy.ScopeConfig{Rules: []policy.Rule{{Name: "tenant", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Second}}}
		pol, err := policy.New("", map[string]policy.ScopeConfig{"p": {
			Tiers: map[string]policy.ScopeConfig{"gold": {}}, Scopes: map[string]policy.ScopeConfig{"*": rules},
		}})
		must(t, err)
		p := newProgram(t, rdb, pol, "", nil, nil)
		limiter, err := throttle.New(rdb, pol, throttle.Config{Observer: p.events, TierOf: func(_ context.Context, name policy.Scope) (string, error) {
			switch name.String() {
			case "p/fails", "p/other":
				return "", errors.New("no connection")
			case "p/odd":
				return "silver", nil
			}
			return "gold", nil
		}})
		must(t, err)
		spend := func(scope string) {
			_, err := limiter.Decide(t.Context(), throttle.Request{Scope: scope})
			must(t, err)
		}
		for range 2 {
			for _, scope := range []string{"p/acme", "p/odd", "p/fails", "p/other"} {
				spend(scope)
				pass(10 * time.Second)
			}
		}
		synctest.Wait()
		got := p.seen(Tier)
		if len(got) != 2 || got[0].Text != `p/odd has the tier silver, which the limits do not have; the rules of "*" count` || !got[0].Unknown || got[0].Tier != "silver" ||
			got[1].Text != "the tier of p/fails could not be asked for; the last known one counts: none" || got[1].Unknown {
			t.Errorf("%+v", got)
		}
		pass(10 * time.Minute)
		spend("p/other")
		synctest.Wait()
		if got := p.seen(Tier); len(got) != 3 || got[2].Scope != "p/other" {
			t.Errorf("%+v", got)
		}
	})
}
