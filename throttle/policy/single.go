package policy

import (
	"fmt"
	"time"
)

// Single returns a policy of one rule at one provider, the first name of scopes. Everything that is
// spent from the provider or from a scope below it counts under the rule. The error is an *Error.
func Single(provider string, rule Rule) (*Policy, error) {
	return New(UnmatchedDeny, map[string]ScopeConfig{provider: {Rules: []Rule{rule}}})
}

// PerSecond returns a policy under which at most limit units are spent from a provider in any second:
//
//	limiter, err := throttle.New(rdb, policy.PerSecond("payments", 100), throttle.Config{})
//
// It panics where the provider is no name, or the limit is not 0 to MaxLimit.
func PerSecond(provider string, limit int64) *Policy { return window(provider, limit, time.Second) }

// PerMinute is PerSecond for any minute.
func PerMinute(provider string, limit int64) *Policy { return window(provider, limit, time.Minute) }

// PerHour is PerSecond for any hour.
func PerHour(provider string, limit int64) *Policy { return window(provider, limit, time.Hour) }

func window(provider string, limit int64, per time.Duration) *Policy {
	p, err := Single(provider, Rule{Name: "limit", Algorithm: SlidingWindow, Limit: limit, Per: per})
	if err != nil {
		panic(fmt.Sprintf("policy: %d per %s of %q: %v", limit, per, provider, err))
	}
	return p
}
