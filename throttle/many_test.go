package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
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
		if err != nil {
			b.t.Fatal(err)
		}
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
	if err != nil {
		b.t.Fatal(err)
	}
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

// Attempts of a batch are answered as one after the other would be: as many as fit
// are granted, each with what then remains, and the others are denied.
func TestTogetherIsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	clients := map[string]redis.UniversalClient{"redis": redistest.Client(t)}
	_, clients["miniredis"] = redistest.Miniredis(t)
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := policy.Rule{Name: "b", Algorithm: policy.TokenBucket, Limit: 20, Per: 10 * sec, Burst: 20}
			day := policy.Rule{Name: "d", Algorithm: policy.FixedWindow, Limit: 100, Per: 60 * sec}
			b := warm(t, rdb, window10(), bucket, day)
			g := gated(rdb)
			reqs := make([]Request, 12)
			for i := range reqs {
				reqs[i] = Request{Scope: "p/x"}
			}
			for i, got := range b.askTogether(reqs...) {
				if got.Allowed != (i < 9) {
					t.Fatalf("attempt %d: %+v", i, got.Decision)
				}
				if want := []int64{8 - int64(i), 18 - int64(i), 98 - int64(i)}; got.Allowed && !slices.Equal(remaining(got.Decision), want) {
					t.Errorf("attempt %d leaves %v, want %v", i, remaining(got.Decision), want)
				}
				if !got.Allowed && (got.RetryAfter != sec || got.Binding != 0) {
					t.Errorf("attempt %d: %+v", i, got.Decision)
				}
			}
			if n := g.commands.Load(); n != 1+3 {
				t.Errorf("%d commands, want one for all and one for each of three who are denied", n)
			}
		})
	}
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
			if random.IntN(4) == 0 {
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

// What is denied is asked for singly from then on, until it is granted at once again.
func TestDeniedIsAskedForSingly(t *testing.T) {
	t.Parallel()
	b := warm(t, redistest.Client(t), window10())
	g := gated(b.rdb)
	ask := func(what string, cost int64, allowed bool, commands, trips int64) {
		t.Helper()
		c, n := g.commands.Load(), g.trips.Load()
		for _, got := range b.askTogether(Request{Scope: "p/x", Cost: cost}, Request{Scope: "p/x", Cost: cost}) {
			if got.Allowed != allowed {
				t.Errorf("%s: %+v", what, got.Decision)
			}
		}
		if c, n = g.commands.Load()-c, g.trips.Load()-n; c != commands || n != trips {
			t.Errorf("%s: %d commands in %d round trips, want %d in %d", what, c, n, commands, trips)
		}
	}
	ask("used lately", 1, true, 1, 1)
	ask("denied", 10, false, 3, 2)
	ask("still denied", 10, false, 2, 1)
	ask("granted", 1, true, 2, 1)
	ask("granted again", 1, true, 1, 1)
}

// A rule that was never used and what else is not decided together is decided singly beside the rest.
func TestBatchesMix(t *testing.T) {
	t.Parallel()
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{
		"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: []policy.Rule{window10()}}, "runs": {Rules: []policy.Rule{runs10()}}}},
		"q": {Rules: []policy.Rule{window10()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	onBoth(t, Config{}, policy, func(b *bench) {
		reqs := []Request{
			{Scope: "p/a"}, {Scope: "p/runs"}, {Scope: "q"}, {Scope: "p/b", Cost: 3}, {Scope: "p/a", Cost: 2}, {Scope: "p/runs"}, {Scope: "q"}, {Scope: "p/new"},
		}
		learn(b.t, b.Limiter, "p/runs")
		learn(b.t, b.Limiter, "p/a")
		learnMany(b.t, b.Limiter)
		for _, scope := range []string{"p/a", "p/b", "q"} {
			b.decide(Request{Scope: scope})
		}
		want := []int64{8, 8, 8, 6, 6, 7, 7, 9}
		want[1], want[5] = 9, 8
		for i, got := range b.askTogether(reqs...) {
			if left := got.Rules[0].Remaining; !got.Allowed || left != want[i] || got.Rules[0].Scope != strings.Split(reqs[i].Scope, "*")[0] {
				b.t.Errorf("%+v: %+v, want %d left", reqs[i], got.Decision, want[i])
			}
		}
	})
}

// Paths of more rules than a batch can have are decided singly.
func TestLongPathsAreDecidedSingly(t *testing.T) {
	t.Parallel()
	for _, n := range []int{maxManyPath, maxManyPath + 1, maxManyKeys - 1, maxManyKeys} {
		var rules []policy.Rule
		for i := range n {
			rules = append(rules, policy.Rule{Name: fmt.Sprint("r", i), Algorithm: policy.FixedWindow, Limit: 6, Per: sec})
		}
		b := newBench(t, redistest.Client(t), Config{Timeout: 5 * sec}, policyOf(t, rules...))
		learn(t, b.Limiter, "p/x")
		learnMany(t, b.Limiter)
		b.decide(Request{Scope: "p/x"})
		g, want := gated(b.rdb), int64(1)
		if n > maxManyPath {
			want = 2
		}
		for i, got := range b.askTogether(Request{Scope: "p/x"}, Request{Scope: "p/x"}) {
			if want := int64(4 - i); !got.Allowed || got.Rules[0].Remaining != want || got.Rules[n-1].Remaining != want {
				t.Errorf("%d rules, attempt %d: %d and %d left, want %d", n, i, got.Rules[0].Remaining, got.Rules[n-1].Remaining, want)
			}
		}
		if sent := g.commands.Load(); sent != want {
			t.Errorf("%d rules: %d commands, want %d", n, sent, want)
		}
	}
}

// A reply that is not the script's is an error, and nobody gets another's.
func TestForeignReplyToMany(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"*0\r\n", ":1\r\n", "$-1\r\n", "$0\r\n\r\n", "$8\r\n1234567X\r\n", "$15\r\n12345671234567\x01\r\n"} {
		b := newBench(t, answering(t, reply), Config{}, policyOf(t, window10()))
		p, err := b.scopes.of("p/x")
		if err != nil {
			t.Fatal(err)
		}
		var batch []*pending
		b.runner.mu.Lock()
		for _, id := range []string{"a", "b"} {
			batch = append(batch, b.runner.enqueue(t.Context(), b.attempt(p, &Request{Scope: "p/x", ID: id, Cost: 1}).call()))
		}
		b.runner.queue = nil
		b.runner.mu.Unlock()
		b.runner.together(slices.Clone(batch))
		for _, p := range batch {
			if _, err := p.wait(); err == nil {
				t.Errorf("%q is taken for an answer", reply)
			}
		}
	}
}

// Paths of many rules do not make a call that is longer than a server takes; one
// that is as long as can be is taken.
func TestManyHasBoundedKeys(t *testing.T) {
	t.Parallel()
	var rules []policy.Rule
	for i := range 12 {
		rules = append(rules, policy.Rule{Name: fmt.Sprint("r", i), Algorithm: policy.SlidingWindow, Limit: 1000, Per: time.Minute})
	}
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Scopes: map[string]policy.ScopeConfig{"*": {Rules: rules}}}})
	if err != nil {
		t.Fatal(err)
	}
	const most = maxManyKeys / 13
	onBoth(t, Config{}, policy, func(b *bench) {
		learn(b.t, b.Limiter, "p/x")
		learnMany(b.t, b.Limiter)
		var reqs []Request
		var m *batchCommand
		for i := range most + 10 {
			req := Request{Scope: fmt.Sprint("p/", i), Cost: int64(i + 1)}
			reqs = append(reqs, req)
			p, err := b.prepare(&req)
			if err != nil {
				b.t.Fatal(err)
			}
			one := &pending{runner: b.runner, call: b.attempt(p, &req).call()}
			if m == nil {
				m = newMany(one, 1)
			}
			if room := m.add(one); room != (i < most) {
				b.t.Fatalf("there is room for attempt %d: %t", i, room)
			}
		}
		reqs = reqs[:most]
		for _, req := range reqs {
			b.decide(req)
		}
		g := gated(b.rdb)
		for i, got := range b.askTogether(reqs...) {
			if !got.Allowed || got.Rules[11].Remaining != int64(998-2*i) {
				b.t.Errorf("attempt %d: %+v", i, got.Decision)
			}
		}
		if n := g.commands.Load(); n != 1 {
			b.t.Errorf("%d commands, want 1", n)
		}
	})
}

// "Every key is declared", in a batch too; see TestEveryKeyIsDeclared.
func TestManyDeclaresItsKeys(t *testing.T) {
	t.Parallel()
	d := &declared{seen: map[string]bool{}, run: func(ctx context.Context, keys []string, cmd redis.Cmder) error {
		return redistest.User(t, redistest.Literal(keys...)).Process(ctx, cmd)
	}}
	b := newBench(t, clientOf(t, optionsOf(t)), Config{}, policyOf(t, window10()))
	b.decide(Request{Scope: "p/x"})
	b.rdb.AddHook(d)
	for i, got := range b.askTogether(Request{Scope: "p/x"}, Request{Scope: "p/x"}) {
		if want := int64(8 - i); !got.Allowed || got.Rules[0].Remaining != want {
			t.Errorf("%+v, want %d left", got.Decision, want)
		}
	}
	if !d.seen["decide_many"] || len(d.seen) != 1 {
		t.Errorf("run were %v", d.seen)
	}
}

// Hooks that print commands print no bytes, and count as no send.
func TestManyPrints(t *testing.T) {
	t.Parallel()
	m := &batchCommand{args: []any{"evalsha"}}
	if got := redis.NewCmd(context.Background(), m.args[0], m).String(); got != "evalsha 0 attempts" || m.sends.Load() != 0 {
		t.Errorf("%q, %d sends", got, m.sends.Load())
	}
}
