package throttle

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

const (
	memberStay = 15 * time.Second
	memberBeat = 5 * time.Second
)

type memberCount struct{ seen atomic.Int64 }

// live is how many processes were last seen, 0 when none ever was.
func (m *memberCount) live() int64 { return m.seen.Load() }

// Heartbeat counts this process among those that share the limits, until ctx ends. When Redis is unavailable, a rule whose failure policy
// is share divides its limit by the number of these processes; without Heartbeat it is closed. Heartbeat blocks: run it in a goroutine. It
// retries after errors, and the last count stays. Costs one round trip every five seconds.
func (l *Limiter) Heartbeat(ctx context.Context) {
	id := NewID()
	ticker := time.NewTicker(memberBeat)
	defer ticker.Stop()
	for {
		if live, err := l.join(ctx, id, memberStay); err == nil {
			l.members.seen.Store(max(1, live))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			l.members.seen.Store(0)                          // nobody counts it any more: it has no share
			_, _ = l.join(context.WithoutCancel(ctx), id, 0) // if it fails, the stay runs out
			return
		}
	}
}

func (l *Limiter) join(ctx context.Context, id string, stay time.Duration) (int64, error) {
	var reply any
	err := wire.Send(ctx, l.rdb, l.cfg.Timeout, func(ctx context.Context) (err error) {
		reply, err = wire.RunKeys(ctx, l.rdb, lua.Heartbeat, []string{l.cfg.Prefix + ":members"}, l.clock(), id, stay.Microseconds())
		return err
	})
	if err != nil {
		return 0, err
	}
	list, _ := reply.([]any)
	if len(list) != 1 {
		return 0, wire.ErrReply
	}
	live, _ := list[0].(int64)
	return live, nil
}
