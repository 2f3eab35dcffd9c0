package wire

import (
	"fmt"
	"slices"
)

// charge is what one start took under one rule.
type charge struct {
	id         string
	start      int64
	units      int64
	begin, end int64 // of a window that opens on use, or of a lease
}

// counter is one rule at one node, as docs/algorithms.md defines it: all charges that stand, and no arithmetic beyond that.
//
// Where a refund may return less than all, the model knows two bounds: what the limiter may hope for, where all came back, and what
// it must expect, where nothing did.
type counter struct {
	kind    byte
	charges []charge
	z       int64 // T: when the bucket is full again, in parts of a µs, had nothing come back
	pace    int64 // K: nothing starts before, had nothing come back
	soonest int64 // K: the same, had the pace come back
	before  int64 // K: soonest before the last charge
	most    int64 // K: the largest limit that it had
	oldest  int64 // K: the first start, also of what came back
	vague   bool  // a refund may have returned less than all
}

// Numbers of rules, by their places in Rule.Numbers.
func capacity(kind byte, n []int64) int64 {
	if kind == 'T' {
		return n[2]
	}
	return n[0]
}

func isSliding(kind byte, n []int64) bool { return kind == 'S' && n[1] > 0 && n[2] > 0 }
func isFixed(kind byte, n []int64) bool   { return kind == 'S' && n[1] == 0 }

func roundUp(n, by int64) int64 { return (n + by - 1) / by * by }

// drained is when a bucket is full again, in parts of a µs, by the charges that stand, in the order that makes it soonest.
func (k *counter) drained(n []int64) int64 {
	z := int64(0)
	for _, c := range slices.SortedStableFunc(slices.Values(k.charges), func(a, b charge) int { return int(a.start - b.start) }) {
		z = max(z, c.start*n[0]) + c.units*n[1]
	}
	return z
}

// held is how many units count together with those of a start at t.
func (k *counter) held(n []int64, now, t int64) (sum int64) {
	begin := k.begin(n, t)
	for _, c := range k.charges {
		switch {
		case k.kind == 'C' && c.end > now,
			k.kind == 'K' && c.start >= n[2],
			isSliding(k.kind, n) && roundUp(c.start, n[2])+n[1] > t,
			isFixed(k.kind, n) && c.start/n[2] == t/n[2],
			k.kind == 'S' && n[2] == 0 && c.begin == begin:
			sum += c.units
		}
	}
	return sum
}

// begin is when the window begins that a start belongs to, of those that open on use.
func (k *counter) begin(n []int64, t int64) int64 {
	if k.kind != 'S' || n[2] > 0 {
		return 0
	}
	first := t + n[1]
	for _, c := range k.charges {
		if c.end > t {
			first = min(first, c.begin)
		}
	}
	if first == t+n[1] {
		return t
	}
	return first
}

// carry is how many units may have been rolled over into the period that begins at n[2], at most: had each period without units
// rolled on all that it had.
func (k *counter) carry(n []int64) int64 {
	if n[5] == 0 || k.oldest == 0 {
		return 0
	}
	length, over := n[3]-n[2], int64(0)
	for from := k.oldest - k.oldest%length; from < n[2]; from += length {
		used := int64(0)
		for _, c := range k.charges {
			if c.start/length == from/length {
				used += c.units
			}
		}
		over = min(n[5], max(0, max(n[0], k.most)+over-used))
	}
	return over
}

// first is the first moment from t on at which c units may start, and whether it is sure: by what may have come back if hope, else
// by what must have.
func (k *counter) first(n []int64, now, t, c int64, hope bool) (at int64, sure bool) {
	limit := capacity(k.kind, n)
	if limit == 0 || k.kind != 'C' && c > limit {
		return Never, true
	}
	switch {
	case k.kind == 'T':
		z := k.z
		if hope && k.vague {
			z = k.drained(n)
		}
		if n[0] == 0 {
			return Never, true
		}
		if z == 0 {
			return t, true
		}
		over := z + n[3]*n[0] + (c-limit)*n[1]
		return max(t, roundUp(max(0, over), n[0])/n[0]), true
	case k.kind == 'C':
		return k.place(n, now, t)
	case k.kind == 'K':
		at, room := max(t, k.pace), limit-k.held(n, now, now)
		if hope {
			at, room = max(t, k.soonest), room+k.carry(n)
		}
		if at < n[3]-n[4] && room >= c {
			return at, true
		}
		return max(t, n[3]), false
	case isSliding(k.kind, n):
		moments := []int64{t}
		for _, o := range k.charges {
			moments = append(moments, max(t, roundUp(o.start, n[2])+n[1]))
		}
		slices.Sort(moments)
		for _, at := range moments {
			if k.held(n, now, at)+c <= limit {
				return at, true
			}
		}
		return Never, true
	}
	return k.window(n, t, c), true
}

// window is the first moment from t on in a fixed window that has room.
func (k *counter) window(n []int64, t, c int64) int64 {
	for {
		begin, length := t-t%max(n[2], 1), n[2]
		if length == 0 {
			begin, length = k.begin(n, t), n[1]
		}
		t = max(t, begin)
		if begin+length-t > min(n[3], length-1) && k.held(n, t, t)+c <= n[0] {
			return t
		}
		t = begin + length
	}
}

// place is when a place is free.
func (k *counter) place(n []int64, now, t int64) (int64, bool) {
	var ends []int64
	for _, c := range k.charges {
		if c.end > now {
			ends = append(ends, c.end)
		}
	}
	if int64(len(ends)) < n[0] {
		return t, true
	}
	slices.Sort(ends)
	return max(t, ends[int64(len(ends))-n[0]]), false
}

// add charges, and says whether it exceeds the rule. A charge that was not admitted, since a run began late, is not judged.
func (k *counter) add(n []int64, now int64, c charge, judge bool) error {
	k.most = max(k.most, n[0])
	if k.oldest == 0 || c.start < k.oldest {
		k.oldest = c.start
	}
	switch {
	case k.kind == 'T':
		if k.z <= c.start*n[0] { // full whatever came back
			k.vague, k.charges = false, nil
		}
		k.z = max(k.z, c.start*n[0]) + c.units*n[1]
	case k.kind == 'K' && n[6] == 1:
		k.spread(n, now, c)
	case k.kind == 'C':
		c.end, c.units = c.start+n[1], 1
	case k.kind == 'S' && n[2] == 0:
		c.begin = k.begin(n, c.start)
		c.end = c.begin + n[1]
	}
	k.charges = append(k.charges, c)
	if !judge {
		return nil
	}
	return k.judge(n, now, c)
}

// spread is the pace after a charge: the units that were left take the time that was left.
func (k *counter) spread(n []int64, now int64, c charge) {
	room := max(c.units, n[0]-k.held(n, now, now))
	after := func(pace int64) int64 {
		from := max(c.start, pace)
		left := max(0, n[3]-n[4]-from)
		return from + min(left, roundUp(left*c.units, room)/room)
	}
	if k.soonest < n[2] {
		k.soonest, k.pace = 0, 0
	}
	k.before = k.soonest
	k.pace, k.soonest = after(k.pace), after(k.soonest)
}

// judge says whether the charges that stand keep the rule's bound, the last one among them.
func (k *counter) judge(n []int64, now int64, last charge) error {
	over := func(sum, most int64) error {
		if sum <= most {
			return nil
		}
		return fmt.Errorf("%d units where %d are allowed", sum, most)
	}
	switch {
	case k.kind == 'T':
		return k.judgeBucket(n, last)
	case k.kind == 'C':
		return over(k.held(n, now, now), n[0])
	case k.kind == 'K':
		if last.start < n[2] || last.start >= n[3]-n[4] {
			return fmt.Errorf("a start at %d is not in the period from %d to %d", last.start, n[2], n[3]-n[4])
		}
		return over(k.held(n, now, now), n[0]+k.carry(n))
	case !isSliding(k.kind, n):
		return over(k.held(n, now, last.start), n[0])
	}
	for _, end := range k.charges { // each window that ends with a start and holds the last charge
		sum := int64(0)
		for _, c := range k.charges {
			if c.start <= end.start && c.start > end.start-n[1] {
				sum += c.units
			}
		}
		if end.start >= last.start && end.start < last.start+n[1] && sum > n[0] {
			return over(sum, n[0])
		}
	}
	return nil
}

// judgeBucket looks at each time that begins and ends with a start and holds the last charge.
func (k *counter) judgeBucket(n []int64, last charge) error {
	sorted := slices.SortedStableFunc(slices.Values(k.charges), func(a, b charge) int { return int(a.start - b.start) })
	for i, from := range sorted {
		sum := int64(0)
		for _, to := range sorted[i:] {
			sum += to.units
			if late := (sum-n[2])*n[1] - (to.start-from.start)*n[0]; late > 0 && from.start <= last.start && last.start <= to.start {
				return fmt.Errorf("%d units in %d µs", sum, to.start-from.start)
			}
		}
	}
	return nil
}

// remove refunds what was charged under an id, the last if there are several. It returns false if nothing was.
func (k *counter) remove(id string) bool {
	for i := len(k.charges) - 1; i >= 0; i-- {
		if k.charges[i].id != id {
			continue
		}
		k.vague = k.vague || k.kind == 'T' || k.kind == 'K'
		if k.kind == 'K' && i == len(k.charges)-1 {
			k.soonest = k.before
		}
		k.charges = slices.Delete(k.charges, i, i+1)
		return true
	}
	return false
}
