package peers

import (
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// xRate is golang.org/x/time/rate, at the times of the steps.
type xRate struct {
	limiter  *rate.Limiter
	reserved map[int]*rate.Reservation
	rule     policy.Rule
}

func newXRate(t *testing.T, rule policy.Rule) limiter {
	t.Helper()
	perSecond := rate.Limit(float64(rule.Limit) / rule.Per.Seconds())
	return &xRate{rate.NewLimiter(perSecond, int(rule.Burst)), map[int]*rate.Reservation{}, rule}
}

func (x *xRate) do(_ *testing.T, i int, st step) answer {
	now := began.Add(st.at)
	switch st.kind {
	case cancel:
		x.reserved[int(st.n)].CancelAt(now)
		return answer{}
	case change:
		x.limiter.SetLimitAt(now, rate.Limit(float64(st.rule.Limit)/st.rule.Per.Seconds()))
		x.limiter.SetBurstAt(now, int(st.rule.Burst))
		return answer{}
	case look:
		return answer{granted: x.limiter.TokensAt(now) >= float64(max(1, st.n)), remaining: int64(x.limiter.TokensAt(now))}
	}
	if st.ahead == 0 {
		granted := x.limiter.AllowN(now, int(st.n))
		return answer{granted: granted, remaining: int64(max(0, x.limiter.TokensAt(now)))}
	}
	r := x.limiter.ReserveN(now, int(st.n))
	if !r.OK() || r.DelayFrom(now) > st.ahead {
		r.CancelAt(now)
		return answer{}
	}
	x.reserved[i] = r
	return answer{granted: true, wait: r.DelayFrom(now)}
}

// d is the unit of x/time/rate's own tests: the time of one of ten a second.
const d = 100 * ms

// rate_test.go of golang.org/x/time/rate: Allow, with what is left after it.
func TestXTimeRate(t *testing.T) {
	t.Parallel()
	ask := func(at time.Duration, n int64, want answer) step { return step{at: at, kind: take, n: n, want: want} }
	tooMuch := func(at time.Duration, n, left int64) step {
		return step{at: at, kind: take, n: n, want: noOf(left), ours: &refused, differs: "A cost that can never pass"}
	}
	run(t, []table{
		{"ten a second, one at a time", bucket(10, s, 1), []step{
			ask(0, 1, yesOf(0)), ask(0, 1, noOf(0)), ask(0, 1, noOf(0)),
			ask(d, 1, yesOf(0)), ask(d, 1, noOf(0)), ask(d, 1, noOf(0)),
			tooMuch(2*d, 2, 1), ask(2*d, 1, yesOf(0)), ask(2*d, 1, noOf(0)),
		}},
		{"ten a second with a burst of three", bucket(10, s, 3), []step{
			ask(0, 2, yesOf(1)), ask(0, 2, noOf(1)), ask(0, 1, yesOf(0)), ask(0, 1, noOf(0)),
			tooMuch(d, 4, 1),
			ask(2*d, 1, yesOf(1)), ask(3*d, 1, yesOf(1)), ask(4*d, 1, yesOf(1)), ask(4*d, 1, yesOf(0)),
			ask(4*d, 1, noOf(0)), ask(4*d, 1, noOf(0)),
			ask(9*d, 3, yesOf(0)), {at: 9 * d, kind: look, want: noOf(0)},
		}},
		{"a clock that goes back", bucket(10, s, 3), []step{
			ask(d, 1, yesOf(2)),
			{kind: take, n: 1, want: yesOf(1)},
			{kind: take, n: 1, want: yesOf(0)},
			ask(0, 1, noOf(0)), ask(0, 1, noOf(0)),
			ask(d, 1, yesOf(0)), ask(d, 1, noOf(0)), ask(d, 1, noOf(0)),
			ask(2*d, 1, yesOf(0)), ask(2*d, 1, noOf(0)), ask(2*d, 1, noOf(0)),
		}},
	}, newXRate, exactly{})
}

// rate_test.go again: reservations are starts that are granted ahead, and to cancel one is to give it back.
func TestXTimeRateReservations(t *testing.T) {
	t.Parallel()
	book := func(on time.Duration, n int64, start time.Duration) step {
		return step{at: on, kind: take, n: n, ahead: time.Minute, want: at(start - on)}
	}
	instead := func(st step, wait time.Duration, why string) step {
		st.ours, st.differs = but(at(wait)), why
		return st
	}
	undo := func(on time.Duration, which int64) step { return step{at: on, kind: cancel, n: which} }
	two := bucket(10, s, 2)
	five := bucket(5, s, 2)
	fiveByFour := bucket(5, s, 4)
	run(t, []table{
		{"a reservation starts when its units are there", two, []step{
			book(0, 2, 0), book(0, 2, 2*d), book(3*d, 2, 4*d),
		}},
		{"with others in between", two, []step{
			{kind: take, n: 3, ahead: time.Minute, want: denied, ours: &refused, differs: "A cost that can never pass"},
			book(0, 2, 0), {at: d, kind: take, n: 2, want: denied}, book(d, 2, 2*d),
			{at: d, kind: take, n: 1, want: denied}, {at: 3 * d, kind: take, n: 1, want: answer{granted: true, withoutTimes: true}},
		}},
		{"none is later than one may be", two, []step{
			{kind: take, n: 2, ahead: d, want: at(0)}, {kind: take, n: 1, ahead: d, want: at(d)}, {kind: take, n: 1, ahead: d, want: denied},
		}},
		{"the last one is cancelled", two, []step{book(0, 2, 0), book(0, 2, 2*d), undo(d, 1), book(d, 2, 2*d)}},
		{"one is cancelled too late", two, []step{book(0, 2, 0), book(0, 2, 2*d), undo(3*d, 1), instead(book(3*d, 2, 4*d), 0, "What comes back")}},
		{"one is cancelled behind which others are", two, []step{
			book(0, 2, 0), book(0, 1, d), book(0, 1, 2*d), undo(0, 1), instead(book(0, 1, 3*d), 2*d, "What comes back"),
		}},
		{"one unit comes back", two, []step{book(0, 2, 0), book(0, 2, 2*d), book(0, 1, 3*d), undo(2*d, 1), book(2*d, 2, 4*d)}},
		{"several are cancelled", bucket(10, s, 4), []step{
			book(0, 4, 0), book(0, 3, 3*d), book(0, 1, 4*d), book(0, 1, 5*d), undo(d, 3), undo(d, 1), instead(book(d, 3, 5*d), 5*d, "What comes back"),
		}},
		{"the limit is raised", five, []step{
			book(0, 2, 0), book(0, 2, 4*d), {at: 2 * d, kind: change, rule: &two}, instead(book(2*d, 1, 4*d), 3*d, "A limit that changes"),
		}},
		{"the burst is raised", five, []step{
			book(0, 2, 0), book(0, 2, 4*d), {at: 3 * d, kind: change, rule: &fiveByFour}, instead(book(3*d, 4, 12*d), 5*d, "A limit that changes"),
		}},
		{"the limit is raised, and one cancelled", five, []step{
			book(0, 2, 0), book(0, 2, 4*d), {at: 2 * d, kind: change, rule: &two}, undo(2*d, 1), instead(book(2*d, 2, 3*d), 2*d, "A limit that changes"),
		}},
	}, newXRate, exactly{times: ms})
}

// rate_test.go again: a limit of 0. There the burst can be taken once; here it suspends, and all wait until it is raised.
func TestXTimeRateZero(t *testing.T) {
	t.Parallel()
	decided(t, "A limit of zero")
	ten := bucket(10, s, 1)
	x, own := newXRate(t, bucket(0, s, 1)), newOurs(t, bucket(0, s, 1))
	first := step{kind: take, n: 1}
	if !x.do(t, 0, first).granted || x.do(t, 0, first).granted {
		t.Error("the peer has changed, and docs/peers.md with it")
	}
	if got := own.do(t, 0, first); got.granted || got.retry != throttle.Never {
		t.Errorf("a suspended rule answers %+v", got)
	}
	own.do(t, 0, step{kind: change, rule: &ten})
	if got := own.do(t, 0, first); !got.granted {
		t.Errorf("raised, it answers %+v", got)
	}
}
