package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// One process for each provider looks after its waiting tasks: it reads them all, a part a second. Tasks that no longer wait in
// asynq, since somebody has deleted or archived them, lose their places. Tasks that asynq would bring by itself before long, since
// all are later than expected, are put off: they could only go back again. Tasks whose wait is bounded are not, nor is any task while
// this process does not get to dispatch the provider.

const (
	// sweepEach is how often a part is read, and sweepParts in how many parts all are.
	sweepEach, sweepParts = time.Second, 180
	// sweepLeast and sweepMost bound the tasks of a part.
	sweepLeast, sweepMost = 250, 10_000
	// claimFor is how long a process looks after a provider unless it claims it again. claimEach is how often it does, and how often
	// the others try.
	claimFor, claimEach = 30 * time.Second, 10 * time.Second
	// soon is how long before asynq would bring a task that is put off, until putOff at least and putOffMost at most. A whole pass
	// takes less.
	soon, putOff, putOffMost = 5 * time.Minute, 7 * time.Minute, 10 * time.Minute
)

// swept is a provider that this process looks after, or tries to.
type swept struct {
	tasks   *waitlist.Waiting
	mine    bool
	tried   time.Time
	part    int                   // how many tasks to read at once
	counted time.Time             // when part was worked out
	missing map[waitlist.Ref]bool // tasks that were not found once
}

// sweep looks after the waiting tasks of all providers that this process dispatches.
func (d *Dispatcher) sweep() {
	all := map[string]*swept{}
	for asynqx.Sleep(d.cfg.Serving, sweepEach) {
		d.mu.Lock()
		for provider := range all {
			if d.loops[provider] == nil {
				delete(all, provider)
			}
		}
		for provider := range d.loops {
			if all[provider] == nil {
				all[provider] = &swept{tasks: d.list.Waiting(provider), missing: map[waitlist.Ref]bool{}, tried: time.Now().Add(-rand.N(claimEach))}
			}
		}
		d.mu.Unlock()
		for provider, one := range all {
			if err := d.sweepPart(d.cfg.Serving, provider, one); err != nil && !d.stopped() {
				d.cfg.Observer.Failed("sweep")
			}
		}
	}
}

// sweepPart reads the next waiting tasks of a provider, if this process looks after it.
func (d *Dispatcher) sweepPart(ctx context.Context, provider string, s *swept) (err error) {
	if !d.watchdog.works(provider) {
		s.mine = false
		return nil
	}
	if now := time.Now(); now.Sub(s.tried) >= claimEach {
		s.tried = now
		if s.mine, err = d.list.Claim(ctx, provider, claimFor, s.mine); err != nil {
			s.mine = false
			return err
		}
	}
	if !s.mine {
		return nil
	}
	if time.Since(s.counted) > soon/2 {
		count, err := d.list.WaitingIn(ctx, provider, provider)
		if err != nil {
			return err
		}
		s.part, s.counted = int(min(max(sweepLeast, count[0].Tasks/sweepParts), sweepMost)), time.Now()
	}
	tasks, err := s.tasks.Next(ctx, s.part)
	if err != nil {
		return err
	}
	for name, its := range byQueue(tasks, func(r waitlist.Ref) waitlist.Ref { return r }) {
		err = errors.Join(err, d.lookAfter(ctx, name, its, s.missing))
	}
	return err
}

// lookAfter looks after waiting tasks of a queue.
func (d *Dispatcher) lookAfter(ctx context.Context, name string, tasks []waitlist.Ref, missing map[waitlist.Ref]bool) error {
	ids := make([]string, len(tasks))
	for i, ref := range tasks {
		ids[i] = ref.ID
	}
	key := asynqx.QueuePrefix(name) + "scheduled"
	scores, err := d.cfg.Redis.ZMScore(ctx, key, ids...).Result()
	if err != nil {
		return err
	}
	var near, rest []waitlist.Ref
	for i, score := range scores {
		switch {
		case score == 0:
			rest = append(rest, tasks[i])
		case time.Until(time.Unix(int64(score), 0)) < soon && !d.bounded(tasks[i].Scope):
			near = append(near, tasks[i])
		}
	}
	if len(near) > 0 {
		err = d.putOff(ctx, name, near)
	}
	if len(rest) == 0 {
		return err
	}
	return errors.Join(err, d.takeOut(ctx, name, rest, missing))
}

// bounded reports whether a rule bounds the wait of a scope's tasks: asynq must bring each when its wait ends.
func (d *Dispatcher) bounded(scope string) bool {
	if d.cfg.Expires == nil {
		return false
	}
	its, _ := policy.ParseScope(scope)
	rules, _ := d.cfg.Limiter.Policy().Match(its)
	return slices.ContainsFunc(rules, func(b policy.MatchedRule) bool { return b.Rule.MaxWait > 0 })
}

// putOff has asynq bring tasks of a queue later, except those that have a longest wait or a deadline of their own, and keep the locks
// of those that were enqueued with asynq's Unique option.
func (d *Dispatcher) putOff(ctx context.Context, name string, tasks []waitlist.Ref) error {
	read := make([]*redis.SliceCmd, len(tasks))
	err := redisread.FromMaster(ctx, d.cfg.Redis, func(pipe redis.Pipeliner) error {
		for i, ref := range tasks {
			read[i] = pipe.HMGet(ctx, asynqx.QueuePrefix(name)+"t:"+ref.ID, "msg", "unique_key")
		}
		return nil
	})
	if err != nil {
		return err
	}
	var off []redis.Z
	var locks []asynqx.Lock
	var until []time.Time
	for i, its := range read {
		message, _ := its.Val()[0].(string)
		if message == "" || strings.Contains(message, queue.HeaderDeadline) || d.cfg.Expires != nil && strings.Contains(message, queue.HeaderMaxWait) {
			continue
		}
		at := time.Now().Add(putOff + rand.N(putOffMost-putOff))
		off = append(off, redis.Z{Score: float64(asynqx.SecondAtOrAfter(at)), Member: tasks[i].ID})
		if key, _ := its.Val()[1].(string); key != "" {
			locks, until = append(locks, asynqx.Lock{Key: key, ID: tasks[i].ID}), append(until, at)
		}
	}
	if len(off) == 0 {
		return nil
	}
	if err := d.cfg.Redis.ZAddXX(ctx, asynqx.QueuePrefix(name)+"scheduled", off...).Err(); err != nil {
		return err
	}
	return asynqx.ExtendLocks(ctx, d.cfg.Redis, locks, until)
}

// takeOut takes places from tasks that no longer wait in asynq. One that is missing may be about to be enqueued: it loses its place
// if it is missing the next time, too.
func (d *Dispatcher) takeOut(ctx context.Context, name string, tasks []waitlist.Ref, missing map[waitlist.Ref]bool) error {
	states, err := d.states(ctx, name, tasks)
	if err != nil {
		return err
	}
	for i, state := range states {
		ref := tasks[i]
		switch {
		case state == "archived", state == "completed", state == "aggregating", state == "" && missing[ref]:
			delete(missing, ref)
			d.Ended(ref)
		case state == "" && len(missing) < sweepMost:
			missing[ref] = true
		default:
			delete(missing, ref)
		}
	}
	return nil
}
