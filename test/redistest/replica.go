package redistest

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
)

// LaggingReplica returns a cluster client that reads from a replica where it may, and clients of
// the master and of the replica, which hears of nothing but what the test writes there.
func LaggingReplica(t testing.TB) (reads *redis.ClusterClient, master, replica *redis.Client) {
	t.Helper()
	first, second := NewServer(t), NewServer(t)
	nodes := []redis.ClusterNode{{Addr: first.Addr()}, {Addr: second.Addr()}}
	reads = redis.NewClusterClient(&redis.ClusterOptions{
		ReadOnly: true,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: lastSlot, Nodes: nodes}}, nil
		},
	})
	return closing(t, reads), first.Client(t), second.Client(t)
}

const lastSlot = 16383
