package throttle

import "time"

// Algorithm names the way a rule counts.
type Algorithm string

// The algorithms that a rule can have.
const (
	TokenBucket   Algorithm = "token-bucket"
	SlidingWindow Algorithm = "sliding-window"
	FixedWindow   Algorithm = "fixed-window"
	Concurrency   Algorithm = "concurrency"
)

// FailurePolicy says what a rule does when Redis cannot answer.
type FailurePolicy string

// The failure policies that a rule can have.
const (
	FailClosed FailurePolicy = "closed"
	FailOpen   FailurePolicy = "open"
	FailShare  FailurePolicy = "share"
)

// Rule is one limit at one level of a scope. It is a comparable value.
type Rule struct {
	Name         string
	Algorithm    Algorithm
	Limit        int64
	Per          time.Duration
	Burst        int64
	Lease        time.Duration
	OnRedisError FailurePolicy
	Margin       time.Duration
	MaxWait      time.Duration
	Unlimited    bool
}

// Capacity returns the largest cost, in units, that the rule can ever admit:
// the burst of a token bucket, the limit of any other rule.
func (r Rule) Capacity() int64 { return 0 }
