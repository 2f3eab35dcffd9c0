// Package redisread reads from Redis what must not be out of date.
package redisread

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// FromMaster sends plain reads of the keys of one hash tag together, and has the master
// answer them. A cluster client with ReadOnly, RouteByLatency or RouteRandomly would ask a
// replica, which may be behind: by it a task would wait that could start, or start under limits
// of yesterday. Such a client sends them as a transaction, which replicas are not asked for; any
// other sends them as they are. Commands without a key, such as TIME, are not for it.
//
// Costs one round trip. The error is the first of the commands'.
func FromMaster(ctx context.Context, rdb redis.UniversalClient, read func(redis.Pipeliner) error) error {
	send := rdb.Pipelined
	if cluster, ok := rdb.(interface{ Options() *redis.ClusterOptions }); ok && cluster.Options().ReadOnly {
		send = rdb.TxPipelined
	}
	_, err := send(ctx, read)
	return err
}
