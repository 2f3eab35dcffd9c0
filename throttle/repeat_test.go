package throttle

import (
	"errors"
	"testing"

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
