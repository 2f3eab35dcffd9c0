package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// part is units that were charged for a moment.
type part struct{ at, units int64 }

// settleModel is what one rule was charged.
type settleModel struct {
	rule    policy.Rule
	charges []part
	grants  []settledGrant
}

// settledGrant is what a grant is charged under a rule. Of its debts only the last can come back: that is all that is known.
type settledGrant struct {
	grant, last part
	debt, over  int64
	known       bool // where its units are
}

func (m *settleModel) counts(at, now int64) bool {
	per := m.rule.Per.Microseconds()
	if m.rule.Algorithm == policy.FixedWindow {
		return at/per == now/per
	}
	return at > now-per
}

func (m *settleModel) holds(now int64) (units int64) {
	for _, p := range m.charges {
		if m.counts(p.at, now) {
			units += p.units
		}
	}
	return units
}

// over tells by how much any interval holds more than twice the burst and what comes in it.
func (m *settleModel) over() int64 {
	per, worst := m.rule.Per.Microseconds(), int64(0)
	for _, from := range m.charges {
		for _, to := range m.charges {
			units := int64(0)
			for _, p := range m.charges {
				if p.at >= from.at && p.at <= to.at {
					units += p.units
				}
			}
			if to.at >= from.at {
				worst = max(worst, units*per-2*m.rule.Burst*per-(to.at-from.at)*m.rule.Limit)
			}
		}
	}
	return worst / per
}

// charge notes units for a moment. In a fixed window it does not matter for which.
func (m *settleModel) charge(at, units int64) part {
	if m.rule.Algorithm == policy.FixedWindow {
		at -= at % m.rule.Per.Microseconds()
	}
	m.charges = append(m.charges, part{at, units})
	return part{at, units}
}

// take has units come back that were charged for a moment, and returns how many of them counted.
func (m *settleModel) take(from *part, units, now int64) int64 {
	units = min(units, from.units)
	from.units -= units
	m.charges = append(m.charges, part{from.at, -units})
	if !m.counts(from.at, now) {
		return 0
	}
	return units
}

// settle makes a grant what it has spent, and returns what comes back and is charged.
func (m *settleModel) settle(of int, spent, now int64) (back, debt int64) {
	g := &m.grants[of]
	more := spent - g.over - g.debt - g.grant.units
	if more > 0 {
		debt = max(0, min(more, 2*m.rule.Capacity()-m.holds(now)))
		if g.over += more - debt; debt > 0 {
			last := m.charge(now, debt)
			if g.debt += debt; last.at == g.last.at {
				last.units += g.last.units
			}
			g.last = last
		}
		return 0, debt
	}
	less := -more
	free := min(less, g.over)
	g.over, less = g.over-free, less-free
	debts := min(less, g.debt)
	back = m.take(&g.last, debts, now)
	g.debt -= debts
	units := min(less-debts, g.grant.units)
	if g.known {
		return back + m.take(&g.grant, units, now), 0
	}
	g.grant.units -= units
	return back, 0
}

// settleRules are those of the histories, over two units.
var settleRules = []policy.Rule{
	{Name: "calls", Algorithm: policy.SlidingWindow, Limit: 7, Per: sec},
	{Name: "words", Algorithm: policy.SlidingWindow, Limit: 100, Per: 3 * sec, Unit: "tokens"},
	{Name: "fixed", Algorithm: policy.FixedWindow, Limit: 150, Per: 2 * sec, Unit: "tokens"},
	{Name: "bucket", Algorithm: policy.TokenBucket, Limit: 50, Per: sec, Burst: 120, Unit: "tokens"},
}

// settleHistory is a limiter and the models of its rules.
type settleHistory struct {
	*bench
	rand   *rand.Rand
	rules  []policy.Rule
	models []*settleModel
	grants []Grant
	gone   map[int]bool
}

func (h *settleHistory) one(of ...int64) int64 { return of[h.rand.IntN(len(of))] }

func (h *settleHistory) decide() {
	h.t.Helper()
	costs := policy.Costs{"requests": h.one(0, 1, 1, 2), "tokens": h.one(1, 10, 40, 90)}
	d := h.bench.decide(Request{Scope: "p/x", Costs: costs})
	now, fits, bucket := h.now.Load(), true, false
	for _, m := range h.models {
		bucket = bucket || m.rule.Algorithm == policy.TokenBucket
		fits = fits && (m.rule.Algorithm == policy.TokenBucket || costs.Of(m.rule.Unit) == 0 || m.holds(now)+costs.Of(m.rule.Unit) <= m.rule.Limit)
	}
	if d.Allowed && !fits || !d.Allowed && fits && !bucket {
		h.t.Fatalf("allowed is %t, and it fits: %t", d.Allowed, fits)
	}
	if !d.Allowed {
		return
	}
	for _, m := range h.models {
		m.grants = append(m.grants, settledGrant{grant: m.charge(now, costs.Of(m.rule.Unit)), known: true})
	}
	h.grants = append(h.grants, d.Grant)
}

func (h *settleHistory) settle(of int, costs policy.Costs) {
	h.t.Helper()
	s, err := h.Settle(ctx, h.grants[of], costs)
	noError(h.t, err)
	if h.gone[of] && len(s.Rules) > 0 {
		h.t.Fatalf("settled after it was given back: %v", s)
	}
	for _, said := range s.Rules {
		m := h.models[slices.IndexFunc(h.models, func(m *settleModel) bool { return m.rule.Name == said.Rule })]
		if m.rule.Algorithm == policy.TokenBucket {
			m.grants[of].grant.units = said.Spent - said.Over
			back := said.Back
			if said.Debt == 0 {
				back++ // it is rounded down
			}
			m.charges = append(m.charges, part{h.now.Load(), said.Debt - back})
			continue
		}
		back, debt := m.settle(of, said.Spent, h.now.Load())
		ended := m.rule.Algorithm == policy.FixedWindow && said.Back > back // of a window before, which counts nowhere: see the check of what is left
		if said.Back != back && !ended || said.Debt != debt || said.Over != m.grants[of].over {
			h.t.Fatalf("%s: %+v; the model: %d back, a debt of %d; %+v", m.rule.Name, said, back, debt, m.grants[of])
		}
	}
}

func (h *settleHistory) giveBack(of int) {
	h.t.Helper()
	h.bench.giveBack(h.grants[of])
	for _, m := range h.models {
		switch {
		case h.gone[of]:
		case m.rule.Algorithm == policy.TokenBucket:
			m.charges = append(m.charges, part{h.now.Load(), -m.grants[of].grant.units})
		default:
			m.settle(of, 0, h.now.Load())
		}
	}
	h.gone[of] = true
}

// forget is Redis after longer than anything is recorded.
func (h *settleHistory) forget() {
	h.pass(5 * time.Minute)
	h.gone = map[int]bool{}
	h.grants = nil
	for _, m := range h.models {
		m.grants = nil
	}
}

func (h *settleHistory) step() {
	h.t.Helper()
	h.pass(us(h.one(0, 1, h.rand.Int64N(100_000), h.rand.Int64N(1_000_000), h.rand.Int64N(4_000_000))))
	n, of := h.rand.IntN(40), 0
	if len(h.grants) > 0 {
		of = len(h.grants) - 1 - h.rand.IntN(min(len(h.grants), 5))
	}
	switch {
	case n == 0:
		h.forget()
	case n < 16 || len(h.grants) == 0:
		h.decide()
	case n < 36:
		costs := policy.Costs{"tokens": h.one(0, 5, 30, 95, 200, 700)}
		if h.rand.IntN(3) == 0 {
			costs["requests"] = h.one(0, 1, 3, 30)
		}
		for range h.one(1, 1, 1, 12) { // or an answer that streams
			h.settle(of, costs)
			costs["tokens"] = max(0, costs["tokens"]+h.one(1, 1, 2, -1))
			h.pass(us(h.rand.Int64N(20_000)))
		}
	default:
		h.giveBack(of)
	}
}

// Decisions, settlements and refunds at random moments: less comes back exactly under windows, more is charged as far as two
// capacities go, and no interval holds more than that.
func TestSettleHistories(t *testing.T) {
	t.Parallel()
	for name, histories := range map[string]int{"redis": 60, "miniredis": 6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			if name == "miniredis" {
				_, rdb = redistest.Miniredis(t)
			}
			if testing.Short() {
				histories /= 3
			}
			for range histories {
				seed := rand.Uint64N(1 << 40)
				t.Log("seed", seed)
				h := &settleHistory{rand: rand.New(rand.NewPCG(seed, 3)), gone: map[int]bool{}}
				if h.rules = settleRules[:2+h.rand.IntN(3)]; h.rand.IntN(4) == 0 {
					h.rules = settleRules[3:]
				}
				for _, rule := range h.rules {
					if rule.Unit == "" {
						rule.Unit = policy.Requests
					}
					h.models = append(h.models, &settleModel{rule: rule})
				}
				h.bench = newBench(t, rdb, Config{Unbatched: true}, policyOf(t, h.rules...))
				for n := range 80 {
					h.step()
					for i, r := range h.peek().Rules {
						m := h.models[i]
						if m.rule.Algorithm == policy.TokenBucket {
							if over := m.over(); over > 0 {
								t.Fatalf("step %d: %d units more than two bursts and the rate", n, over)
							}
						} else if holds := m.holds(h.now.Load()); r.Remaining != max(0, m.rule.Limit-holds) || holds > 2*m.rule.Limit {
							t.Fatalf("step %d: %s says %d are left, and the model %d of %d", n, m.rule.Name, r.Remaining, m.rule.Limit-holds, m.rule.Limit)
						}
					}
				}
			}
		})
	}
}
