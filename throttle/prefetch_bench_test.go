package throttle

import (
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// BenchmarkPrefetched is a decision from the stock, by one caller and by one for each processor.
func BenchmarkPrefetched(b *testing.B) {
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "r", Algorithm: policy.TokenBucket, Limit: policy.MaxLimit / 10, Per: 10 * time.Second, Burst: 1 << 36, Prefetch: 50 * time.Millisecond},
	}}})
	if err != nil {
		b.Fatal(err)
	}
	l, err := New(redistest.Client(b), policy, Config{})
	if err != nil {
		b.Fatal(err)
	}
	ask := func() bool {
		d, err := l.Allow(b.Context(), "p")
		if err != nil || !d.Allowed {
			b.Errorf("got %+v, %v", d, err)
		}
		return d.Prefetched
	}
	count := func(b *testing.B, prefetched, all int) {
		b.Helper()
		b.ReportMetric(float64(prefetched)/float64(all), "prefetched/decision")
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		all, prefetched := 0, 0
		for b.Loop() {
			if all++; ask() {
				prefetched++
			}
		}
		count(b, prefetched, all)
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				ask()
			}
		})
	})
}
