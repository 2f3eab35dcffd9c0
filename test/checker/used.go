package checker

import (
	"math/big"
	"time"
)

// used returns the share of the quota that was used while a backlog waited, as
// the package comment defines it, or nil where there is nothing to divide by.
func (g *group) used(epoch time.Time) *float64 {
	if len(g.calls) == 0 || g.rule.limit == 0 || g.rule.hours != nil {
		return nil
	}
	first, per, limit := g.calls[0].from, g.rule.per, g.rule.limit
	switch {
	case g.rule.algorithm == slidingWindow, g.rule.onUse:
		n := int64((g.until - first) / per)
		return share(g.unitsBefore(first+time.Duration(n)*per), n, limit)
	case g.rule.algorithm == fixedWindow:
		from, _ := windowOf(first, per, epoch)
		to, into := windowOf(g.until, per, epoch)
		return share(g.unitsBefore(g.until-into), to-from, limit)
	case g.rule.algorithm == calendar:
		return g.usedPeriods(epoch)
	case g.rule.algorithm == tokenBucket:
		if g.until == first {
			return nil
		}
		refill := new(big.Int).Mul(big.NewInt(limit), big.NewInt(int64(g.until-first)))
		refill.Div(refill, big.NewInt(int64(per)))
		could := refill.Add(refill, big.NewInt(g.rule.burst))
		f, _ := new(big.Rat).SetFrac(big.NewInt(g.unitsBefore(g.until+1)), could).Float64()
		return &f
	}
	var taken time.Duration
	for _, c := range g.calls {
		taken += max(0, min(c.to, g.until)-c.from)
	}
	return share(int64(taken), int64(g.until-first), limit)
}

// usedPeriods is used for a calendar.
func (g *group) usedPeriods(epoch time.Time) *float64 {
	end, length := g.rule.clock.window(g.calls[0].from, epoch)
	n := int64(0)
	for ; end+length <= g.until; n++ {
		end += length
		_, length = g.rule.clock.window(end, epoch)
	}
	return share(g.unitsBefore(end), n, g.rule.limit)
}

// unitsBefore returns the units of the calls that arrived before a moment.
func (g *group) unitsBefore(end time.Duration) int64 {
	var n int64
	for _, c := range g.calls {
		if c.from >= end {
			break
		}
		n += c.units
	}
	return n
}

// share returns units by n times limit.
func share(units, n, limit int64) *float64 {
	if n <= 0 {
		return nil
	}
	f := float64(units) / (float64(n) * float64(limit))
	return &f
}
