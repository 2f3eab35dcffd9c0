// Package redisread reads data from Redis that must be up to date.
package redisread

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// FromMaster sends reads of the keys of one hash tag together, and the master answers them. A cluster client with ReadOnly,
// RouteByLatency or RouteRandomly would otherwise ask a replica, which may lag behind: a task could start under old limits. With such a
// client the reads are a transaction, which never goes to a replica. FromMaster is not for commands without a key, such as TIME.
//
// Costs one round trip. The error is that of the first command that failed.
func FromMaster(ctx context.Context, rdb redis.UniversalClient, read func(redis.Pipeliner) error) error {
	send := rdb.Pipelined
	if cluster, ok := rdb.(interface{ Options() *redis.ClusterOptions }); ok && cluster.Options().ReadOnly {
		send = rdb.TxPipelined
	}
	_, err := send(ctx, read)
	return err
}

// One sends one read as FromMaster does, and returns its command.
func One[C redis.Cmder](ctx context.Context, rdb redis.UniversalClient, read func(redis.Pipeliner) C) (cmd C, err error) {
	err = FromMaster(ctx, rdb, func(p redis.Pipeliner) error {
		cmd = read(p)
		return nil
	})
	return cmd, err
}
