package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
)

// Workers publish the policy that they run, so that what enqueues can check
// against it without having the file.
const (
	policyKey = "hw:policy"

	// PolicyTTL is how long a published policy stands. Workers publish theirs
	// every hour, so it outlasts a long break of all of them and no more.
	PolicyTTL = 24 * time.Hour
)

// PublishPolicy makes p the policy that PublishedPolicy returns, for PolicyTTL.
// Costs one round trip.
func PublishPolicy(ctx context.Context, rdb redis.UniversalClient, p *throttle.Policy) error {
	if err := rdb.Set(ctx, policyKey, p.YAML(), PolicyTTL).Err(); err != nil {
		return policyError(ctx, "publish the policy", err)
	}
	return nil
}

// PublishedPolicy returns the policy that workers published last, or nil when
// there is none. A text that is no policy is a *throttle.PolicyError. Costs one
// round trip.
func PublishedPolicy(ctx context.Context, rdb redis.UniversalClient) (*throttle.Policy, error) {
	text, err := rdb.Get(ctx, policyKey).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, policyError(ctx, "read the published policy", err)
	}
	p, err := throttle.ParsePolicy("Redis key "+policyKey, text)
	if err != nil {
		return nil, fmt.Errorf("queue: the published policy is damaged: %w", err)
	}
	return p, nil
}

func policyError(ctx context.Context, doing string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	return fmt.Errorf("queue: %s: %w", doing, err)
}
