package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// asked is a decision that was asked for in a batch.
type asked struct {
	Decision
	attempt *attempt
	err     error
}

// askTogether has requests decided in one batch.
func (b *bench) askTogether(reqs ...Request) []asked {
	b.t.Helper()
	all := b.tryTogether(reqs...)
	for i, got := range all {
		if got.err != nil {
			b.t.Fatalf("%+v: %v", reqs[i], got.err)
		}
	}
	return all
}

// tryTogether is askTogether where errors are to be expected.
func (b *bench) tryTogether(reqs ...Request) []asked {
	b.t.Helper()
	batch, all := b.batchOf(reqs...), make([]asked, len(reqs))
	for i, p := range batch {
		all[i].attempt = p.call.attempt
	}
	b.runner.together(slices.Clone(batch))
	for i, p := range batch {
		reply, err := p.wait()
		if err == nil {
			err = all[i].attempt.answer(context.Background(), reply, &all[i].Decision)
		}
		all[i].err = err
	}
	return all
}

// batchOf has requests wait in one batch, which nobody sends.
func (b *bench) batchOf(reqs ...Request) (batch []*pending) {
	b.t.Helper()
	r := b.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range reqs {
		req.once = req.ID == ""
		p, err := b.prepare(&req)
		noError(b.t, err)
		batch = append(batch, r.enqueue(context.Background(), b.attempt(p, &req).call()))
	}
	r.queue.timer.Stop()
	r.queue = nil
	return batch
}

// peek is what Peek says of the scope p/x.
func (b *bench) peek() Decision {
	b.t.Helper()
	d, err := b.Peek(context.Background(), Request{Scope: "p/x"})
	noError(b.t, err)
	return d
}

// warm is a bench over a rule that was used lately, with scripts that are known.
func warm(t *testing.T, rdb redis.UniversalClient, rules ...policy.Rule) *bench {
	t.Helper()
	b := newBench(t, rdb, Config{}, policyOf(t, rules...))
	learn(t, b.Limiter, "p/x")
	learnMany(t, b.Limiter)
	b.decide(Request{Scope: "p/x"})
	return b
}

// A decision says the same whether it was made together with others or alone: all
// of it, under random rules, at random times.
func TestTogetherSaysTheSame(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	asked, admitted := 0, 0
	for range 12 {
		var rules []policy.Rule
		for i := range 1 + random.IntN(3) {
			limit, per := []int64{7, 100, 3000, 999_983}[random.IntN(4)], time.Duration(1+random.Int64N(100))*sec/10
			rules = append(rules, policy.Rule{
				Name: fmt.Sprint(i), Algorithm: []policy.Algorithm{policy.TokenBucket, policy.SlidingWindow, policy.FixedWindow}[random.IntN(3)],
				Limit: limit, Per: per, Margin: time.Duration(random.Int64N(2)) * per / 50,
			})
			if rules[i].Algorithm == policy.TokenBucket {
				rules[i].Burst = limit
			}
			switch random.IntN(16) {
			case 0: // which is decided singly
				rules[i] = daily(limit, "UTC")
				rules[i].Name = fmt.Sprint(i)
			case 1, 2, 3, 4:
				rules[i] = policy.Rule{Name: fmt.Sprint(i), Algorithm: policy.Concurrency, Limit: limit, Lease: max(per, sec)}
			}
		}
		b := warm(t, redistest.Client(t), rules...)
		alone := warm(t, redistest.Client(t), rules...)
		at := int64(0)
		for range 40 {
			at += random.Int64N(3) * random.Int64N(2_000_000)
			b.at(at)
			alone.at(at)
			var reqs []Request
			for range 2 + random.IntN(3) {
				reqs = append(reqs, Request{Scope: "p/x", Cost: 1 + random.Int64N(2)*random.Int64N(3)})
			}
			if random.IntN(3) == 0 {
				clear(b.runner.unbatchables.plans)
			}
			all := b.askTogether(reqs...)
			// First who is admitted together, then the rest.
			for _, together := range []bool{true, false} {
				for i, got := range all {
					if (got.attempt.slot == nil) != together {
						continue
					}
					asked++
					if together {
						admitted++
					}
					want := alone.decide(reqs[i])
					got.Grant.id, want.Grant.id = "", ""
					got.Grant.record, want.Grant.record = "", ""
					got.Grant.plan, want.Grant.plan = nil, nil
					got.Grant.from, want.Grant.from = time.Time{}, time.Time{}
					got.Grant.came, want.Grant.came = time.Time{}, time.Time{}
					want.begins = got.begins
					if !reflect.DeepEqual(got.Decision, want) {
						t.Fatalf("seed %d: %+v at %d, together %t:\n%+v\nalone:\n%+v", seed, reqs[i], at, together, got.Decision, want)
					}
				}
			}
		}
	}
	if t.Logf("%d of %d were admitted together", admitted, asked); admitted < 100 || asked-admitted < 100 {
		t.Errorf("too few to say anything: %d of %d were admitted together", admitted, asked)
	}
}

func remaining(d Decision) (left []int64) {
	for _, r := range d.Rules {
		left = append(left, r.Remaining)
	}
	return left
}

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
