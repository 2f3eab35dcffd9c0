package throttle

import (
	"context"
	"math/big"
	"strconv"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// under is a limiter with another policy over the same state and clock: what a
// process is that was started after the limits had changed.
func (b *bench) under(rules ...policy.Rule) *bench {
	b.t.Helper()
	cfg := b.cfg
	if cfg.StartTolerance == 0 {
		cfg.StartTolerance = -1
	}
	l, err := New(b.rdb, policyOf(b.t, rules...), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	l.clock = b.clock
	return &bench{Limiter: l, t: b.t, rdb: b.rdb, now: b.now}
}

func (b *bench) pttl(rule string) time.Duration {
	b.t.Helper()
	p, err := b.scopes.of("p/x")
	if err != nil {
		b.t.Fatal(err)
	}
	for i, bound := range p.bounds {
		if bound.Rule.Name == rule {
			return b.rdb.PTTL(context.Background(), p.keys[i]).Val()
		}
	}
	b.t.Fatalf("no rule %s", rule)
	return 0
}

// raw runs decide as limits.yaml could not make it: with a cost above what a
// rule can ever admit.
func (b *bench) raw(cost int64, ahead time.Duration) Decision {
	b.t.Helper()
	p, err := b.scopes.of("p/x")
	if err != nil {
		b.t.Fatal(err)
	}
	reply, err := b.runner.run(context.Background(), b.attempt(p, &Request{Scope: "p/x", ID: NewID(), Cost: cost, MaxDelay: ahead}).call())
	if err != nil {
		b.t.Fatal(err)
	}
	return fromReply(p, reply)
}

const hour = time.Hour

// These are histories that once went wrong, or nearly did.
func TestCases(t *testing.T) {
	t.Parallel()
	bucket := func(limit int64, per time.Duration, burst int64) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: limit, Per: per, Burst: burst}
	}
	sliding := func(limit int64, per time.Duration) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
	}
	fixed := func(limit int64, per time.Duration) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: limit, Per: per}
	}
	onUse := func(limit int64, per time.Duration) policy.Rule {
		return policy.Rule{Name: "r", Algorithm: policy.FixedWindow, Limit: limit, Per: per, OpensOnUse: true}
	}
	tests := map[string]struct {
		rules []policy.Rule
		run   func(b *bench)
	}{
		"a bucket that is charged after its clock stepped back keeps its key long enough": {
			[]policy.Rule{bucket(1, 10*sec, 1)}, func(b *bench) {
				b.decide(Request{Scope: "p/x"})
				b.at(-30e6)
				d := b.decide(Request{Scope: "p/x", MaxDelay: time.Minute})
				if !d.Allowed || d.Wait != 10*sec {
					b.t.Fatalf("got %+v, want a start in 10s", d)
				}
				if got := b.pttl("r"); got < 20*sec {
					b.t.Errorf("key expires in %v, its meaning lasts 20s", got)
				}
			},
		},
		"giving back under a rule that was suspended meanwhile": {
			[]policy.Rule{bucket(5, sec, 5), {Name: "s", Algorithm: policy.SlidingWindow, Limit: 3, Per: sec}}, func(b *bench) {
				d := b.decide(Request{Scope: "p/x", Cost: 2})
				now := b.under(bucket(0, sec, 5), policy.Rule{Name: "s", Algorithm: policy.SlidingWindow, Limit: 3, Per: sec})
				now.giveBack(d.Grant)
				if left := b.decide(Request{Scope: "p/x"}).Rules[1].Remaining; left != 2 {
					b.t.Errorf("window has %d left, want 2", left)
				}
			},
		},
		"giving back at more than a unit a microsecond": {
			[]policy.Rule{bucket(1_000_000_000, sec, 1_000_000)}, func(b *bench) {
				b.decide(Request{Scope: "p/x"})
				d := b.decide(Request{Scope: "p/x"})
				b.giveBack(d.Grant)
			},
		},
		"a start far ahead under a rate that divides nothing": {
			[]policy.Rule{bucket(999_999_999_989, sec, 4_000_000_000), {Name: "slow", Algorithm: policy.TokenBucket, Limit: 1, Per: time.Minute}}, func(b *bench) {
				b.decide(Request{Scope: "p/x"})
				if d := b.decide(Request{Scope: "p/x", MaxDelay: time.Minute}); !d.Allowed || d.Wait != time.Minute {
					b.t.Errorf("got %+v", d)
				}
			},
		},
		"no wait ends where a lowered limit is below the cost": {
			[]policy.Rule{bucket(5, sec, 5), {Name: "s", Algorithm: policy.SlidingWindow, Limit: 5, Per: sec}, {Name: "f", Algorithm: policy.FixedWindow, Limit: 5, Per: sec}}, func(b *bench) {
				for _, ahead := range []time.Duration{0, time.Minute} {
					for range 3 {
						if d := b.raw(6, ahead); d.Allowed || d.RetryAfter != Never {
							b.t.Fatalf("got %+v", d)
						}
						b.now.Add(3600e6)
					}
				}
			},
		},
		"a full concurrency rule does not hide a longer wait": {
			[]policy.Rule{{Name: "c", Algorithm: policy.Concurrency, Limit: 1}, {Name: "s", Algorithm: policy.SlidingWindow, Limit: 1, Per: hour}}, func(b *bench) {
				b.decide(Request{Scope: "p/x"})
				if d := b.decide(Request{Scope: "p/x"}); d.RetryAfter != hour || d.Binding != 1 {
					b.t.Errorf("got %+v, want an hour for rule 1", d)
				}
				if d := b.under(policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1}, sliding(1, hour), policy.Rule{Name: "z", Algorithm: policy.FixedWindow, Limit: 0, Per: hour}).decide(Request{Scope: "p/x"}); d.RetryAfter != Never || d.Binding != 2 {
					b.t.Errorf("got %+v, want no end, for the suspended rule", d)
				}
			},
		},
		"a place is free when as many leases have ended as the limit was lowered by": {
			[]policy.Rule{{Name: "c", Algorithm: policy.Concurrency, Limit: 3}}, func(b *bench) {
				for i := range int64(3) {
					b.at(i * 1e6)
					b.decide(Request{Scope: "p/x"})
				}
				low := b.under(policy.Rule{Name: "c", Algorithm: policy.Concurrency, Limit: 1})
				d := low.decide(Request{Scope: "p/x"})
				if d.RetryAfter != 30*sec {
					b.t.Errorf("wait %v, want until the last of three ends, 30s", d.RetryAfter)
				}
				low.now.Add(d.RetryAfter.Microseconds())
				if d := low.decide(Request{Scope: "p/x"}); !d.Allowed {
					b.t.Errorf("got %+v", d)
				}
			},
		},
		"a longer window keeps what is still known, once it was asked": {
			[]policy.Rule{sliding(3, sec)}, func(b *bench) {
				b.decide(Request{Scope: "p/x", Cost: 3})
				long := b.under(sliding(3, hour))
				if d := long.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != hour {
					b.t.Fatalf("got %+v", d)
				}
				if got := b.pttl("r"); got < hour {
					b.t.Errorf("key expires in %v, its meaning lasts an hour", got)
				}
			},
		},
		"a start ahead does not hold back what starts before it": {
			[]policy.Rule{sliding(3, sec), {Name: "slow", Algorithm: policy.TokenBucket, Limit: 2, Per: sec}}, func(b *bench) {
				shared := b.under(sliding(3, sec))
				b.decide(Request{Scope: "p/x"})
				b.at(100e3)
				if d := b.decide(Request{Scope: "p/x", MaxDelay: sec}); d.Wait != 400*ms {
					b.t.Fatalf("got %+v", d)
				}
				b.at(200e3)
				shared.decide(Request{Scope: "p/x"})
				b.at(1200e3)
				d := shared.decide(Request{Scope: "p/x"})
				if !d.Allowed || d.Rules[0].Remaining != 1 {
					b.t.Errorf("1s after a start at 0.2s: %+v, want only the start at 0.5s still counted", d)
				}
			},
		},
		"a start ahead does not close the window before it": {
			[]policy.Rule{fixed(3, sec), {Name: "slow", Algorithm: policy.TokenBucket, Limit: 2, Per: sec}}, func(b *bench) {
				shared := b.under(fixed(3, sec))
				b.at(900e3)
				b.decide(Request{Scope: "p/x"})
				ahead := b.decide(Request{Scope: "p/x", MaxDelay: sec})
				if ahead.Wait != 500*ms {
					b.t.Fatalf("got %+v", ahead)
				}
				if d := shared.decide(Request{Scope: "p/x", Cost: 2}); !d.Allowed || d.Rules[0].Remaining != 0 {
					b.t.Errorf("the window at hand: %+v, want its last two units", d)
				}
				if d := shared.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != 100*ms {
					b.t.Errorf("the window at hand is full: %+v", d)
				}
				b.at(1000e3)
				if d := shared.decide(Request{Scope: "p/x", Cost: 2}); !d.Allowed || d.Rules[0].Remaining != 0 {
					b.t.Errorf("the next window: %+v, want two of three", d)
				}
				b.giveBack(ahead.Grant)
				if d := shared.decide(Request{Scope: "p/x"}); !d.Allowed {
					b.t.Errorf("after giving back: %+v", d)
				}
			},
		},
		"a window that opens ahead, and what is sooner": {
			[]policy.Rule{onUse(3, sec), {Name: "slow", Algorithm: policy.TokenBucket, Limit: 1, Per: 5 * sec}}, func(b *bench) {
				shared := b.under(onUse(3, sec))
				b.decide(Request{Scope: "p/x"})
				ahead := b.decide(Request{Scope: "p/x", MaxDelay: 10 * sec})
				if ahead.Wait != 5*sec {
					b.t.Fatalf("got %+v", ahead)
				}
				b.at(4000e3) // the window at 0s is over, and one that opens now ends where that at 5s begins
				if d := shared.decide(Request{Scope: "p/x", Cost: 2}); !d.Allowed || d.Rules[0].Remaining != 1 || d.Rules[0].ResetAfter != 2*sec {
					b.t.Errorf("a window of its own: %+v", d)
				}
				b.giveBack(shared.decide(Request{Scope: "p/x"}).Grant)
				if d := shared.decide(Request{Scope: "p/x", Cost: 2, MaxDelay: 10 * sec}); !d.Allowed || d.Wait != sec || d.Rules[0].Remaining != 1 {
					b.t.Errorf("beside the one at 5s: %+v", d)
				}
				b.at(4000e3 + 1)
				if d := shared.decide(Request{Scope: "p/x", Cost: 3, MaxDelay: 10 * sec}); !d.Allowed || d.Wait != 2*sec-time.Microsecond {
					b.t.Errorf("in the one at 6s: %+v", d)
				}
			},
		},
		"a window of its own would end after one that was opened ahead begins": {
			[]policy.Rule{onUse(3, sec), {Name: "slow", Algorithm: policy.TokenBucket, Limit: 1, Per: 5 * sec}}, func(b *bench) {
				shared := b.under(onUse(3, sec))
				b.decide(Request{Scope: "p/x"})
				ahead := b.decide(Request{Scope: "p/x", MaxDelay: 10 * sec})
				b.at(4000e3 + 1)
				if d := shared.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != sec-time.Microsecond || d.Rules[0].Remaining != 2 {
					b.t.Errorf("it waits for the one at 5s: %+v", d)
				}
				b.giveBack(ahead.Grant) // which was all that it had
				if d := shared.decide(Request{Scope: "p/x"}); !d.Allowed || d.Rules[0].Remaining != 2 || d.Rules[0].ResetAfter != sec {
					b.t.Errorf("a window that nothing is left in is none: %+v", d)
				}
			},
		},
		"a window stays where it opened when what opened it is given back": {
			[]policy.Rule{onUse(3, sec)}, func(b *bench) {
				first := b.decide(Request{Scope: "p/x"})
				b.at(400e3)
				b.decide(Request{Scope: "p/x"})
				b.giveBack(first.Grant)
				b.at(900e3)
				if d := b.decide(Request{Scope: "p/x", Cost: 2}); !d.Allowed || d.Rules[0].ResetAfter != 100*ms {
					b.t.Errorf("got %+v, want its last two units", d)
				}
				if d := b.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != 100*ms {
					b.t.Errorf("got %+v", d)
				}
			},
		},
		"a window keeps its beginning under another margin": {
			[]policy.Rule{onUse(3, sec)}, func(b *bench) {
				wide := onUse(3, sec)
				wide.Margin = 100 * ms
				b.decide(Request{Scope: "p/x", Cost: 3})
				other := b.under(wide)
				for at := int64(100e3); at < 1000e3; at += 100e3 { // processes that know of the change, and others that do not
					b.at(at)
					if d := other.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter.Microseconds() != 1100e3-at {
						b.t.Fatalf("at %dµs: %+v", at, d)
					}
					if d := b.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter.Microseconds() != 1000e3-at {
						b.t.Fatalf("at %dµs: %+v", at, d)
					}
				}
			},
		},
		// "Under another per … the window at hand begins anew"
		"a window begins anew under another per": {
			[]policy.Rule{onUse(3, sec)}, func(b *bench) {
				b.decide(Request{Scope: "p/x", Cost: 2})
				b.at(400e3)
				longer := b.under(onUse(3, 2*sec))
				if d := longer.decide(Request{Scope: "p/x"}); !d.Allowed || d.Rules[0].Remaining != 0 || d.Rules[0].ResetAfter != 2*sec {
					b.t.Errorf("at the change: %+v", d)
				}
				b.at(2400e3 - 1)
				if d := longer.decide(Request{Scope: "p/x"}); d.Allowed || d.RetryAfter != time.Microsecond {
					b.t.Errorf("a microsecond before it ends: %+v", d)
				}
			},
		},
		"five numbers of a grant ahead": {
			[]policy.Rule{bucket(1, sec, 1)}, func(b *bench) {
				b.decide(Request{Scope: "p/x"})
				d := b.decide(Request{Scope: "p/x", MaxDelay: sec})
				if five := d.Tuple(); !d.Allowed || five[0] != 0 || five[3] != -1 {
					b.t.Errorf("allowed %t, five %v", d.Allowed, five)
				}
			},
		},
		"five numbers of an attempt that was given back": {
			[]policy.Rule{bucket(5, sec, 5)}, func(b *bench) {
				d := b.decide(Request{Scope: "p/x", ID: "a"})
				b.giveBack(d.Grant)
				d = b.decide(Request{Scope: "p/x", ID: "a"})
				if five := d.Tuple(); d.Allowed || five[0] != 1 || five[3] != 1 {
					b.t.Errorf("allowed %t, five %v", d.Allowed, five)
				}
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policyOf(t, test.rules...), test.run)
		})
	}
}

// A bucket's rate is never above limit/per, and near it wherever its numbers
// leave room: "one part in a thousand slower at most".
func TestBucketRate(t *testing.T) {
	t.Parallel()
	limits := []int64{1, 2, 3, 7, 60, 100, 127, 1000, 86_399, 999_983, 1_000_003, 123_456_789, 1_000_000_007, 999_999_999_989, 1_000_000_000_000}
	pers := []int64{1, 5_001, 10_000, 999_983, 1_000_000, 1_005_000, 60_005_000, 3_600_005_000, 86_400_005_000, 31_622_400_000_000}
	bursts := []int64{1, 5, 100, 1_000_000, 4_000_000_000, 1_000_000_000_000}
	for _, limit := range limits {
		for _, per := range pers {
			for _, burst := range bursts {
				fill := new(big.Int).Mul(big.NewInt((per+limit-1)/limit), big.NewInt(burst))
				if fill.Cmp(big.NewInt(maxBucketTest)) > 0 {
					continue // a policy refuses it
				}
				name := strconv.FormatInt(limit, 10) + " per " + strconv.FormatInt(per, 10) + " burst " + strconv.FormatInt(burst, 10)
				p, q := bucketRate(limit, per, 0, burst)
				if p < 1 || q < 1 {
					t.Fatalf("%s: p %d, q %d", name, p, q)
				}
				rate, want := big.NewRat(p, q), big.NewRat(limit, per)
				if rate.Cmp(want) > 0 {
					t.Errorf("%s: faster than the limit: %d/%d", name, p, q)
				}
				loss, _ := new(big.Rat).Quo(rate, want).Float64()
				if loss < 0.999 && want.Cmp(big.NewRat(maxDrain, 1)) < 0 {
					t.Errorf("%s: %d/%d is only %.4f of it", name, p, q, loss)
				}
				// What a bucket can owe: all of its burst, a start a minute ahead, a
				// clock that stepped back a minute.
				owes := new(big.Int).Mul(big.NewInt(q), big.NewInt(burst))
				owes.Add(owes, new(big.Int).Mul(big.NewInt(p), big.NewInt(2*MaxDelayLimit.Microseconds())))
				if owes.Cmp(big.NewInt(1<<53)) >= 0 {
					t.Errorf("%s: owes up to %v parts, which Lua can't count", name, owes)
				}
			}
		}
	}
}
