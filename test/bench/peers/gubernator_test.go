package peers

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// What differs from functional_test.go of gubernator. What it calls a token bucket is a count that begins with
// the first hit and ends a duration later: a sliding window here. Its leaky bucket is our token bucket. It is
// not run beside ours: the figures are those of its tests.
func TestGubernator(t *testing.T) {
	t.Parallel()
	hit := func(want answer) step { return step{kind: take, n: 1, want: want} }
	ten := bucket(10, 9*s, 10)
	run(t, []table{
		{"draining what is left by asking for more", sliding(10, 30*s), []step{
			{kind: look, want: yesOf(10)}, hit(yesOf(9)),
			{kind: take, n: 100, want: noOf(0), ours: &refused, differs: "A cost that can never pass"},
			{kind: take, n: 10, want: noOf(0), ours: but(noOf(9)), differs: "A denial takes nothing"},
			{kind: look, want: yesOf(0), ours: but(yesOf(9)), differs: "A denial takes nothing"},
		}},
		{"the limit of a leaky bucket changes", bucket(100, 9*s, 100), []step{
			hit(yesOf(99)), {kind: change, rule: &ten},
			{kind: take, n: 1, want: yesOf(9), ours: but(yesOf(8)), differs: "A limit that changes"},
			{kind: take, n: 1, want: yesOf(8), ours: but(yesOf(7)), differs: "A limit that changes"},
		}},
		{"nothing is left", sliding(1, s), []step{
			hit(yesOf(0)), {kind: look, want: yesOf(0), ours: but(noOf(0)), differs: "Looking"},
		}},
	}, nil, exactly{})
}

// Negative hits give units back there, also what nobody has taken: of a limit of 2 there may remain 3.
// Here a grant is given back, once, and no more remains than the limit.
func TestGubernatorNegativeHits(t *testing.T) {
	t.Parallel()
	decided(t, "What comes back")
	for name, rule := range map[string]policy.Rule{"count": sliding(2, time.Minute), "leaky bucket": bucket(2, time.Minute, 2)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, []table{{"once", rule, []step{
				{kind: take, n: 1, want: yesOf(1)},
				{kind: cancel, n: 0},
				{kind: look, want: yesOf(2)},
				{kind: cancel, n: 0},
				{kind: look, want: yesOf(3), ours: but(yesOf(2)), differs: "What comes back"},
				{at: ms, kind: take, n: 2, want: yesOf(0)},
				{at: ms, kind: cancel, n: 5},
				{at: ms, kind: look, n: 2, want: yesOf(2)},
			}}}, nil, exactly{})
		})
	}
}

// "GLOBAL" limits there are counted by each peer and made known to the others later, so that a limit of
// 2 may be exceeded meanwhile. Here all processes ask one Redis: what one has taken no other finds.
func TestGubernatorPeers(t *testing.T) {
	t.Parallel()
	decided(t, "Several processes")
	own := newOurs(t, sliding(2, time.Minute))
	rdb := redistest.Client(t)
	rdb.AddHook(own.clock)
	other, err := throttle.New(rdb, own.limiter.Policy(), throttle.Config{StartTolerance: -1})
	must(t, err)
	for i, limiter := range []*throttle.Limiter{own.limiter, other, own.limiter, other} {
		own.clock.Set(began)
		d, err := limiter.Allow(t.Context(), own.scope)
		must(t, err)
		if granted := i < 2; d.Allowed != granted {
			t.Errorf("request %d: granted %v, want %v", i, d.Allowed, granted)
		}
	}
}
