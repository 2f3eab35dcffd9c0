package reference

import (
	"math/big"
	"slices"
)

// calendar is a calendar's quota.
type calendar struct {
	rule  Rule
	slack int64
	charged
	seen []int64 // the begins of the periods in which, or for which, something was granted
	// pace is the moment before which nothing starts, with Spread; it was another before the last charge.
	pace, was int64
}

func newCalendar(r Rule, pad int64) *calendar { return &calendar{rule: r, slack: pad + r.Margin} }

func (k *calendar) count(from int64) (n int64) {
	_, end := k.rule.Begins(from)
	for i := range k.list {
		if k.list[i].leave == end {
			n += k.list[i].count
		}
	}
	return n
}

// carry is what the periods before the one that begins at from left over: "carry = min(rollover, limit + carry of the period
// before − its units)", and "0 before the period has begun". "Periods in a row in which nothing was granted count as one."
func (k *calendar) carry(now, from int64) int64 {
	if len(k.seen) == 0 || from <= k.seen[0] || now < from {
		return 0
	}
	before, _ := k.rule.Begins(from - 1)
	if slices.Contains(k.seen, before) {
		return k.over(now, before)
	}
	last, _ := slices.BinarySearch(k.seen, before)
	return min(k.rule.Rollover, k.rule.Limit+k.over(now, k.seen[last-1]))
}

// over is what a period leaves over.
func (k *calendar) over(now, from int64) int64 {
	return max(0, min(k.rule.Rollover, k.rule.Limit+k.carry(now, from)-k.count(from)))
}

func (k *calendar) left(now, t int64) int64 {
	from, _ := k.rule.Begins(t)
	return k.rule.Limit + k.carry(now, from) - k.count(from)
}

func (k *calendar) first(known func(int64) int64, t, c int64) int64 {
	if c > k.rule.Limit {
		return Never
	}
	for {
		_, end := k.rule.Begins(t)
		at := t
		if k.rule.Spread {
			at = max(t, k.pace)
		}
		if _, ends := k.rule.Begins(known(t)); t >= ends { // "nothing is granted ahead of its period"
			return Never
		}
		if at < end-k.slack && k.left(known(at), at) >= c {
			return at
		}
		t = max(end, at)
		if at >= end {
			continue
		}
		t = end
	}
}

func (k *calendar) charge(now, s, c int64, id string) {
	from, end := k.rule.Begins(s)
	here, _ := k.rule.Begins(now)
	k.see(here)
	k.see(from)
	k.was = k.pace
	if left := k.left(now, s); k.rule.Spread && left > 0 {
		// "nothing starts before s + ⌈T·c/R⌉", T until the period's last slack
		k.pace = s + ceil(new(big.Rat).Mul(big.NewRat(end-k.slack-s, left), new(big.Rat).SetInt64(c)))
	}
	k.list = append(k.list, units{id, s, end, c})
}

// refund: nothing comes back "of a period that is not remembered any more", which are all but the latest two: the one at hand and
// the one before it, or the next where that has units already. The place in the pace stays empty, "unless it was charged last".
func (k *calendar) refund(now int64, id string) {
	i := slices.IndexFunc(k.list, func(u units) bool { return u.id == id })
	if i < 0 || k.list[i].start < k.oldest(now) {
		return
	}
	if i == len(k.list)-1 {
		k.pace = k.was
	}
	k.list = slices.Delete(k.list, i, i+1)
}

func (k *calendar) oldest(now int64) int64 {
	here, end := k.rule.Begins(now)
	if slices.Contains(k.seen, end) {
		return here
	}
	before, _ := k.rule.Begins(here - 1)
	return before
}

func (k *calendar) see(period int64) {
	if at, found := slices.BinarySearch(k.seen, period); !found {
		k.seen = slices.Insert(k.seen, at, period)
	}
}

func (k *calendar) remaining(now int64) int64 { return max(0, k.left(now, now)) }

// reset is also after the pace, which refunds of earlier charges leave as it is.
func (k *calendar) reset(now int64) int64 {
	at := k.charged.reset(now)
	if k.rule.Spread {
		at = max(at, k.pace)
	}
	return at
}
