package throttle

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// taskRequests are those of tasks of some scopes, which can wait for a turn.
func taskRequests(scopes ...string) (reqs []Request) {
	for i, scope := range scopes {
		reqs = append(reqs, Request{Scope: scope, Turn: Turn{WaiterID: fmt.Sprint("default:", i), MaxDelayQueued: sec}, MaxDelay: sec})
	}
	return reqs
}

// tasksOfTenants is a policy of an account, tenants below it, and how many runs each may have.
func tasksOfTenants(t *testing.T) *policy.Policy {
	t.Helper()
	return tenants(t, "p", []policy.Rule{bucket(1000, 1000)}, []policy.Rule{
		{Name: "window", Algorithm: policy.SlidingWindow, Limit: 100, Per: time.Minute},
		{Name: "runs", Algorithm: policy.Concurrency, Limit: 50, Lease: time.Minute},
	})
}

// Tasks that nobody is before are decided together, under rules of places too, whatever an API has told of others and whoever
// waits where they take nothing; those that have to wait get their places as ever.
func TestTasksAreDecidedTogether(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, tasksOfTenants(t), func(b *bench) {
		learnMany(b.t, b.Limiter)
		for _, scope := range []string{"p/a", "p/b"} {
			if d := b.decide(taskRequests(scope)[0]); !d.Allowed {
				b.t.Fatalf("%+v", d)
			}
		}
		commands := func(what string, want int64, reqs ...Request) (all []asked) {
			b.t.Helper()
			g := gated(b.rdb)
			all = b.askTogether(reqs...)
			if n := g.commands.Load(); n != want {
				b.t.Errorf("%s: %d commands, want %d", what, n, want)
			}
			return all
		}
		started := func(what string, all []asked, left ...int64) {
			b.t.Helper()
			for i, got := range all {
				if !got.Allowed || got.Position != noTurn || got.Rules[2].Remaining != left[i] || got.Rules[2].ResetAfter != time.Minute {
					b.t.Errorf("%s: task %d: %+v", what, i, got.Decision)
				}
			}
		}
		started("quiet", commands("quiet", 1, taskRequests("p/a", "p/b", "p/a")...), 48, 48, 47)
		b.heed("p/other", turnedDown(time.Hour))
		other := b.decide(Request{Scope: "p/other", Turn: Turn{WaiterID: "default:x", MaxDelayQueued: sec}, MaxDelay: sec})
		if other.Allowed || !other.Position.Waits {
			b.t.Fatalf("%+v", other)
		}
		started("told of another", commands("told of another", 1, taskRequests("p/a", "p/b")...), 46, 47)
		b.heed("p/b", turnedDown(time.Hour))
		all := commands("told of one", 1+1, taskRequests("p/a", "p/b")...)
		started("told of one", all[:1], 45)
		if d := all[1].Decision; d.Allowed || !d.Paused || !d.Position.Waits {
			b.t.Errorf("whose API has told: %+v", d)
		}
	})
}
