package throttle

import (
	"errors"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

func window10() policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
}

func runs10() policy.Rule { return policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 10} }

// "Safe to repeat: go-redis may send a script twice after a lost reply; one attempt id is charged once." (trap L33) When every reply
// is lost nobody knows what was decided: that is an outage, and the same attempt asked again is charged once.
func TestLostReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	for _, losses := range []int32{1, 2, 3, 1 << 30} { // go-redis sends it up to four times
		steady := newBench(t, redistest.Client(t), Config{}, policyOf(t, window10(), runs10()))
		w := &cable{}
		l := steady.beside(clientOf(t, w.through(optionsOf(t))), steady.Policy())
		w.lose.Store(losses)
		req := Request{Scope: "p/x", Cost: 2}
		if losses > 3 {
			req.ID = "once"
			if d, err := l.Decide(t.Context(), req); !errors.Is(err, ErrUnavailable) || d.Allowed {
				t.Fatalf("got %+v, %v", d, err)
			}
			w.lose.Store(0)
		}
		d, err := l.Decide(t.Context(), req)
		if err != nil || !d.Allowed || w.lose.Load() > 0 {
			t.Fatalf("after %d lost replies, and %d not lost: %+v, %v", losses, w.lose.Load(), d, err)
		}
		if left := leftOf(steady.decide(Request{Scope: "p/x"})); left != "r 7, c 8" {
			t.Errorf("after %d lost replies %s are left", losses, left)
		}
	}
}

// "NOSCRIPT fallback, in pipelines too": a server that lost its scripts gets them
// again, from lone callers and from batches (trap L30).
func TestScriptsComeBack(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	l := newLimiter(t, server.Client(t), policyOf(t, window10(), runs10()), Config{})
	flush := func() {
		t.Helper()
		noError(t, server.Client(t).ScriptFlush(t.Context()).Err())
	}
	for range 2 {
		flush()
		d := grantedBy(t, l)
		flush()
		noError(t, l.Refund(t.Context(), d.Grant))
		flush()
		_, err := l.Peek(t.Context(), Request{Scope: "p/x"})
		noError(t, err)
	}
	together(t, l, 5, flush, func(int) error { return allowed(l, "p/x") })
}

// An attempt id is one of its scope: asked for in two scopes of a provider it is charged in
// both, and each is known when it is sent again, whichever way it was asked for.
func TestSameIDInTwoScopes(t *testing.T) {
	t.Parallel()
	ways := map[string]func(b *bench, reqs ...Request) []Decision{
		"alone": func(b *bench, reqs ...Request) (all []Decision) {
			for _, req := range reqs {
				all = append(all, b.decide(req))
			}
			return all
		},
		"together": (*bench).askTogether,
	}
	rules := map[string][]policy.Rule{
		"window":   {window10()},
		"bucket":   {{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Hour, Burst: 10}},
		"places":   {runs10()},
		"together": {window10(), {Name: "d", Algorithm: policy.FixedWindow, Limit: 10, Per: time.Hour}},
	}
	for way, ask := range ways {
		for kind, shared := range rules {
			onBothIn(t, way+" "+kind, Config{}, policyOf(t, shared...), func(b *bench) {
				left := func(what string, want int64) {
					b.t.Helper()
					if left := b.peek().Rules[0].Remaining; left != want {
						b.t.Fatalf("%s: %d are left of 10, want %d", what, left, want)
					}
				}
				reqs := []Request{{Scope: "p/a", ID: "mine"}, {Scope: "p/b", ID: "mine"}}
				b.decide(Request{Scope: "p/c", ID: "warm"})
				for range 2 {
					for i, d := range ask(b, reqs...) {
						if !d.Allowed || d.Grant.ID() != "mine" {
							b.t.Fatalf("%s: %+v under %q", reqs[i].Scope, d, d.Grant.ID())
						}
					}
					left("three attempts", 7)
				}
				b.giveBack(b.decide(reqs[0]).Grant)
				left("one was given back", 8)
				b.giveBack(b.decide(reqs[1]).Grant)
				left("both were given back", 9)
			})
		}
	}
}
