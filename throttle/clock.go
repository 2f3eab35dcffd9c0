package throttle

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// ServerNow returns the time of the Redis server that keeps the state of a scope, as its replies show it. It is late by the
// shortest delay of a reply. It does no I/O.
func (l *Limiter) ServerNow(scope string) time.Time {
	provider, _, _ := strings.Cut(scope, "/")
	return l.serverTime(wire.Prefix(l.cfg.Prefix, provider))
}

// SyncClock measures the offset of a provider's server clock: with one reply, or with several if the server is far away, of which
// the quickest counts. Call it before the first start, since a single first reply may be slow. It costs one round trip, and a
// second one to a server that is far away. It ignores errors.
func (l *Limiter) SyncClock(ctx context.Context, provider string) {
	if _, cluster := l.rdb.(*redis.ClusterClient); cluster || l.clock() != "" {
		return // a cluster's client cannot say which of its servers is asked
	}
	clock := l.clocks.Of(wire.Prefix(l.cfg.Prefix, provider))
	ask := func() time.Duration {
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
		asked := time.Now()
		at, err := l.rdb.Time(ctx).Result()
		if err != nil {
			return 0
		}
		replied := time.Now()
		clock.Observe(asked, replied, at)
		return replied.Sub(asked)
	}
	if ask() < l.cfg.StartTolerance {
		return
	}
	var all sync.WaitGroup
	for range clockAsks {
		all.Go(func() { ask() })
	}
	all.Wait()
}

// clockAsks is how often a clock is asked for that is far away.
const clockAsks = 48
