package throttle

import (
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// The same attempt twice in a batch, and again singly, is charged once; given back it comes back once.
func TestTogetherIsSafeToRepeat(t *testing.T) {
	t.Parallel()
	b := warm(t, redistest.Client(t), window10())
	once := Request{Scope: "p/x", ID: "once", Cost: 2}
	all := b.askTogether(once, Request{Scope: "p/x"}, once, once)
	for _, got := range append(all, b.askTogether(once, Request{Scope: "p/x"})...) {
		if !got.Allowed {
			t.Fatalf("got %+v", got.Decision)
		}
	}
	if d := b.decide(once); !d.Allowed || d.Rules[0].Remaining != 5 {
		t.Errorf("asked again singly: %+v", d)
	}
	for range 2 {
		b.giveBack(all[0].Grant)
	}
	if got := b.askTogether(once, Request{Scope: "p/x"}); got[0].Allowed || !got[1].Allowed || got[1].Rules[0].Remaining != 6 {
		t.Errorf("after it was given back: %+v, %+v", got[0].Decision, got[1].Decision)
	}
}

// "With +setrange besides, decisions of many callers go out as one call; without it they are sent one by one", and the next batches too for a while; what was
// refused is not charged.
func TestRefusedManyIsDecidedSingly(t *testing.T) {
	t.Parallel()
	_, commands := documentedAccess(t)
	bucket := policy.Rule{Name: "b", Algorithm: policy.TokenBucket, Limit: 10, Per: sec, Burst: 10}
	for _, without := range []string{"mget", "setrange"} {
		for way, request := range waysToAsk {
			prefix := redistest.Prefix(t)
			may := slices.DeleteFunc(slices.Clone(commands), func(c string) bool { return c == "+"+without })
			b := newBench(t, redistest.User(t, []string{prefix + ":*"}, may...), Config{}, policyOf(t, window10(), bucket))
			b.scopes.keys = keyspace(prefix)
			learnMany(t, &Limiter{runner: &runner{rdb: redistest.Client(t)}})
			b.decide(Request{Scope: "p/x"})
			b.at((sec / 2).Microseconds()) // the sliding window gets a cell more: its state is longer then
			g := gated(b.rdb)
			left := int64(9)
			ask := func() {
				t.Helper()
				for _, got := range b.askTogether(request(b), request(b)) {
					left--
					if n := got.attempt.sends.Load(); !got.Allowed || n != 1 || got.Rules[0].Remaining != left {
						t.Errorf("%s without %s: %d sends, want %d left: %+v", way, without, n, left, got.Decision)
					}
				}
			}
			for range 2 {
				ask()
			}
			if n := g.commands.Load(); n != 3+2 {
				t.Errorf("%s without %s: %d commands, want 5", way, without, n)
			}
			b.runner.unbatchables.until = time.Now()
			ask()
			if n := g.commands.Load(); n != 5+3 {
				t.Errorf("%s without %s: %d commands, want 8", way, without, n)
			}
		}
	}
}

// waysToAsk are requests that are remembered each in another place: with their batch,
// under an id of the caller's, and in a slot as those of Wait.
var waysToAsk = map[string]func(*bench) Request{
	"Allow":  func(*bench) Request { return Request{Scope: "p/x"} },
	"Decide": func(*bench) Request { return Request{Scope: "p/x", ID: NewID()} },
	"Wait":   func(b *bench) Request { return Request{Scope: "p/x", ID: NewID(), slot: b.slots.take()} },
}

// Whichever command the server refuses, in the midst of a script too: nobody is granted
// what was not charged, not by asking again either.
func TestRefusedIsNeverGranted(t *testing.T) {
	t.Parallel()
	_, commands := documentedAccess(t)
	commands = append(commands, "+setrange")
	learnMany(t, &Limiter{runner: &runner{rdb: redistest.Client(t)}})
	for way, request := range waysToAsk {
		for _, command := range append(commands, "") {
			free, granted := newBench(t, redistest.Client(t), Config{}, policyOf(t, slowRules...)), int64(1)
			free.decide(Request{Scope: "p/x"})
			less := slices.DeleteFunc(slices.Clone(commands), func(c string) bool { return c == command })
			user := redistest.User(t, []string{free.cfg.Prefix + ":*"}, less...)
			b := (&bench{Limiter: free.Limiter, t: t, rdb: user, now: free.now}).under(slowRules...)
			for round := range int64(5) {
				free.at(round * (sec / 2).Microseconds())
				granted += b.askTwice(request(b), request(b), request(b))
			}
			for _, r := range free.peek().Rules {
				if granted+r.Remaining > 10 {
					t.Errorf("%s without %s: %d were granted of 10 under %s, and %d are left", way, command, granted, r.Rule, r.Remaining)
				}
			}
			if command == "" && granted != 10 {
				t.Errorf("%s: %d were granted of 10 to one who may do all", way, granted)
			}
		}
	}
}

// slowRules have 10 units for a test. The state of the first gets longer with each half second in which it is charged.
var slowRules = []policy.Rule{
	{Name: "s", Algorithm: policy.SlidingWindow, Limit: 10, Per: 60 * sec},
	{Name: "b", Algorithm: policy.TokenBucket, Limit: 10, Per: 40 * sec, Burst: 10},
}

// askTwice asks together, and once more where requests have an id of their own, and returns how many were granted at last.
func (b *bench) askTwice(reqs ...Request) (granted int64) {
	b.t.Helper()
	was := make([]bool, len(reqs))
	for range 2 {
		b.runner.unbatchables.until, b.runner.unbatchables.plans = time.Time{}, nil
		for i, got := range b.tryTogether(reqs...) {
			was[i] = was[i] || got.err == nil && got.Allowed
		}
		if reqs[0].ID == "" {
			break
		}
	}
	for _, one := range was {
		if one {
			granted++
		}
	}
	return granted
}

// A batch that admitted nobody when it was sent again admits nobody when the first
// send arrives at last, after its attempts were decided singly.
func TestLateBatchOfNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Client(t), Config{}, policyOf(t, window10()))
	learn(t, b.Limiter, "p/x")
	learnMany(t, b.Limiter)
	batch := b.batchOf(Request{Scope: "p/x"}, Request{Scope: "p/x", ID: "one"}, Request{Scope: "p/x"})
	m := b.runner.commands(slices.Clone(batch))[0].(*batchCommand)
	first, err := m.MarshalBinary()
	noError(t, err)
	late := slices.Clone(first)
	for again := []command{m}; len(again) > 0; {
		again = b.runner.exchange(t.Context(), again)
	}
	for _, p := range batch {
		if reply, err := p.wait(); err != nil || reply[0] != 1 {
			t.Errorf("answered %v, %v", reply, err)
		}
	}
	cmd := m.command(t.Context())
	cmd.Args()[slices.Index(cmd.Args(), any(m))] = late
	noError(t, b.rdb.Process(t.Context(), cmd))
	if d := b.peek(); m.sends.Load() != 2 || d.Rules[0].Remaining != 7 {
		t.Errorf("%d sends, then the first arrives: %d of 10 are left, and three were granted", m.sends.Load(), d.Rules[0].Remaining)
	}
}
