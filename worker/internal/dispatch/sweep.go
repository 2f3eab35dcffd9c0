package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// sweep finds waiting and parked tasks of one provider that no longer exist. asynq gives no notice when
// a task is deleted or archived by hand, so the task would count in estimates until its turn.
//
// For each provider one process of all reads the queues, and every process checks the tasks that it has
// released and that have not come. A task that is not found may be about to exist: it has its place in
// the queue before it is enqueued. So a missing task is looked for twice.
type sweep struct {
	busy   bool      // one is under way; under Dispatcher.mu
	began  time.Time // when the last one began
	whole  time.Time // when the last one that read queues began
	line   *throttle.Waiting
	parks  bool      // some tasks are parked
	offset int       // where the next page of parked tasks begins
	until  time.Time // this process reads the queues until then
	mine   bool      // it did so at its last claim
	missed []throttle.WaiterRef
}

const (
	// sweepEach is how often queues are read, sweepMost how many of their tasks at once, so that 10,000
	// waiting tasks are checked each second, and sweepParked how many parked ones.
	sweepEach   = 900 * time.Millisecond
	sweepMost   = 10_000
	sweepParked = 1000
	// sweepAgain is the time before a missing task is looked for again.
	sweepAgain = 400 * time.Millisecond
	// sweepClaim is how long a process that died keeps others from reading the queues.
	sweepClaim = 3 * time.Second
	// sweepBatch is how many tasks one command or one pipeline asks for. Up to fewTasks are asked for one
	// by one.
	sweepBatch, fewTasks = 500, 2
)

// sweep starts a sweep if it is due and none is under way. It does not block.
func (d *Dispatcher) sweep(one *watch) {
	if d.stopped() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s, now := &one.sweep, time.Now()
	if s.busy || now.Sub(s.whole) < sweepEach && (now.Sub(s.began) < sweepAgain || len(s.missed)+len(d.late(one.provider)) == 0) {
		return
	}
	s.busy, s.began, s.parks = true, now, one.parked.any
	go d.guarded("sweep", func() {
		err := d.sweepOnce(d.cfg.Serving, one)
		d.mu.Lock()
		s.busy = false
		d.mu.Unlock()
		if err != nil && !d.stopped() {
			d.cfg.Observer.Failed("sweep")
		}
	})
}

// sweepOnce looks for the tasks that were missing, for those that were released and have not come, and,
// if it is due, for a part of the waiting tasks.
func (d *Dispatcher) sweepOnce(ctx context.Context, one *watch) error {
	s := &one.sweep
	d.mu.Lock()
	missed, late := s.missed, d.late(one.provider)
	d.mu.Unlock()
	s.missed = nil
	gone, _, err := d.ended(ctx, missed, true)
	places := late
	if now := time.Now(); err == nil && now.Sub(s.whole) >= sweepEach {
		s.whole = now
		var some []throttle.WaiterRef
		some, err = d.readLine(ctx, one)
		places = append(places, some...)
	}
	if err != nil {
		return err
	}
	over, missing, err := d.ended(ctx, places, false)
	known := map[throttle.WaiterRef]bool{} // looked for already
	for _, p := range missed {
		known[p] = true
	}
	s.missed = slices.DeleteFunc(missing, func(p throttle.WaiterRef) bool { return known[p] })
	return errors.Join(err, d.bury(ctx, one, append(gone, over...)))
}

// late returns the tasks of a provider that were released here some time ago and have not come. d.mu is
// held.
func (d *Dispatcher) late(name string) (places []throttle.WaiterRef) {
	one := d.watches[name]
	if one == nil {
		return nil
	}
	for _, r := range one.out {
		if time.Since(r.at) > sweepAgain {
			places = append(places, r.place)
		}
	}
	return places
}

// readLine returns some of the waiters, if this process is the one that reads them.
func (d *Dispatcher) readLine(ctx context.Context, one *watch) ([]throttle.WaiterRef, error) {
	s, limiter := &one.sweep, d.cfg.Limiter
	if now := time.Now(); now.Add(sweepEach).After(s.until) {
		mine, err := limiter.Waitlist().Claim(ctx, one.provider, sweepClaim, s.mine)
		if s.mine = mine; err != nil || !mine {
			return nil, err
		}
		s.until = now.Add(sweepClaim)
	}
	if s.line == nil {
		s.line = limiter.Waitlist().Waiting(one.provider)
	}
	places, err := s.line.Next(ctx, sweepMost)
	if err != nil || !s.parks {
		return places, err
	}
	parked, err := d.readParked(ctx, one)
	return append(places, parked...), err
}

// readParked returns some of the parked tasks, and the following ones at the next call.
func (d *Dispatcher) readParked(ctx context.Context, one *watch) ([]throttle.WaiterRef, error) {
	s := &one.sweep
	page, err := d.cfg.Limiter.Waitlist().Parked(ctx, one.provider, s.offset, sweepParked)
	s.offset += len(page)
	if len(page) < sweepParked {
		s.offset = 0
	}
	return slices.DeleteFunc(page, func(p throttle.WaiterRef) bool { // the last place of a queue has no task
		_, id, _ := queue.ReadTicket(p.ID)
		return id == ""
	}), err
}

// ended returns the places whose tasks have ended but are retained, and the places whose tasks are
// missing. With again missing tasks count as ended.
func (d *Dispatcher) ended(ctx context.Context, places []throttle.WaiterRef, again bool) (ended, missing []throttle.WaiterRef, err error) {
	for name, its := range byQueue(places) {
		for some := range slices.Chunk(its, sweepBatch) {
			some, err = d.notWaiting(ctx, name, some)
			if err != nil {
				return ended, missing, err
			}
			states, err := d.states(ctx, name, some)
			if err != nil {
				return ended, missing, err
			}
			for i, state := range states {
				switch state {
				case "archived", "completed", "aggregating":
					ended = append(ended, some[i].WaiterRef)
				case "":
					missing = append(missing, some[i].WaiterRef)
				}
			}
		}
	}
	if again {
		return append(ended, missing...), nil, nil
	}
	return ended, missing, nil
}

// inQueue is a place and the id of its task.
type inQueue struct {
	throttle.WaiterRef
	id string
}

// byQueue groups places by the queues of their tasks. A ticket that Headway did not make gets an
// empty id, which no task has.
func byQueue(places []throttle.WaiterRef) map[string][]inQueue {
	sorted := map[string][]inQueue{}
	for _, p := range places {
		name, id, _ := queue.ReadTicket(p.ID)
		sorted[name] = append(sorted[name], inQueue{p, id})
	}
	return sorted
}

// notWaiting drops the tasks that are in asynq's sets of waiting tasks, as most are. It costs two
// commands for many.
func (d *Dispatcher) notWaiting(ctx context.Context, name string, its []inQueue) ([]inQueue, error) {
	for _, set := range []string{"scheduled", "retry"} {
		if len(its) <= fewTasks {
			break
		}
		ids := make([]string, len(its))
		for i, one := range its {
			ids[i] = one.id
		}
		scores, err := d.cfg.Redis.ZMScore(ctx, "asynq:{"+name+"}:"+set, ids...).Result()
		if asynqx.MayPass(err) || ctx.Err() != nil {
			return nil, err
		} else if err != nil || len(scores) != len(its) {
			break // the server refuses the command: each task is checked by itself
		}
		var rest []inQueue
		for i, one := range its {
			if scores[i] == 0 { // asynq's are seconds since the epoch
				rest = append(rest, one)
			}
		}
		its = rest
	}
	return its, nil
}

// states returns asynq's states of tasks, "" for a task that does not exist. It costs one round trip.
func (d *Dispatcher) states(ctx context.Context, name string, its []inQueue) ([]string, error) {
	if len(its) == 0 {
		return nil, nil
	}
	states := make([]*redis.StringCmd, len(its))
	err := redisread.FromMaster(ctx, d.cfg.Redis, func(pipe redis.Pipeliner) error {
		for i, one := range its {
			states[i] = pipe.HGet(ctx, "asynq:{"+name+"}:t:"+one.id, "state")
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	out := make([]string, len(its))
	for i := range its {
		out[i] = states[i].Val()
		if err := states[i].Err(); err != nil && !errors.Is(err, redis.Nil) {
			out[i] = "unknown"
		}
	}
	return out, nil
}

// bury removes places, some at a time.
func (d *Dispatcher) bury(ctx context.Context, one *watch, places []throttle.WaiterRef) error {
	for len(places) > 0 {
		n := portion(places)
		if _, err := d.dispatch(ctx, throttle.DispatchRequest{Provider: one.provider, Lead: d.Lead(), Spread: d.spread(), Deleted: places[:n]}); err != nil {
			return err
		}
		for _, p := range places[:n] {
			d.arrived(one.provider, p.ID)
		}
		d.mu.Lock()
		one.kick()
		d.mu.Unlock()
		if err := d.revive(ctx, places[:n]); err != nil {
			return err
		}
		places = places[n:]
	}
	return nil
}

// portion returns how many of the ended tasks one poll removes from their queues.
func portion(places []throttle.WaiterRef) int {
	scopes := map[string]bool{}
	for n, p := range places[:min(len(places), mostGone)] {
		if scopes[p.Scope] = true; len(scopes) > goneScopes {
			return n
		}
	}
	return min(len(places), mostGone)
}

// revive finds tasks whose id was enqueued again just before its place was removed, so that no task
// waits without a place. If such a task was due, it is picked up and goes to the end of its queue. If
// it has a time of its own, it waits for that.
func (d *Dispatcher) revive(ctx context.Context, places []throttle.WaiterRef) error {
	for name, its := range byQueue(places) {
		states, err := d.states(ctx, name, its)
		if err != nil {
			return err
		}
		var again []string
		for i, state := range states {
			if state == "scheduled" && d.wasDue(name, its[i].id) {
				again = append(again, its[i].id)
			}
		}
		if len(again) > 0 {
			if _, err := d.cfg.Mover.Release(ctx, name, again); err != nil {
				return err
			}
			d.cfg.Servers.Kick()
		}
	}
	return nil
}

// wasDue reports whether a task could start when it was enqueued, except for its limits.
func (d *Dispatcher) wasDue(name, id string) bool {
	info, err := d.cfg.Inspector.GetTaskInfo(name, id)
	if err != nil {
		return false
	}
	spec, found, err := queue.ReadSpec(asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers))
	return err == nil && found && !spec.Due.IsZero() && !spec.Due.After(time.Now())
}
