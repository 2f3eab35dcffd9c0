package policy

import (
	"testing"
	"time"
)

// "the burst of a token bucket, the limit of any other"
func TestRuleCapacity(t *testing.T) {
	t.Parallel()
	for i, row := range []struct {
		rule Rule
		want int64
	}{
		0: {Rule{Algorithm: TokenBucket, Limit: 100, Per: time.Second, Burst: 7}, 7},
		1: {Rule{Algorithm: TokenBucket, Limit: 100, Per: time.Second}, 1}, // "Defaults to 1"
		2: {Rule{Algorithm: SlidingWindow, Limit: 100, Per: time.Second}, 100},
		3: {Rule{Algorithm: FixedWindow, Limit: 100, Per: time.Second}, 100},
		4: {Rule{Algorithm: Concurrency, Limit: 4}, 4},
		5: {Rule{Algorithm: FixedWindow, Per: time.Second}, 0},
	} {
		if got := row.rule.Capacity(); got != row.want {
			t.Errorf("%d: got %d, want %d", i, got, row.want)
		}
	}
}

// "Defaults to …": what the comments of Rule say is what a Policy fills in.
func TestRuleDefaults(t *testing.T) {
	t.Parallel()
	for i, row := range []struct{ rule, want Rule }{
		0: {Rule{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: 1}, Rule{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: 1, Burst: 1, OnRedisError: FailClosed, Unit: Requests}},
		1: {Rule{Name: "r", Algorithm: Concurrency}, Rule{Name: "r", Algorithm: Concurrency, Lease: 30 * time.Second, OnRedisError: FailClosed}},
		2: {Rule{Name: "r", Algorithm: FixedWindow, OnRedisError: FailShare}, Rule{Name: "r", Algorithm: FixedWindow, OnRedisError: FailShare, Unit: Requests}},
		3: {Rule{Name: "r", Unlimited: true}, Rule{Name: "r", Unlimited: true}},
	} {
		if got := row.rule.withDefaults(); got != row.want {
			t.Errorf("%d: got %+v, want %+v", i, got, row.want)
		}
	}
}
