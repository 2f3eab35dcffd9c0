package worker

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ownLease is the lease of one of asynq's looks, with a fraction of its own: what the look took is found by it where
// its reply is lost. The client may send a look more than once and tells nobody, so the lease counts how often it was
// written. It is not to be copied.
type ownLease struct {
	text    string
	written atomic.Int32
}

// MarshalBinary is what go-redis writes.
func (l *ownLease) MarshalBinary() ([]byte, error) {
	l.written.Add(1)
	return []byte(l.text), nil
}

// String is what a hook of the client shows.
func (l *ownLease) String() string { return l.text }

// owned returns the arguments of a look under a lease of its own. asynq gives the second that its lease ends.
func owned(args []any) (*ownLease, []any) {
	lease := &ownLease{text: fmt.Sprint(args[0])}
	if ends, is := args[0].(int64); is {
		lease.text = ownSecond(time.Unix(ends, 0))
	}
	args = slices.Clone(args)
	args[0] = lease
	return lease, args
}

// found has what a look took and did not bring given back, and returns its answer.
func (g *guard) found(queue string, lease *ownLease, answer *redis.Cmd) *redis.Cmd {
	if resent := lease.written.Load() > 1; resent || mayPass(answer.Err()) {
		brought, _ := answer.Text()
		go g.giveBackLost(queue, lease.text, brought)
	}
	return answer
}

// giveBackLost puts tasks into pending that Redis has handed out under a lease by a reply that was lost, once Redis answers. In
// the time of a lease it has or has not: then asynq brings them.
func (g *guard) giveBackLost(queue, lease, brought string) {
	ctx, cancel := context.WithTimeout(g.serving, asynqLease)
	defer cancel()
	ids, err := g.under(ctx, queue, lease)
	for pause := guardPause; mayPass(err) && sleep(ctx, pause); pause = min(2*pause, guardMaxPause) {
		ids, err = g.under(ctx, queue, lease)
	}
	var lost []*handout
	for _, id := range ids {
		if brought == "" || id != messageID(brought) {
			lost = append(lost, &handout{queue: queue, id: id, lease: lease})
		}
	}
	if len(lost) > 0 && g.gate.giveBack != nil {
		g.gate.giveBack(lost)
	}
}

// under returns the ids of tasks that are active under a lease.
func (g *guard) under(ctx context.Context, queue, lease string) ([]string, error) {
	bounded, cancel := context.WithTimeout(ctx, guardTry)
	defer cancel()
	return g.ZRangeArgs(bounded, redis.ZRangeArgs{Key: queue + "lease", ByScore: true, Start: lease, Stop: lease}).Result()
}
