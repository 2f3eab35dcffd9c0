package checker

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/countapi"
)

// onUse stands for a fixed window that opens on use.
const onUse = fixedWindow + ", on use"

// The definitions once more, as slow and as plain as they can be written: each looks at every window, pair or moment by itself.

// bruteSliding is the most units in any window.
func bruteSliding(calls []countapi.Call, per time.Duration) (most int64) {
	for _, start := range calls {
		var units int64
		for _, c := range calls {
			if c.Arrived >= start.Arrived && c.Arrived < start.Arrived+per {
				units += c.Cost
			}
		}
		most = max(most, units)
	}
	return most
}

func bruteBucket(calls []countapi.Call, limit, burst int64, per, jitter time.Duration) bool {
	if limit == 0 {
		burst = 0
	}
	for _, i := range calls {
		for _, j := range calls {
			if i.Arrived > j.Arrived {
				continue
			}
			var units int64
			for _, c := range calls {
				if c.Arrived >= i.Arrived && c.Arrived <= j.Arrived {
					units += c.Cost
				}
			}
			may := big.NewRat(limit, int64(per))
			may.Mul(may, new(big.Rat).SetInt64(int64(j.Arrived-i.Arrived+jitter)))
			may.Add(may, new(big.Rat).SetInt64(burst))
			if new(big.Rat).SetInt64(units).Cmp(may) > 0 {
				return true
			}
		}
	}
	return false
}

// bruteFixed tries both windows for every call that jitter leaves open.
func bruteFixed(calls []countapi.Call, limit int64, per, jitter time.Duration) bool {
	var open []int
	for i, c := range calls {
		if (epoch.UnixNano()+int64(c.Arrived))%int64(per) < int64(jitter) {
			open = append(open, i)
		}
	}
	for choice := range 1 << len(open) {
		windows := map[int64]int64{}
		for i, c := range calls {
			w := (epoch.UnixNano() + int64(c.Arrived)) / int64(per)
			for k, o := range open {
				if o == i && choice>>k&1 == 1 {
					w--
				}
			}
			windows[w] += c.Cost
		}
		kept := true
		for _, units := range windows {
			kept = kept && units <= limit
		}
		if kept {
			return false
		}
	}
	return true
}

// bruteOpened lays the windows everywhere, one after the other: whether none of the ways holds the calls, which are in order.
func bruteOpened(calls []countapi.Call, limit int64, per, from time.Duration) bool {
	if len(calls) == 0 {
		return false
	}
	for begins := from; begins <= calls[0].Arrived; begins++ {
		var units int64
		n := 0
		for ; n < len(calls) && calls[n].Arrived < begins+per; n++ {
			units += calls[n].Cost
		}
		if units <= limit && !bruteOpened(calls[n:], limit, per, begins+per) {
			return false
		}
	}
	return true
}

// bruteConcurrency is the most calls at any moment.
func bruteConcurrency(calls []countapi.Call, jitter time.Duration) (most int64) {
	for _, at := range calls {
		var n int64
		for _, c := range calls {
			end := max(c.Departed-jitter, c.Arrived+1)
			if c.Departed == countapi.Open {
				end = 1 << 62
			}
			if c.Arrived <= at.Arrived && at.Arrived < end {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestAgainstBruteForce holds Check against the plain definitions on small
// random logs whose times fall on and beside the edges of windows.
func TestAgainstBruteForce(t *testing.T) {
	t.Parallel()
	const rounds = 500
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	exceeded := map[string]int{}
	for range rounds {
		calls := randomCalls(rnd)
		limit, burst := rnd.Int64N(5), 1+rnd.Int64N(3)
		per := time.Duration(2 + rnd.IntN(9))
		jitter := time.Duration(rnd.IntN(int(per))) * time.Duration(rnd.IntN(2))
		if rnd.IntN(4) > 0 {
			for i := range calls {
				calls[i].Cost = 1
			}
		}
		sliding := bruteSliding(calls, per)
		worst := map[string]int64{slidingWindow: sliding, tokenBucket: sliding, concurrency: bruteConcurrency(calls, 0)}
		sorted := slices.Clone(calls)
		slices.SortFunc(sorted, func(a, b countapi.Call) int { return cmp.Compare(a.Arrived, b.Arrived) })
		for algorithm, want := range map[string]bool{
			slidingWindow: bruteSliding(calls, per-jitter) > limit,
			tokenBucket:   bruteBucket(calls, limit, burst, per, jitter),
			fixedWindow:   bruteFixed(calls, limit, per, jitter),
			concurrency:   bruteConcurrency(calls, jitter) > limit,
			onUse:         bruteOpened(sorted, limit, per, -per),
		} {
			r := rule{name: "r", algorithm: strings.TrimSuffix(algorithm, onUse[len(fixedWindow):]), onUse: algorithm == onUse, limit: limit, burst: burst, per: per}
			if limit == 0 {
				r.burst = 0 // as ParseLimits has it
			}
			limits := &Limits{root: &node{scopes: map[string]*node{"payments": {rules: []rule{r}}}}}
			row := check(t, Input{Limits: limits, Calls: calls, Jitter: jitter}).Rows[0]
			if algorithm == onUse && jitter > 0 {
				if row.Exceeded && !want {
					t.Fatalf("seed %d: jitter %v makes too many of what is none\n%+v\n%+v", seed, jitter, calls, row)
				}
				continue
			}
			if algorithm == fixedWindow && jitter > 0 && !row.Exceeded && hasWeights(calls) {
				continue // "units of one call may be split …, which can only excuse too much"
			}
			if row.Exceeded != want {
				t.Fatalf("seed %d: %+v, jitter %v: exceeded %v, by definition %v\n%+v\n%+v",
					seed, r, jitter, row.Exceeded, want, calls, row)
			}
			if most, is := worst[algorithm]; is && row.Worst != most {
				t.Fatalf("seed %d: %s: the most is %d, by definition %d\n%+v", seed, algorithm, row.Worst, most, calls)
			}
			if want {
				exceeded[algorithm]++
			}
		}
	}
	for algorithm, n := range exceeded {
		if n < rounds/10 || n > rounds*9/10 {
			t.Errorf("%s: %d of %d logs exceed; the test should see both outcomes", algorithm, n, rounds)
		}
	}
}

func hasWeights(calls []countapi.Call) bool {
	return slices.ContainsFunc(calls, func(c countapi.Call) bool { return c.Cost > 1 })
}

func randomCalls(rnd *rand.Rand) []countapi.Call {
	calls := make([]countapi.Call, 1+rnd.IntN(7))
	for i := range calls {
		arrived := time.Duration(rnd.IntN(40))
		calls[i] = countapi.Call{
			Seq: int64(i), ID: fmt.Sprint(i), Scope: "payments", Cost: 1 + rnd.Int64N(2), Status: 200,
			Arrived: arrived, Departed: arrived + time.Duration(rnd.IntN(15)),
		}
		if rnd.IntN(20) == 0 {
			calls[i].Departed = countapi.Open
		}
	}
	return calls
}
