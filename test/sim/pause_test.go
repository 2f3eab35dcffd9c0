package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// follow has all processes follow the limits in Redis, until what it returns is called.
func (c *course) follow() (*policystore.Store, func()) {
	c.Helper()
	store := policystore.New(c.admin, policystore.Config{})
	if _, _, err := store.PublishFile(c.Context(), "a worker", c.policy, nil); err != nil {
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

// docs/limits.md: nothing starts in a pause but in its first second; who waits keeps the
// order, and goes on within half a second when it is lifted, or ends by itself; siblings
// go on, and have what the others leave. At random moments, for random times, in two
// processes.
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
				if err != nil {
					c.Fatal(err)
				}
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
				if each := c.pickups(2 * n); each > 2.5+lasts.Minutes()/10 {
					c.Errorf("%.2f pick-ups a task", each)
				}
			})
		})
	}
}

func anyTime(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

// A scope that no rule limits is paused like any other, and its tasks go on at once.
func TestPauseWithoutRules(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		const n = 50
		set := func(text string) {
			p, err := limitsyaml.Parse("limits.yaml", []byte(text))
			if err != nil {
				c.Fatal(err)
			}
			for _, l := range c.limiters {
				l.SetPolicy(p)
			}
		}
		c.serve(asynq.Config{})
		set("unmatched: allow\nlimits: {'*': {scopes: {a: {paused: true}}}}")
		c.plan(n, "q/a")
		plain := queue.NewClient(c.admin, queue.ClientConfig{})
		for i := range n { // and some that nobody has planned
			if _, err := plain.Enqueue(c.Context(), queue.Task{Type: "work", Scope: "q/a/x", ID: fmt.Sprint(i)}); err != nil {
				c.Fatal(err)
			}
		}
		<-time.After(2*time.Minute + 17*time.Second)
		if early := len(c.ended); early > 0 {
			c.Errorf("%d have started", early)
		}
		began := time.Now()
		set("unmatched: allow\nlimits: {}")
		runs := c.finish(2 * n)
		if d := after(began, runs, 1); d > 500*time.Millisecond {
			c.Errorf("the first started %s after the pause", d)
		}
		if d := after(began, runs, 2*n); d > 3*time.Second {
			c.Errorf("the last started %s after the pause", d)
		}
		<-time.After(time.Minute) // nobody comes again
		if more := len(c.ended); more > 0 {
			c.Errorf("%d ran twice", more)
		}
	})
}

// docs/limits.md: "max_wait goes on in a pause": a task's own, and those of the rules that
// the pause keeps. It is not given up before, though the pause is known to last longer.
func TestPatienceGoesOnInAPause(t *testing.T) {
	until := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC).Format(time.RFC3339) // bubbles begin an hour before
	for name, pause := range map[string]string{"for good": "paused: true", "for an hour": "paused: true, paused_until: " + until} {
		t.Run(name, func(t *testing.T) {
			run(t, "{"+pause+", rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s, max_wait: 45s}]}", func(c *course) {
				e := &ends{at: map[string]time.Time{}}
				c.impatient(e)
				began := time.Now()
				wants := map[string]time.Duration{"own": 20 * time.Second, "rule": 45 * time.Second, "delayed": 30 * time.Second}
				for id, task := range map[string]queue.Task{
					"own": {MaxWait: wants["own"]}, "rule": {MaxWait: time.Hour},
					"delayed": {MaxWait: 20 * time.Second, Delay: 10 * time.Second},
				} {
					task.ID, task.Type, task.Scope = id, "work", "p/a"
					if _, err := c.client.Enqueue(c.Context(), task); err != nil {
						c.Fatal(err)
					}
				}
				<-time.After(time.Minute)
				for id, want := range wants {
					at, ended := e.at[id]
					if took := at.Sub(began); !ended || took < want || took > want+2*time.Second {
						c.Errorf("%s: ended %v after %v, want %v", id, ended, took, want)
					}
				}
			})
		})
	}
}

// A deadline that comes before the end of a pause does not end a task before its time.
func TestDeadlineInAPause(t *testing.T) {
	long(t)
	run(t, "{paused: true, paused_until: 2000-01-01T01:00:00Z, rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		c.serve(asynq.Config{})
		for id, in := range map[string]time.Duration{"soon": time.Minute, "later": 10 * time.Minute} {
			if _, err := c.client.Enqueue(c.Context(), queue.Task{Type: "work", Scope: "p/a", ID: id, Deadline: time.Now().Add(in)}); err != nil {
				c.Fatal(err)
			}
		}
		<-time.After(5 * time.Minute)
		c.change("{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}")
		if runs := c.finish(1); runs[0].id != "later" {
			c.Errorf("%s ran", runs[0].id)
		}
		info, err := c.looks.GetTaskInfo("default", "soon")
		if err != nil || info.State != asynq.TaskStateArchived || !strings.Contains(info.LastErr, "deadline") {
			c.Errorf("%+v, %v", info, err)
		}
	})
}
