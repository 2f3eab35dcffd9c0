package reference

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// changing is a scope whose rule changes: each version has a limiter over the same state.
type changing struct {
	ctx    context.Context
	rdb    *redis.Client
	root   string
	clock  *redistest.Clock
	faults []error
}

func (c *changing) under(r policy.Rule) *throttle.Limiter {
	r.Name = "r"
	p, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{c.root: {Rules: []policy.Rule{r}}})
	if err != nil {
		panic(err)
	}
	l, err := throttle.New(c.rdb, p, throttle.Config{StartTolerance: -1, Unbatched: true, Timeout: time.Minute})
	if err != nil {
		panic(err)
	}
	return l
}

// wants asks for a cost and holds the answer against what it should be.
func (c *changing) wants(what string, l *throttle.Limiter, cost int64, allowed bool) throttle.Decision {
	d, err := l.Decide(c.ctx, throttle.Request{Scope: c.root, Cost: cost})
	if err != nil || d.Allowed != allowed {
		c.faults = append(c.faults, fmt.Errorf("%s: allowed is %v, want %v: %+v, error %q", what, d.Allowed, allowed, d.Rules, fmt.Sprint(err)))
	}
	return d
}

// forget has the keys expire that would have after so long.
func (c *changing) forget(d time.Duration) {
	c.clock.Advance(d)
	for _, key := range c.rdb.Keys(c.ctx, "hw:{"+c.root+"}*").Val() {
		if ttl := c.rdb.PTTL(c.ctx, key).Val(); ttl <= d {
			c.rdb.Del(c.ctx, key)
		} else {
			c.rdb.PExpire(c.ctx, key, ttl-d)
		}
	}
}

// versions are rules that have all of five units spent for long, of each algorithm and of several numbers.
var versions = map[string]policy.Rule{
	"bucket":              {Algorithm: policy.TokenBucket, Limit: 5, Per: 1000 * time.Hour, Burst: 5},
	"bucket, other parts": {Algorithm: policy.TokenBucket, Limit: 7, Per: 1999 * time.Hour, Burst: 5},
	"sliding":             {Algorithm: policy.SlidingWindow, Limit: 5, Per: time.Hour},
	"sliding, longer":     {Algorithm: policy.SlidingWindow, Limit: 5, Per: 2 * time.Hour},
	"sliding, cells":      {Algorithm: policy.SlidingWindow, Limit: 300, Per: time.Hour},
	"fixed":               {Algorithm: policy.FixedWindow, Limit: 5, Per: time.Hour},
	"on use":              {Algorithm: policy.FixedWindow, Limit: 5, Per: time.Hour, OpensOnUse: true},
	"half hours":          {Algorithm: policy.Calendar, Limit: 5, Resets: wallclock.MustParse("*/30 * * * *", "UTC"), Rollover: 5},
	"hours":               {Algorithm: policy.Calendar, Limit: 5, Resets: wallclock.MustParse("0 * * * *", "UTC")},
}

// spend has all but the last unit of a limit spent in two portions, in two half hours of one hour.
func (c *changing) spend(l *throttle.Limiter, limit int64) {
	c.wants("the first", l, 2, true)
	c.clock.Advance(31 * time.Minute)
	c.wants("the second", l, limit-2, true)
}

// changeScenes hold that what was spent stays spent when a rule changes.
var changeScenes = map[string]func(*changing){
	"all was spent": func(c *changing) {
		for from, before := range versions {
			for to, after := range versions {
				if from == to || before.Algorithm != after.Algorithm || before.OpensOnUse != after.OpensOnUse || before.Algorithm == policy.Calendar || after.Limit > 7 {
					continue // another algorithm begins anew, and units of a period may be from before another's
				}
				*c = changing{c.ctx, c.rdb, c.root + "c", c.clock, c.faults}
				c.clock.Set(time.Unix(1_800_057_600, 0))
				c.spend(c.under(before), 5)
				what, l := from+" to "+to, c.under(after)
				d := c.wants(what, l, 1, false)
				c.clock.Advance(d.RetryAfter - time.Microsecond)
				c.wants(what+", a microsecond too early", l, 1, false)
				c.clock.Advance(time.Microsecond)
				c.wants(what+", after the wait", l, 1, true)
			}
		}
	},
	"cells of another width": func(c *changing) {
		narrow, wide := c.under(versions["sliding"]), c.under(versions["sliding, cells"])
		c.spend(narrow, 5)
		c.wants("under cells", wide, 296, false)
		c.wants("under cells", wide, 295, true)
		c.wants("narrow again", narrow, 1, false)
	},
	"parts of another width": func(c *changing) {
		first := policy.Rule{Algorithm: policy.TokenBucket, Limit: 5, Per: 10 * time.Second, Burst: 100}
		then := policy.Rule{Algorithm: policy.TokenBucket, Limit: 7, Per: 14001 * time.Millisecond, Burst: 100} // nearly as fast
		c.wants("under the first", c.under(first), 5, true)
		if d := c.wants("under the second", c.under(then), 1, true); len(d.Rules) != 1 || d.Rules[0].Remaining != 94 {
			c.faults = append(c.faults, fmt.Errorf("6 of 100 were taken: %+v", d.Rules))
		}
	},
	"a lowered number of runs": func(c *changing) {
		rule := policy.Rule{Algorithm: policy.Concurrency, Limit: 3, Lease: time.Minute}
		for range 3 {
			c.wants("a run", c.under(rule), 1, true)
			c.clock.Advance(time.Second)
		}
		rule.Limit = 1
		if d := c.wants("of one at most", c.under(rule), 1, false); d.RetryAfter != 59*time.Second {
			c.faults = append(c.faults, fmt.Errorf("a place is free in %s, when the last of three has ended", d.RetryAfter))
		}
	},
	"a shorter lease": func(c *changing) {
		rule := policy.Rule{Algorithm: policy.Concurrency, Limit: 2, Lease: time.Hour}
		c.wants("a long run", c.under(rule), 1, true)
		rule.Lease = time.Second
		c.wants("a short one", c.under(rule), 1, true)
		c.forget(10 * time.Second)
		c.wants("the place of the short one", c.under(rule), 1, true)
		c.wants("that of the long one", c.under(rule), 1, false)
	},
}

// playChanges returns what the scenes find wrong.
func playChanges(ctx context.Context, rdb *redis.Client, root string, hooks ...redis.Hook) error {
	var faults []error
	for name, play := range changeScenes {
		c := &changing{ctx: ctx, rdb: rdb, root: root + string(name[0]) + fmt.Sprint(len(name)), clock: redistest.NewClock(time.Unix(1_800_057_600, 0))}
		c.rdb = redis.NewClient(rdb.Options())
		for _, hook := range append(hooks, c.clock) {
			c.rdb.AddHook(hook)
		}
		play(c)
		faults = append(faults, c.faults...)
		_ = c.rdb.Close()
	}
	return errors.Join(faults...)
}

// "A changed limit keeps what has been spent."
func TestWhatWasSpentStaysSpent(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]*redis.Client{"redis": redistest.Client(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := playChanges(t.Context(), rdb, redistest.Prefix(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
