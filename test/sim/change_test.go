package sim

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/limitsyaml"
)

// change puts other rules of provider p in force in all processes.
func (c *course) change(rules string) {
	c.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: "+rules+"}"))
	must(c, err)
	for _, l := range c.limiters {
		l.SetPolicy(p)
	}
}

// after returns how long after a moment the nth start came, from 1.
func after(began time.Time, runs []ran, n int) time.Duration { return runs[n-1].at.Sub(began) }

// "A raised limit takes effect at once for tasks that already wait", whatever they wait for: the next of a slow rate, a rule that
// is suspended, a window that is used up, a place. In two processes, of which one holds a task.
func TestRaisedLimitTakesEffectAtOnce(t *testing.T) {
	const raised = "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}"
	for name, rules := range map[string]string{
		"a slow rate":      "{rules: [{name: r, algorithm: token-bucket, limit: 1, per: 10m}]}",
		"suspended":        "{rules: [{name: r, algorithm: token-bucket, limit: 0, per: 1s}]}",
		"a sliding window": "{rules: [{name: r, algorithm: sliding-window, limit: 1, per: 1h}]}",
		"a fixed window":   "{rules: [{name: r, algorithm: fixed-window, limit: 1, per: 24h}]}",
		"a place":          "{rules: [{name: r, algorithm: concurrency, limit: 0}]}",
		"another rule":     "{rules: [{name: other, algorithm: sliding-window, limit: 1, per: 1h}]}",
		"all of that":      "{rules: [{name: r, algorithm: fixed-window, limit: 1, per: 24h}], scopes: {a: {rules: [{name: r, algorithm: concurrency, limit: 0}]}}}",
	} {
		t.Run(name, func(t *testing.T) {
			if name != "all of that" {
				long(t)
			}
			run(t, rules, func(c *course) {
				const n = 100
				c.serve(asynq.Config{})
				c.serve(asynq.Config{})
				c.plan(n, "p/a")
				<-time.After(2 * time.Minute)
				early := len(c.ended)
				began := time.Now()
				c.change(raised)
				runs := c.finish(n)
				if d := after(began, runs, early+1); d > 500*time.Millisecond {
					c.Errorf("the first start was %s after the change", d)
				}
				if d := after(began, runs, n); d > time.Second+600*time.Millisecond {
					c.Errorf("the last start was %s after the change", d)
				}
				c.pickedUp(n, 2)
			})
		})
	}
}

// "A lowered limit from now on": tasks that had their turns told by the old one come by the new, and none is over it.
func TestLoweredLimitCountsFromNowOn(t *testing.T) {
	long(t)
	run(t, "{rules: [{name: r, algorithm: token-bucket, limit: 100, per: 1s}]}", func(c *course) {
		const n = 400
		c.serve(asynq.Config{})
		c.serve(asynq.Config{})
		c.plan(n, "p/a")
		<-time.After(time.Second)
		early := len(c.ended)
		began := time.Now()
		c.change("{rules: [{name: r, algorithm: token-bucket, limit: 10, per: 1s}]}")
		runs := c.finish(n)
		if early < 50 || early > 105 { // the first look may take a while
			c.Errorf("%d starts in the first second", early)
		}
		// Those that were granted, and held, when the limit changed, a lead and a spread ahead
		// of their starts, and then ten a second.
		const held = 11
		late := runs[early:]
		for i := range late {
			if most := held + int(10*late[i].at.Sub(began).Seconds()*1.001); i+1 > most {
				c.Errorf("%d starts in the %s after the change, want %d at most", i+1, late[i].at.Sub(began), most)
				break
			}
		}
		c.uses(late[held:], 10, 0.98)
	})
}

// docs/limits.md: "A limit that was lowered under the cost of a task that waits, or rules
// that were taken away, leave it waiting": it is not lost, and starts when they are back.
func TestChangedUnderAWaitingTask(t *testing.T) {
	long(t)
	const rules = "{scopes: {a: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s, burst: 50}]}}}"
	for name, changed := range map[string]string{
		"lowered":    "{scopes: {a: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s, burst: 2}]}}}",
		"taken away": "{scopes: {b: {rules: [{name: r, algorithm: token-bucket, limit: 1, per: 1s, burst: 2}]}}}",
	} {
		t.Run(name, func(t *testing.T) {
			run(t, rules, func(c *course) {
				c.serve(asynq.Config{})
				c.costly(3, 40)
				<-time.After(5 * time.Second)
				c.change(changed)
				<-time.After(10 * time.Minute)
				if early := len(c.ended); early != 1 {
					c.Errorf("%d started, want the one whose units were there", early)
				}
				c.change(rules)
				c.finish(3)
			})
		})
	}
}
