package throttle

import (
	"math/big"
	"strconv"
	"testing"
)

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
