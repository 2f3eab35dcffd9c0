package waitlist

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
)

// Standing reports whether a task has a place in its line, and whether it was granted its start and is in flight, whatever the
// policy says of its scope. It costs one round trip.
func (l *List) Standing(ctx context.Context, task Ref) (queued, granted bool, err error) {
	prefix := l.Prefix(task.Provider())
	var place *redis.FloatCmd
	var flies *redis.BoolCmd
	err = l.Read(ctx, task.Provider(), func(pipe redis.Pipeliner) {
		place = pipe.ZScore(ctx, wire.LineKey(prefix, task.Queue, wire.Path(task.Scope)), task.ID)
		flies = pipe.HExists(ctx, prefix+"flight", task.waiter())
	})
	if err != nil {
		return false, false, err
	}
	return place.Err() == nil, flies.Val(), nil
}

// Claim makes this process the one that looks after a provider's waiting tasks, for the time stay. It returns true for one process
// at a time. With again, the holder extends its claim before the time is over; otherwise it lapses. It costs one round trip.
func (l *List) Claim(ctx context.Context, provider string, stay time.Duration, again bool) (mine bool, err error) {
	set := redis.SetArgs{Mode: "NX", TTL: stay}
	if again {
		set = redis.SetArgs{Mode: "XX", TTL: stay, Get: true}
	}
	var was string
	err = wire.Send(ctx, l.cfg.Redis, l.cfg.Timeout, func(ctx context.Context) (err error) {
		was, err = l.cfg.Redis.SetArgs(ctx, l.Prefix(provider)+"claim", l.cfg.ID, set).Result()
		return err
	})
	switch {
	case errors.Is(err, redis.Nil):
		return false, nil
	case err != nil:
		return false, wire.Unavailable(ctx, "claim the waiting tasks of", provider, err)
	}
	return !again || was == l.cfg.ID, nil
}
