package asynqx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// counted is an argument that counts how often it was written: the client may send a call more than
// once without the knowledge of its caller or its hooks. It must not be copied.
type counted struct {
	text    string
	written atomic.Int32
}

// MarshalBinary returns what go-redis writes, and counts the call.
func (c *counted) MarshalBinary() ([]byte, error) {
	c.written.Add(1)
	return []byte(c.text), nil
}

// String returns what a hook of the client shows.
func (c *counted) String() string { return c.text }

// ownLease is the lease of one poll of asynq's. If its reply is lost, a lease with a fraction of its
// own identifies what the poll took.
type ownLease struct {
	counted

	own bool
}

// lost reports whether the poll may have taken a task that answer does not contain. An answer from
// Redis contains what was taken, or says that nothing was.
func (l *ownLease) lost(answer *redis.Cmd) bool {
	written, err := l.written.Load(), answer.Err()
	var reply redis.Error
	return l.own && (written > 1 || written > 0 && err != nil && !errors.As(err, &reply))
}

// owned returns the arguments of a poll under a lease of its own; asynq provides the second at which
// its lease ends.
func (g *Client) owned(args []any) (*ownLease, []any) {
	ends, is := args[0].(int64)
	if !is {
		return &ownLease{counted: counted{text: fmt.Sprint(args[0])}}, args
	}
	lease := &ownLease{counted: counted{text: ownSecond(time.Unix(ends, 0))}, own: true}
	args = slices.Clone(args)
	args[0] = lease
	return lease, args
}

// askFor sends asynq's poll n times in one round trip, each under a lease of its own, and gives back
// what they took and did not return.
func (g *Client) askFor(ctx context.Context, queue string, n int, args []any, look script) []found {
	leases, all := make([]*ownLease, n), make([]found, n)
	send := func(rdb redis.Scripter) {
		for i := range all {
			lease, args := g.owned(args)
			leases[i], all[i] = lease, found{lease.text, look(ctx, rdb, args)}
		}
	}
	if n == 1 {
		send(g.UniversalClient)
	} else {
		pipe := g.Pipeline()
		send(pipe)
		execute(ctx, pipe)
	}
	for i, one := range all {
		if lease := leases[i]; lease.lost(one.answer) {
			brought, _ := one.answer.Text()
			g.cfg.Moves.Go(func() { g.giveBackLost(queue, lease, brought) })
		}
	}
	return all
}

// giveBackLost puts tasks back into pending that Redis has handed out under a lease by a reply that
// was lost. It tries for the time of that lease, and once if the server ends: after that asynq's
// recoverer brings them back.
func (g *Client) giveBackLost(queue string, lease *ownLease, brought string) {
	ids, err := g.under(queue, lease.text)
	for began, pause := time.Now(), TryPause; MayPass(err) && time.Since(began) < LeaseFor && Sleep(g.Serving, pause); pause = min(2*pause, TryMaxPause) {
		ids, err = g.under(queue, lease.text)
	}
	if err != nil {
		g.cfg.Log.Warn("cannot look for a task lost in a dequeue; asynq recovers it when its lease ends", "queue", QueueName(queue), "error", err)
		return
	}
	var lost []*Handout
	for _, id := range ids {
		if brought == "" || id != messageID(brought) {
			lost = append(lost, &Handout{Queue: queue, ID: id, Lease: lease.text})
		}
	}
	// If there are more than were taken, another process has the same lease by chance.
	if len(lost) > 0 && len(lost) <= int(lease.written.Load()) && g.Pacer.giveBack != nil {
		g.Pacer.giveBack(lost)
	}
}

// under returns the ids of tasks that are active under a lease.
func (g *Client) under(queue, lease string) ([]string, error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(g.Serving), TryFor)
	defer cancel()
	return g.ZRangeArgs(bounded, redis.ZRangeArgs{Key: queue + "lease", ByScore: true, Start: lease, Stop: lease}).Result()
}
