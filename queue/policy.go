package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// PublishedPolicy returns the policy that workers run under, as package policystore keeps it in Redis,
// or nil if there is none. The error is a *policystore.DamagedError if the policy cannot be decoded,
// ctx's, or one that wraps throttle.ErrUnavailable. Costs a few round trips.
func PublishedPolicy(ctx context.Context, rdb redis.UniversalClient) (*policy.Policy, error) {
	p, err := policystore.New(rdb, policystore.Config{}).Now(ctx)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, policystore.ErrNone):
		return nil, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("queue: read the limits in force: %w", err)
}
