package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// follow has a cluster client learn anew who owns which slots, after a call that no server
// answered. A master that is gone sends nobody to the one that took over, and go-redis would go
// on dialling it until its map is ClusterStateReloadInterval old, a minute by default. The
// client reloads in the background, once at a time; other clients have no such map.
func follow(ctx context.Context, rdb redis.UniversalClient, err error) {
	if err == nil || errors.Is(err, context.Canceled) || redis.HasErrorPrefix(err, "") { // a server's own answer
		return
	}
	if cluster, ok := rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.WithoutCancel(ctx))
	}
}

const (
	// movingFor is for how long a call is sent again while its slot moves. A slot of ten
	// thousand keys moves in less. A caller waits no longer, since one that waits may take
	// the place of another whose provider is served.
	movingFor = time.Second

	firstMoving = 10 * time.Millisecond
	lastMoving  = 100 * time.Millisecond
)

// moving says whether a call was refused because its slot is on its way from one master to
// another, with keys on both. Nothing was done then. go-redis itself gives up within 50 ms.
func moving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN") || redis.HasErrorPrefix(err, "ASK ")
}

// whileMoving sends a call again, after pauses that double. Its caller waits in its own
// goroutine, so that calls of other slots go on.
func (r *runner) whileMoving(ctx context.Context, c call, err error) (reply []int64, _ error) {
	end := time.Now().Add(min(movingFor, r.timeout))
	for pause := firstMoving; moving(err) && time.Now().Add(pause).Before(end); pause = min(2*pause, lastMoving) {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
		reply, err = r.once(ctx, c)
	}
	return reply, err
}
