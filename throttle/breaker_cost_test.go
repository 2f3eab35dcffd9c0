package throttle

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

var scriptTime = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// scriptTook is how long Redis took for each script that f ran.
func scriptTook(t *testing.T, rdb redis.UniversalClient, f func()) time.Duration {
	t.Helper()
	read := func() (calls, us int64) {
		info, err := rdb.Info(t.Context(), "commandstats").Result()
		noError(t, err)
		if m := scriptTime.FindStringSubmatch(info); m != nil {
			calls, _ = strconv.ParseInt(m[1], 10, 64)
			us, _ = strconv.ParseInt(m[2], 10, 64)
		}
		return calls, us
	}
	calls, took := read()
	f()
	allCalls, all := read()
	return time.Duration(all-took) * time.Microsecond / time.Duration(max(1, allCalls-calls))
}

// docs/breaker.md, "Costs": what a decision costs Redis beside an open breaker, by ratio to the same one without, in turns: that of
// another tenant, that of ten, and its own, which refuses it.
func TestOpenBreakerCostsADecisionLittle(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	pol := parsedPolicy(t, `limits: {"*": {rules: [{name: all, algorithm: sliding-window, limit: 1000000, per: 1s}], scopes: {"*": {breaker: {wait: 10m}, rules: [{name: own, algorithm: token-bucket, limit: 100000, per: 1s, burst: 100000}]}}}}`)
	l := newLimiter(t, rdb, pol, Config{})
	open := map[string]int{"none": 0, "one": 1, "ten": 10, "own": 1}
	for provider, n := range open {
		for i := range n {
			noError(t, l.OpenBreaker(t.Context(), fmt.Sprintf("%s/t%d", provider, i), 0))
		}
	}
	took := map[string][]time.Duration{}
	for range 15 {
		for provider := range open {
			scope := provider + "/other"
			if provider == "own" {
				scope = "own/t0"
			}
			took[provider] = append(took[provider], scriptTook(t, rdb, func() {
				for range 300 {
					d, err := l.Allow(t.Context(), scope)
					if err != nil || d.Allowed == (provider == "own") {
						t.Fatalf("%+v, %v", d, err)
					}
				}
			}))
		}
	}
	median := map[string]float64{}
	for provider, all := range took {
		slices.Sort(all)
		median[provider] = float64(all[len(all)/2])
	}
	for _, provider := range []string{"one", "ten", "own"} {
		ratio := median[provider] / median["none"]
		t.Logf("%s: %.2f × of %s", provider, ratio, time.Duration(median["none"]))
		if ratio > 2 {
			t.Errorf("a decision beside %s open costs %.2f × of one beside none", provider, ratio)
		}
	}
}
