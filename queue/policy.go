package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policies"
)

// Workers publish the policy that they run as one text, for programs of a release before
// package policies.
const (
	policyKey = "hw:policy"

	// PolicyTTL is how long a published policy stands. Workers publish theirs
	// every hour, so it outlasts a long break of all of them and no more.
	PolicyTTL = 24 * time.Hour
)

// PublishPolicy makes p the policy that programs of an earlier release go by, for PolicyTTL.
// Costs one round trip.
func PublishPolicy(ctx context.Context, rdb redis.UniversalClient, p *throttle.Policy) error {
	if err := rdb.Set(ctx, policyKey, p.YAML(), PolicyTTL).Err(); err != nil {
		return policyError(ctx, "publish the policy", err)
	}
	return nil
}

// PublishedPolicy returns the policy that workers run under, as far as Redis says: the one
// that package policies keeps there, or else what workers of an earlier release published
// last; nil when there is neither. A text that is no policy is a *policies.DamagedError or a
// *throttle.PolicyError. Costs a few round trips.
func PublishedPolicy(ctx context.Context, rdb redis.UniversalClient) (*throttle.Policy, error) {
	store := policies.New(rdb, policies.Config{})
	p, err := store.Now(ctx)
	if err == nil {
		return p, nil
	}
	if !errors.Is(err, policies.ErrNone) {
		return nil, policyError(ctx, "read the limits in force", err)
	}
	var stored *redis.StringCmd
	err = throttle.ReadFromMaster(ctx, rdb, func(pipe redis.Pipeliner) error {
		stored = pipe.Get(ctx, policyKey)
		return nil
	})
	text := []byte(stored.Val())
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, policyError(ctx, "read the published policy", err)
	}
	p, err = throttle.ParsePolicy("Redis key "+policyKey, text)
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
