package throttle

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// records returns the keys of attempts.
func records(t *testing.T, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	keys, err := rdb.Keys(context.Background(), prefix+":*@*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func slottedAt(t *testing.T, prefix string) (*Limiter, redis.UniversalClient, string) {
	t.Helper()
	rdb := redistest.Client(t)
	l, err := New(rdb, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1000, Per: time.Second, Burst: 1000}), Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return l, rdb, prefix
}

// "150 at most": a record under Headway's own prefix, or one as long, as Redis counts it. Allocations are of a
// few sizes, so a longer prefix can't be taken off.
func TestAttemptsTakeLittle(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slottedAt(t, "h1")
	for range 2 {
		d, err := l.Allow(context.Background(), "p/x")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Refund(context.Background(), d.Grant); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Allow(context.Background(), "p/x"); err != nil {
			t.Fatal(err)
		}
	}
	keys := records(t, rdb, prefix)
	if len(keys) == 0 {
		t.Fatal("no attempt is recorded")
	}
	for _, key := range keys { // of what was given back, too
		if ttl := rdb.PTTL(context.Background(), key).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("%s lasts %v", key, ttl)
		}
		if n := rdb.MemoryUsage(context.Background(), key).Val(); n > 150 {
			t.Errorf("%s takes %d bytes", key, n)
		}
	}
}
