package throttle

import (
	"errors"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// lossy is a limiter whose network loses replies, with go-redis's default number
// of retries, and another whose network does not, over the same keys.
func lossy(t *testing.T, cfg Config, rules ...policy.Rule) (*cable, *Limiter, *bench) {
	t.Helper()
	policy := policyOf(t, rules...)
	steady := newBench(t, redistest.Client(t), cfg, policy)
	w := &cable{}
	return w, steady.beside(clientOf(t, w.through(optionsOf(t))), policy).Limiter, steady
}

func window10() policy.Rule {
	return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 10, Per: sec}
}

func runs10() policy.Rule { return policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 10} }

// "Safe to repeat: go-redis may send a script twice after a lost reply; one attempt id is charged once." (trap L33)
func TestLostReplyIsChargedOnce(t *testing.T) {
	t.Parallel()
	for _, losses := range []int32{1, 2, 3} {
		w, l, steady := lossy(t, Config{}, window10(), runs10())
		w.lose.Store(losses)
		d, err := l.Decide(t.Context(), Request{Scope: "p/x", Cost: 2})
		if err != nil || !d.Allowed {
			t.Fatalf("after %d lost replies: %+v, %v", losses, d, err)
		}
		if w.lose.Load() > 0 {
			t.Fatalf("no reply was lost")
		}
		left := steady.decide(Request{Scope: "p/x"})
		if left.Rules[0].Remaining != 7 || left.Rules[1].Remaining != 8 {
			t.Errorf("after %d lost replies %d units and %d places are left, want 7 and 8",
				losses, left.Rules[0].Remaining, left.Rules[1].Remaining)
		}
	}
}

// When every reply is lost nobody knows what was decided: that is an outage, and
// the same attempt asked again is charged once.
func TestAllRepliesLost(t *testing.T) {
	t.Parallel()
	w, l, steady := lossy(t, Config{}, window10())
	w.lose.Store(1 << 30)
	req := Request{Scope: "p/x", ID: "once"}
	if d, err := l.Decide(t.Context(), req); !errors.Is(err, ErrUnavailable) || d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	w.lose.Store(0)
	if d, err := l.Decide(t.Context(), req); err != nil || !d.Allowed {
		t.Fatalf("got %+v, %v", d, err)
	}
	if left := steady.decide(Request{Scope: "p/x"}).Rules[0].Remaining; left != 8 {
		t.Errorf("%d units are left, want 8", left)
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
		d, err := l.Allow(t.Context(), "p/x")
		if err != nil || !d.Allowed {
			t.Fatalf("alone: %+v, %v", d, err)
		}
		flush()
		noError(t, l.Refund(t.Context(), d.Grant))
		flush()
		if _, err := l.Peek(t.Context(), Request{Scope: "p/x"}); err != nil {
			t.Fatal(err)
		}
	}
	together(t, l, 5, flush, func(int) error { return allowed(l, "p/x") })
}
