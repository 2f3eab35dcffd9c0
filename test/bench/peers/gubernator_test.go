package peers

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// functional_test.go of gubernator. What it calls a token bucket is a count that begins with the first
// hit and ends a duration later: a sliding window here. Its leaky bucket is our token bucket. It is not
// run beside ours: the figures are those of its tests.
func TestGubernator(t *testing.T) {
	t.Parallel()
	hit := func(at time.Duration, n int64, want answer) step { return step{at: at, kind: take, n: n, want: want} }
	see := func(at time.Duration, left int64) step { return step{at: at, kind: look, want: yesOf(left)} }
	none := func(at time.Duration) step {
		return step{at: at, kind: look, want: yesOf(0), ours: but(noOf(0)), differs: "Looking"}
	}
	two, ten, many := sliding(10, 9*s), sliding(100, 9*s), sliding(200, 9*s)
	tenB := bucket(10, 9*s, 10)
	run(t, []table{
		{"over the limit", sliding(2, 9*s), []step{hit(0, 1, yesOf(1)), hit(0, 1, yesOf(0)), hit(0, 1, noOf(0))}},
		{"whole again after its time", sliding(2, 5*ms), []step{hit(0, 1, yesOf(1)), hit(0, 1, yesOf(0)), hit(100*ms, 1, yesOf(1))}},
		{"a minute of the clock", calendar(60, "* * * * *"), []step{
			hit(0, 1, yesOf(59)), hit(0, 1, yesOf(58)), hit(0, 58, yesOf(0)), hit(0, 1, noOf(0)), see(61*s, 60),
		}},
		{"more than is left takes nothing", sliding(2000, s), []step{
			hit(0, 1000, yesOf(1000)), hit(0, 1500, noOf(1000)), hit(0, 500, yesOf(500)), hit(0, 400, yesOf(100)),
			hit(0, 100, yesOf(0)), hit(0, 1, noOf(0)),
		}},
		{"more than is left takes nothing of a leaky bucket", bucket(2000, s, 2000), []step{
			hit(0, 1000, yesOf(1000)), hit(0, 1500, noOf(1000)), hit(0, 500, yesOf(500)), hit(0, 400, yesOf(100)),
			hit(0, 100, yesOf(0)), hit(0, 1, noOf(0)),
		}},
		{"draining what is left by asking for more", sliding(10, 30*s), []step{
			see(0, 10), hit(0, 1, yesOf(9)),
			{kind: take, n: 100, want: noOf(0), ours: &refused, differs: "A cost that can never pass"},
			{kind: take, n: 10, want: noOf(0), ours: but(noOf(9)), differs: "A denial takes nothing"},
			{kind: look, want: yesOf(0), ours: but(yesOf(9)), differs: "A denial takes nothing"},
		}},
		{"a leaky bucket", bucket(10, 30*s, 10), []step{
			hit(0, 1, yes(9, 3*s)), hit(s, 1, yes(8, 5*s)), hit(2*s, 1, yes(7, 7*s)), see(3500*ms, 8), see(6500*ms, 9),
			hit(6500*ms, 9, yesOf(0)), hit(6500*ms, 1, noOf(0)), see(9500*ms, 1), see(69500*ms, 10),
			hit(129500*ms, 10, yesOf(0)), hit(158500*ms, 9, yesOf(0)), hit(161500*ms, 1, yesOf(0)),
		}},
		{"a leaky bucket with a burst", bucket(10, 30*s, 20), []step{
			hit(0, 1, yesOf(19)), hit(s, 1, yesOf(18)), hit(2*s, 1, yesOf(17)), see(3500*ms, 18), see(6500*ms, 19),
			hit(6500*ms, 19, yesOf(0)), hit(6500*ms, 1, noOf(0)), see(9500*ms, 1), see(69500*ms, 20),
		}},
		{"a leaky bucket of a minute", bucket(60, time.Minute, 60), []step{
			hit(0, 1, yesOf(59)), hit(500*ms, 1, yesOf(58)), hit(1700*ms, 1, yesOf(58)),
		}},
		{"a rate of half a millisecond", bucket(2000, s, 2000), []step{hit(0, 1, yesOf(1999)), hit(0, 100, yesOf(1899))}},
		{"the limit changes", ten, []step{
			hit(0, 1, yesOf(99)), hit(0, 1, yesOf(98)), {kind: change, rule: &two}, hit(0, 1, yesOf(7)), hit(0, 1, yesOf(6)),
			{kind: change, rule: &many}, hit(0, 1, yesOf(195)),
		}},
		{"the limit of a leaky bucket changes", bucket(100, 9*s, 100), []step{
			hit(0, 1, yesOf(99)), {kind: change, rule: &tenB},
			{kind: take, n: 1, want: yesOf(9), ours: but(yesOf(8)), differs: "A limit that changes"},
			{kind: take, n: 1, want: yesOf(8), ours: but(yesOf(7)), differs: "A limit that changes"},
		}},
		{"what was spent is forgotten", ten, []step{
			hit(0, 1, yesOf(99)), hit(0, 1, yesOf(98)), {kind: reset}, see(0, 100), hit(0, 1, yesOf(99)),
		}},
		{"nothing is left", sliding(1, s), []step{hit(0, 1, yesOf(0)), none(0)}},
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
	if err != nil {
		t.Fatal(err)
	}
	for i, limiter := range []*throttle.Limiter{own.limiter, other, own.limiter, other} {
		own.clock.Set(began)
		d, err := limiter.Allow(t.Context(), own.scope)
		if err != nil {
			t.Fatal(err)
		}
		if granted := i < 2; d.Allowed != granted {
			t.Errorf("request %d: granted %v, want %v", i, d.Allowed, granted)
		}
	}
}
