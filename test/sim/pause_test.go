package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policystore"
)

// follow has all processes follow the limits in Redis, until what it returns is called.
func (c *course) follow() (*policystore.Store, func()) {
	c.Helper()
	store := policystore.New(c.admin, policystore.Config{})
	if _, _, err := store.PublishFile(c.Context(), "a worker", c.policy, false); err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.Context())
	for _, l := range c.limiters {
		go policystore.Follow(ctx, store, l, policystore.FollowConfig{})
	}
	<-time.After(policystore.Notice)
	return store, cancel
}

// of are the runs of a scope, by their ids, from one moment to another.
func of(runs []ran, scope string, from, to time.Time) (some []ran) {
	for _, r := range runs {
		if strings.HasPrefix(r.id, scope+" ") && !r.at.Before(from) && r.at.Before(to) {
			some = append(some, r)
		}
	}
	return some
}

// docs/limits.md: nothing starts in a pause but in its first second; who waits keeps the order, and goes on within half a second
// when it is lifted, or ends by itself; siblings go on, and have what the others leave. At random moments, for random times, in
// two processes.
func TestPause(t *testing.T) {
	long(t)
	const account, tenant = "{name: account, algorithm: token-bucket, limit: 60, per: 1s}", "{name: tenant, algorithm: sliding-window, limit: 40, per: 1s}"
	for name, tt := range map[string]struct {
		rules, scope string
		ends         bool // by itself
	}{
		"a tenant":               {"{rules: [" + account + "]}", "p/a", false},
		"a tenant with a rule":   {"{rules: [" + account + "], scopes: {'*': {rules: [" + tenant + "]}}}", "p/a", true},
		"a tenant with places":   {"{rules: [" + account + "], scopes: {'*': {rules: [{name: places, algorithm: concurrency, limit: 3}]}}}", "p/a", false},
		"a tenant and its level": {"{rules: [" + account + "], scopes: {a: {rules: [{name: fixed, algorithm: fixed-window, limit: 20, per: 500ms}]}}}", "p/a", true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.rules, func(c *course) {
				const n = 600
				random := rand.New(rand.NewPCG(uint64(len(name)), 0))
				c.serve(asynq.Config{})
				c.serve(asynq.Config{})
				store, stop := c.follow()
				defer stop()
				c.plan(n, "p/a")
				c.plan(n, "p/b")
				<-time.After(time.Second + anyTime(random, 3*time.Second))
				began, lasts := time.Now(), 10*time.Second+anyTime(random, 4*time.Minute)
				edit := policystore.Edit{By: "anna"}
				if tt.ends {
					edit.For = lasts
				}
				made, err := store.Pause(c.Context(), edit, tt.scope)
				must(c, err)
				<-time.After(time.Until(made.Version.At.Add(lasts)))
				ended := made.Version.At.Add(lasts)
				if !tt.ends {
					if made, err = store.Resume(c.Context(), edit, tt.scope); err != nil {
						c.Fatal(err)
					}
					ended = made.Version.InForce
				}
				runs := c.finish(2 * n)
				far := runs[len(runs)-1].at.Add(time.Second)
				if early := of(runs, "p/a", began.Add(time.Second), ended); len(early) > 0 {
					c.Errorf("%d started in the pause, the last %s before its end", len(early), ended.Sub(early[len(early)-1].at))
				}
				later := of(runs, "p/a", ended, far)
				if len(later) < n/3 {
					c.Fatalf("%d were left for later: the test tests nothing", len(later))
				}
				if d := later[0].at.Sub(ended); d > 500*time.Millisecond {
					c.Errorf("the first started %s after the pause", d)
				}
				// Those that were on their way to their starts come first, in whichever order.
				const onTheirWay = 10
				if rest := later[onTheirWay:]; !slices.IsSortedFunc(rest, func(a, b ran) int { return strings.Compare(a.id[:7], b.id[:7]) }) {
					c.Errorf("they did not keep their order: %v", rest)
				}
				if others := of(runs, "p/b", began.Add(time.Second), ended); took(others) > 0 && !strings.Contains(tt.rules, "*") && used(others, 60) < 0.95 {
					c.Errorf("the others used %.3f of what they could", used(others, 60))
				}
				// Two each, as for any that wait, and under a pause without an end now and then one.
				c.pickedUp(2*n, 2.5+lasts.Minutes()/10)
			})
		})
	}
}

func anyTime(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}
