package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/wallclock"
)

// settled settles, and says what came back, was charged and is over, by rule.
func (b *bench) settled(g Grant, costs policy.Costs) string {
	b.t.Helper()
	s, err := b.Settle(ctx, g, costs)
	noError(b.t, err)
	var rules []string
	for _, r := range s.Rules {
		rules = append(rules, fmt.Sprintf("%s %d %d %d", r.Rule, r.Back, r.Debt, r.Over))
		if over := r.Over > 0; r.Spent != costs[r.Unit] || over && !s.Over() {
			b.t.Errorf("%+v of %v", r, costs)
		}
	}
	return strings.Join(rules, ", ")
}

func (b *bench) left() string {
	b.t.Helper()
	d, err := b.Peek(ctx, Request{Scope: "p/x"})
	noError(b.t, err)
	return leftOf(d)
}

// The model of settling: what each rule was charged, by moment.
type settleModel struct {
	rule    policy.Rule
	charges map[int][]part // by attempt
	lost    []part         // spent by nobody, and did not come back
}

type part struct {
	at, units int64
	fixed     bool // it does not come back
	debt      bool
	gone      bool // from where it was charged, long ago
}

// holds returns what counts at now.
func (m *settleModel) holds(now int64) (units int64) {
	for _, p := range m.all() {
		if m.counts(p.at, now) {
			units += p.units
		}
	}
	return units
}

func (m *settleModel) all() []part {
	all := slices.Clone(m.lost)
	for _, parts := range m.charges {
		all = append(all, parts...)
	}
	return slices.DeleteFunc(all, func(p part) bool { return p.gone })
}

func (m *settleModel) counts(at, now int64) bool {
	per := m.rule.Per.Microseconds()
	if m.rule.Algorithm == policy.FixedWindow {
		return at/per == now/per
	}
	return at > now-per
}

// over tells by how much any interval holds more than so many times the burst and what comes
// in it; without debts, those are left out.
func (m *settleModel) over(times int64, debts bool) int64 {
	all := slices.DeleteFunc(m.all(), func(p part) bool { return p.debt && !debts })
	per, worst := m.rule.Per.Microseconds(), int64(0)
	for _, from := range all {
		for _, to := range all {
			var units int64
			for _, p := range all {
				if p.at >= from.at && p.at <= to.at {
					units += p.units
				}
			}
			if to.at >= from.at {
				room := times*m.rule.Burst*per + (to.at-from.at)*m.rule.Limit
				worst = max(worst, units*per-room)
			}
		}
	}
	return worst / per
}

// settle makes an attempt what it has spent, and returns how much must come back, how much may, and the debt.
func (m *settleModel) settle(attempt int, spent, over, now int64) (must, may, debt, stays int64) {
	parts := m.charges[attempt]
	more := spent - over
	for _, p := range parts {
		more -= p.units
	}
	if more > 0 {
		debt = more
		if m.rule.Algorithm != policy.TokenBucket {
			debt = min(more, max(0, 2*m.rule.Capacity()-m.holds(now)))
		}
		return 0, 0, debt, over + more - debt
	}
	less := -more
	stays = max(0, over-less)
	less -= over - stays
	for less > 0 && len(parts) > 0 {
		last := &parts[len(parts)-1]
		units := min(less, last.units)
		less, last.units = less-units, last.units-units
		switch {
		case last.gone:
		case last.fixed:
			m.lost = append(m.lost, part{at: last.at, units: units, debt: last.debt})
		default:
			may += units
			if m.counts(last.at, now) {
				must += units
			}
		}
		if last.units == 0 {
			parts = parts[:len(parts)-1]
		}
	}
	m.charges[attempt] = parts
	return must, may, 0, stays
}

// forget has all that an attempt was charged stand nowhere.
func (m *settleModel) forget(attempt int) {
	var units int64
	for _, p := range m.charges[attempt] {
		if units += p.units; !p.gone {
			m.lost = append(m.lost, p)
		}
	}
	if units > 0 {
		m.charges[attempt] = []part{{units: units, gone: true}}
	}
}

func (m *settleModel) charge(attempt int, units, now int64, debt bool) {
	if units == 0 {
		return
	}
	parts := append(m.charges[attempt], part{at: now, units: units, debt: debt})
	fixed := 0
	for _, p := range parts {
		if p.fixed {
			fixed++
		}
	}
	switch {
	case fixed > 0 && len(parts)-fixed+1 > 8:
		parts[1+fixed].fixed = true
	case fixed == 0 && len(parts) > 8:
		parts[1].fixed, parts[2].fixed = true, true
	}
	m.charges[attempt] = parts
}

// settleRules are those of the histories, over two units.
var settleRules = []policy.Rule{
	{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 7, Per: sec},
	{Name: "words", Algorithm: policy.SlidingWindow, Limit: 100, Per: 3 * sec, Unit: "tokens"},
	{Name: "fixed", Algorithm: policy.FixedWindow, Limit: 150, Per: 2 * sec, Unit: "tokens"},
	{Name: "bucket", Algorithm: policy.TokenBucket, Limit: 50, Per: sec, Burst: 120, Unit: "tokens"},
}

// settleHistory runs decisions, settlements and gives back at random moments and holds them
// against the model; it returns what it finds wrong.
func settleHistory(rdb redis.UniversalClient, prefix string, seed uint64, steps int) (found string) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			found = string(f)
		default:
			panic(f)
		}
	}()
	r := drawing{rand.New(rand.NewPCG(seed, 3))}
	rules := settleRules[:2+r.IntN(3)]
	if r.IntN(4) == 0 {
		rules = settleRules[3:]
	}
	pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
	must(err)
	l, err := New(rdb, pol, Config{Prefix: prefix, StartTolerance: -1, Unbatched: true})
	must(err)
	now := int64(epoch)
	l.clock = func() string { return fmt.Sprint(now) }
	models, overs := make([]*settleModel, len(rules)), make([]map[int]int64, len(rules))
	for i, rule := range rules {
		models[i], overs[i] = &settleModel{rule: rule, charges: map[int][]part{}}, map[int]int64{}
	}
	var grants []Grant
	gone, lost := map[int]bool{}, 0 // those before that are as good as gone
	for range steps {
		if r.IntN(40) == 0 { // longer than anything is recorded
			now += 300_000_000
			for of := lost; of < len(grants); of++ {
				rdb.Del(ctx, grants[of].plan.settled(grants[of].id))
				for _, m := range models {
					m.forget(of)
				}
			}
			for of := range gone {
				lost = max(lost, of+1)
			}
		}
		now += r.one(0, 1, r.Int64N(100_000), r.Int64N(1_000_000), r.Int64N(4_000_000))
		switch n := r.IntN(10); {
		case n < 4:
			costs := policy.Costs{"requests": r.one(0, 1, 1, 2), "tokens": r.one(1, 10, 40, 90)}
			d, err := l.Decide(ctx, Request{Scope: "p", Costs: costs})
			must(err)
			fits := true
			for i, m := range models {
				cost := costs.Of(unitOf(rules[i]))
				fits = fits && (m.rule.Algorithm == policy.TokenBucket || cost == 0 || m.holds(now)+cost <= m.rule.Limit)
			}
			if d.Allowed && !fits || !d.Allowed && fits && rules[len(rules)-1].Algorithm != policy.TokenBucket {
				fail("allowed is %t, and it fits: %t", d.Allowed, fits)
			}
			if d.Allowed {
				for i, m := range models {
					m.charge(len(grants), costs.Of(unitOf(rules[i])), now, false)
				}
				grants = append(grants, d.Grant)
			}
		case n < 9 && len(grants) > lost:
			of := len(grants) - 1 - r.IntN(min(len(grants)-lost, 5))
			costs := policy.Costs{"tokens": r.one(0, 5, 30, 95, 200, 700)}
			if r.IntN(3) == 0 {
				costs["requests"] = r.one(0, 1, 3, 30)
			}
			for range r.one(1, 1, 1, 12) { // or an answer that streams
				s, err := l.Settle(ctx, grants[of], costs)
				must(err)
				if gone[of] && len(s.Rules) > 0 {
					fail("settled after it was given back: %v", s)
				}
				for _, said := range s.Rules {
					for i, m := range models {
						if rules[i].Name == said.Rule {
							overs[i][of] = m.held(of, said, overs[i][of], now)
						}
					}
				}
				costs["tokens"] = max(0, costs["tokens"]+r.one(1, 1, 2, -1))
				now += r.Int64N(20_000)
			}
		case len(grants) > lost:
			of := lost + r.IntN(len(grants)-lost)
			must(l.Refund(ctx, grants[of]))
			gone[of] = true
			for _, m := range models {
				m.settle(of, 0, 0, now)
			}
		}
		d, err := l.Peek(ctx, Request{Scope: "p"})
		must(err)
		for i, m := range models {
			m.sound(d.Rules[i], now)
		}
	}
	return ""
}

// held holds a settlement against the model, and returns what is over by now.
func (m *settleModel) held(of int, said SettledRule, over, now int64) int64 {
	must, may, debt, stays := m.settle(of, said.Spent, over, now)
	bucket := m.rule.Algorithm == policy.TokenBucket
	switch {
	case bucket && (said.Back > may || said.Debt+said.Over-over > debt && debt > 0):
		fail("%s: %+v; the model: %d may come back, a debt of %d", m.rule.Name, said, may, debt)
	case !bucket && (said.Back < must || said.Back > may || said.Debt != debt || said.Over != stays):
		fail("%s: %+v; the model: %d to %d come back, a debt of %d, %d over", m.rule.Name, said, must, may, debt, stays)
	}
	m.charge(of, said.Debt, now, true)
	return said.Over
}

// sound holds what is left, and the bound, against the model.
func (m *settleModel) sound(r RuleState, now int64) {
	if m.rule.Algorithm == policy.TokenBucket {
		if over := m.over(2, true); over > 0 {
			fail("bucket: %d units more than two bursts and the rate", over)
		}
		if over := m.over(1, false); over > 0 {
			fail("bucket: %d units more than it admits, debts left out", over)
		}
		return
	}
	holds := m.holds(now)
	if left := max(0, m.rule.Limit-holds); r.Remaining != left || holds > 2*m.rule.Limit {
		fail("%s says %d are left, and the model %d of %d", m.rule.Name, r.Remaining, left, holds)
	}
}

// Decisions, settlements and gives back at random moments: less comes back exactly under
// windows, more is charged as far as two capacities go, and no interval holds more than that.
func TestSettleHistories(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": redistest.Client(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			histories := map[string]int{"redis": 60, "miniredis": 6}[name]
			if testing.Short() {
				histories /= 3
			}
			first := historySeed(t)
			for n := range uint64(histories) {
				if found := settleHistory(rdb, fmt.Sprintf("%s%d", redistest.Prefix(t), n), first+n, 80); found != "" {
					t.Fatalf("%s\nHISTORY_SEED=%d", found, first+n)
				}
			}
		})
	}
}

// "A refused call does not count against calendars and windows longer than an hour": once given back, and under no other rule;
// and everywhere with `counts`.
func TestSettleRefused(t *testing.T) {
	t.Parallel()
	day := wallclock.MustParse("0 0 * * *", "UTC")
	rules := []policy.Rule{
		{Name: "day", Algorithm: policy.Calendar, Limit: 10, Resets: day}, {Name: "month", Algorithm: policy.SlidingWindow, Limit: 10, Per: 720 * time.Hour},
		{Name: "hours", Algorithm: policy.FixedWindow, Limit: 10, Per: 2 * time.Hour}, {Name: "tokens", Algorithm: policy.FixedWindow, Limit: 10, Per: 24 * time.Hour, Unit: "tokens"},
		{Name: "hour", Algorithm: policy.SlidingWindow, Limit: 10, Per: time.Hour}, {Name: "bucket", Algorithm: policy.TokenBucket, Limit: 10, Per: 24 * time.Hour, Burst: 10},
	}
	for name, refusals := range map[string]policy.Refusals{"back": {}, "counts": {Count: true}} {
		p := limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: rules, Answers: policy.AnswersHeed, Refusals: refusals}})
		onBothIn(t, name, Config{}, p, func(b *bench) {
			costs := policy.Costs{policy.Requests: 1, "tokens": 3}
			d := b.decide(Request{Scope: "p", Costs: costs})
			for range 2 {
				if _, err := b.SettleRefused(ctx, d.Grant); err != nil {
					b.t.Fatal(err)
				}
			}
			state, err := b.Peek(ctx, Request{Scope: "p", Costs: costs})
			noError(b.t, err)
			for rule, want := range map[string]int64{"day": 10, "month": 10, "hours": 10, "tokens": 10, "hour": 9, "bucket": 9} {
				if refusals.Count {
					want = map[bool]int64{true: 7, false: 9}[rule == "tokens"]
				}
				if r, _ := state.Rule("", rule); r.Remaining != want {
					b.t.Errorf("%s: %d left, want %d", rule, r.Remaining, want)
				}
			}
		})
	}
}

// A process that only settles learns the server's time from the replies: its own clock may be minutes behind, in another period of a
// calendar.
func TestSettleUnderAnotherClock(t *testing.T) {
	t.Parallel()
	p := limitsOf(t, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "minute", Algorithm: policy.Calendar, Limit: 10, Resets: wallclock.MustParse("* * * * *", "UTC"), Unit: "tokens"},
	}}})
	m, rdb := redistest.Miniredis(t)
	m.SetTime(time.Now().Add(5 * time.Minute))
	cfg := Config{Prefix: redistest.Prefix(t), Timeout: bound}
	asks, settles := newLimiter(t, rdb, p, cfg), newLimiter(t, rdb, p, cfg)
	d, err := asks.Decide(t.Context(), Request{Scope: "p", Costs: policy.Costs{"tokens": 3}})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := settles.Settle(t.Context(), d.Grant, policy.Costs{"tokens": 1}); err != nil {
		t.Fatal(err)
	}
	if state, err := asks.Peek(t.Context(), Request{Scope: "p", Costs: policy.Costs{"tokens": 1}}); err != nil || state.Rules[0].Remaining != 9 {
		t.Errorf("%+v, %v", state, err)
	}
}
