package throttle

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// SyncClock measures the offset of a provider's server clock: with one reply, or with several if the
// server is far away, of which the quickest counts. Call it before the first start, since a single
// first reply may be slow. Costs one round trip, and a second one to a server that is far away. It
// ignores errors.
func (w Waitlist) SyncClock(ctx context.Context, provider string) {
	clock := w.l.skews.of(keyspace(w.l.cfg.Prefix).provider(provider))
	if _, cluster := w.l.rdb.(*redis.ClusterClient); cluster || w.l.clock() != "" {
		return // a cluster's client cannot say which of its servers is asked
	}
	ask := func() time.Duration {
		ctx, cancel := context.WithTimeout(ctx, w.l.cfg.Timeout)
		defer cancel()
		asked := time.Now()
		at, err := w.l.rdb.Time(ctx).Result()
		if err != nil {
			return 0
		}
		replied := time.Now()
		clock.observe(asked, replied, at)
		return replied.Sub(asked)
	}
	if ask() < w.l.cfg.StartTolerance {
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
