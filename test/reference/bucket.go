package reference

import (
	"math/big"
	"slices"
)

// bucket is a token bucket, by the moment z at which it is empty again.
//
// "A charge of c at s sets z' = max(z, s) + c·q/p and is made only if z' ≤ s + burst·q/p."
type bucket struct {
	rule  Rule
	unit  *big.Rat // the time in which one unit drains, q/p
	slack *big.Rat // the time that is demanded before a unit: what the burst pays of margin + pad
	z     *big.Rat // nil while nothing was charged
	at    int64    // the latest start, or a moment later: "z is never before at"
	marks []marked // the charges, oldest first
	since int64    // a mark
	low   *big.Rat // the least level that charges after since met, as a time; nil for none
}

// plenty is how many units must pass within a pad for it to count twice.
const plenty = 1000

func newBucket(r Rule, pad int64) *bucket {
	b := &bucket{rule: r, slack: new(big.Rat)}
	slack, rest := r.slack(pad)
	per := r.Per + rest
	if r.Margin == 0 && product(r.Limit, pad).Cmp(product(plenty, r.Per+2*pad)) >= 0 {
		per += pad
	}
	b.slack.SetInt64(slack)
	if r.Limit > 0 {
		b.unit = unitTime(r, per, slack)
	}
	return b
}

// slack is what a bucket's burst pays of σ = margin + pad, "(burst − 1)·(per + σ)/(limit + burst − 1), rounded
// down and at most σ", and the rest, for which its per is longer. Without a margin the burst pays nothing.
func (r Rule) slack(pad int64) (slack, rest int64) {
	late := r.Margin + pad
	if r.Margin > 0 {
		paid := product(r.Burst-1, r.Per+late)
		if paid.Quo(paid, big.NewInt(max(1, r.Limit+r.Burst-1))); paid.Cmp(big.NewInt(late)) > 0 {
			return late, 0
		}
		slack = paid.Int64()
	}
	return slack, late - slack
}

// unitTime is q/p: per/limit, "in lowest terms where p ≤ 2^25, p·slack < 2^52 and burst·q < 2^52. Otherwise q is the largest that
// these allow, p what that comes to, rounded down, and q what p comes to, rounded up".
func unitTime(r Rule, per, slack int64) *big.Rat {
	const most = 1<<52 - 1
	exact := big.NewRat(per, r.Limit)
	pMost, qMost := min(1<<25, most/max(slack, 1)), most/r.Burst
	if exact.Denom().Cmp(big.NewInt(pMost)) <= 0 && exact.Num().Cmp(big.NewInt(qMost)) <= 0 {
		return exact
	}
	q := product(pMost, per)
	q.Quo(q, big.NewInt(r.Limit))
	if q.Cmp(big.NewInt(qMost)) > 0 {
		q.SetInt64(qMost)
	}
	if q.Sign() == 0 {
		q.SetInt64(1)
	}
	p := q.Mul(q, big.NewInt(r.Limit)).Quo(q, big.NewInt(per)).Int64()
	p = min(max(p, 1), pMost)
	up := ceil(new(big.Rat).Mul(exact, new(big.Rat).SetInt64(p)))
	return big.NewRat(up, p)
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

func (b *bucket) times(c int64) *big.Rat { return new(big.Rat).Mul(b.unit, new(big.Rat).SetInt64(c)) }

func (b *bucket) first(_ func(int64) int64, t, c int64) int64 {
	if b.unit == nil || c > b.rule.Burst {
		return Never
	}
	if b.z == nil {
		return t
	}
	from := new(big.Rat).Sub(b.z, b.times(b.rule.Burst-c))
	return max(t, ceil(from.Add(from, b.slack)))
}

// charge also notes what a refund needs: "low is the least level met by charges after since, and since moves on when a charge meets
// less than one unit. A charge whose start is no later than one before it moves neither".
func (b *bucket) charge(_, s, c int64, id string) {
	z := new(big.Rat).SetInt64(s)
	if b.z != nil && b.z.Cmp(z) > 0 {
		z = b.z
	}
	met := new(big.Rat).Sub(z, new(big.Rat).SetInt64(s))
	later := s > b.at
	b.at = max(s, b.at+1)
	if later && met.Cmp(b.unit) < 0 {
		b.since, b.low = b.at, nil
	} else if later {
		b.low = least(b.low, met)
	}
	if b.at-b.since >= 1<<40 { // "since is at most 12 days before the latest start"
		b.since = b.at
	}
	b.marks = append(b.marks, marked{id, b.at, b.times(c)})
	b.z = new(big.Rat).Add(z, b.times(c))
	if at := new(big.Rat).SetInt64(b.at); b.z.Cmp(at) < 0 {
		b.z = at
	}
}

// marked is a charge: its mark, and what it takes, as a time.
type marked struct {
	id    string
	mark  int64
	takes *big.Rat
}

func least(list ...*big.Rat) (out *big.Rat) {
	for _, x := range list {
		if x != nil && (out == nil || x.Cmp(out) < 0) {
			out = x
		}
	}
	return out
}

// refund gives back "min(c·q, the level now, and the larger of low and c·q - p·(T - s))", and c·q for the grant charged last: "of a
// grant from before since low is 0". s is since, or 0.1 s before its mark if that is later.
func (b *bucket) refund(now int64, id string) {
	i := slices.IndexFunc(b.marks, func(m marked) bool { return m.id == id })
	if i < 0 {
		return
	}
	m, low, since := b.marks[i], b.low, b.since
	if m.mark < b.since {
		low, since = new(big.Rat), 0
	}
	back := least(m.takes, new(big.Rat).Sub(b.z, new(big.Rat).SetInt64(max(now, b.at))))
	if m.mark < b.at && low != nil {
		drained := max(now, b.at) - max(since, m.mark-100_000)
		if rest := new(big.Rat).Sub(m.takes, new(big.Rat).SetInt64(drained)); rest.Cmp(low) > 0 {
			low = rest
		}
		back = least(back, low)
	}
	if back.Sign() < 0 {
		back = new(big.Rat)
	}
	if m.mark < b.at && b.low != nil {
		if b.low = new(big.Rat).Sub(b.low, back); b.low.Sign() < 0 {
			b.low = new(big.Rat)
		}
	}
	b.z = new(big.Rat).Sub(b.z, back)
}

func (b *bucket) remaining(now int64) int64 {
	if b.unit == nil {
		return 0
	}
	level := new(big.Rat)
	if b.z != nil {
		level.Add(b.z, b.slack).Sub(level, new(big.Rat).SetInt64(now))
	}
	if level.Sign() <= 0 {
		return b.rule.Burst
	}
	return max(0, b.rule.Burst-ceil(level.Quo(level, b.unit)))
}

func (b *bucket) reset(now int64) int64 {
	if b.unit == nil {
		return Never
	}
	if b.z == nil {
		return now
	}
	return max(now, ceil(new(big.Rat).Add(b.z, b.slack)))
}

func ceil(r *big.Rat) int64 {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() != 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}
