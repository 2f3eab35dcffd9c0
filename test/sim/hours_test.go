package sim

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// "Starts obey the rule in force": a backlog over both edges of ten minutes with a rule of
// their own, in two processes. Tasks that wait by the one rule come by the other at once.
func TestHoursOverTheEdges(t *testing.T) {
	long(t)
	run(t, `{rules: [{name: day, algorithm: token-bucket, limit: 1, per: 10s, active: "1-5 0 * * *"},
  {name: night, algorithm: token-bucket, limit: 1, per: 1s, active: "0,6-59 0 * * *"}]}`, func(c *course) {
		const n = 60 + 30 + 60
		c.serve(asynq.Config{})
		c.serve(asynq.Config{})
		one := c.began.Add(time.Minute) // a bubble begins at midnight
		two := one.Add(5 * time.Minute)
		c.plan(n, "p/a")
		runs := c.finish(n)
		var before, within int
		last := map[time.Duration]time.Time{}
		for i, r := range runs {
			apart := time.Second
			switch {
			case r.at.Before(one):
				before++
			case r.at.Before(two):
				within++
				apart = 10 * time.Second
			}
			// A call takes a while, and a start may be late by no more than the pad.
			if gap := r.at.Sub(last[apart]); gap < apart-20*time.Millisecond {
				c.Errorf("start %d at %s was %s after the last by its rule", i, r.at.UTC(), gap)
			}
			last[apart] = r.at
		}
		if before < 58 || before > 61 || within < 28 || within > 31 {
			c.Errorf("%d starts before, %d in the five minutes", before, within)
		}
		if d := after(two, runs, before+within+1); d > time.Second {
			c.Errorf("the first start after them came after %s", d)
		}
		if d := after(two, runs, n); d > time.Duration(n-before-within+1)*1100*time.Millisecond {
			c.Errorf("the last start came %s after them", d)
		}
	})
}
