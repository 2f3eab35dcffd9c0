package throttle

import (
	"errors"
	"fmt"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// A server that refuses one command half-way through a script, as an ACL that changes does, leaves
// every waiting task in its line or among those who are out.
func TestRefusedCommandLosesNoPlace(t *testing.T) {
	for name, c := range map[string]struct {
		without string
		do      func(b *bench) error
	}{
		"look": {"hset", func(b *bench) error {
			_, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 2})
			return err
		}},
		"start": {"set", func(b *bench) error {
			_, err := b.Decide(ctx, Request{Scope: "p", Turn: Turn{WaiterID: "0"}})
			return err
		}},
		"late": {"zadd", func(b *bench) error {
			b.pass(4 * sec)
			_, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 2})
			return err
		}},
		"not there": {"zadd", func(b *bench) error {
			_, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", NotFound: []WaiterRef{{Scope: "p", ID: "0"}}})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.NewServer(t).Client(t)
			b := newBench(t, rdb, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: 2, Per: sec}))
			b.decide(Request{Scope: "p", Cost: 2})
			for i := range 5 {
				b.decide(Request{Scope: "p", Turn: Turn{WaiterID: fmt.Sprint(i)}})
			}
			if _, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 1, CheckAll: true}); err != nil {
				t.Fatal(err)
			}
			b.pass(sec)
			if name != "look" {
				if w, err := b.Waitlist().Dispatch(ctx, DispatchRequest{Provider: "p", Max: 2}); err != nil || len(w.Granted) != 2 {
					t.Fatalf("%+v, %v", w, err)
				}
			}
			acl := func(rule string) {
				noError(t, rdb.Do(ctx, "ACL", "SETUSER", "default", rule+c.without).Err())
			}
			acl("-")
			err := c.do(b)
			acl("+")
			if !errors.Is(err, ErrUnavailable) {
				t.Fatalf("not refused: %v", err)
			}
			key := b.provider("p")
			for i := range 5 {
				in := rdb.ZScore(ctx, key+"!queue", ":"+fmt.Sprint(i)).Err() == nil
				out := rdb.HExists(ctx, flightKey(key), "\x00:"+fmt.Sprint(i)).Val()
				if !in && !out {
					t.Errorf("%d is in neither", i)
				}
			}
		})
	}
}
