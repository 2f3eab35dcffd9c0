package throttle

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// SyncClock asks a provider's server what time it is: once, or several times where it is far away. The quickest of some
// replies says when starts come, and the first alone may be a slow one. It is to be called before the first start. Costs one
// round trip, and a second one to a server that is far; what does not answer is let be.
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
