package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// sent is a task that was granted.
type sent struct {
	place   throttle.WaiterRef
	at      time.Time
	asked   time.Time // when the dispatch began: other processes handle what has not come 3 s after that
	hands   time.Time // when it is handed to its server, if it was taken before; zero: it was not
	granted *throttle.Granted
}

// granted records which tasks were granted a start.
func (d *Dispatcher) granted(one *watch, list []throttle.Granted, had capacity, asked time.Time) []throttle.Granted {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken -= had.ahead
	list = slices.DeleteFunc(list, func(g throttle.Granted) bool { // the next poll reports that it has ended meanwhile
		return slices.ContainsFunc(one.over, func(p throttle.WaiterRef) bool { return p.ID == g.ID })
	})
	for _, g := range list {
		one.out[g.ID] = sent{place: g.WaiterRef, at: time.Now(), asked: asked, granted: &g}
	}
	if d.starved.Load() && len(list) < had.ahead {
		d.kickStarved()
	}
	return list
}

// Arrived records that a task has come: it has not ended, whatever was recorded before. It returns the
// task's grant from this process, nil if there is none. The first of a provider's tasks waits until
// the distance of its Redis is known.
func (d *Dispatcher) Arrived(ctx context.Context, task throttle.WaiterRef) *throttle.Granted {
	d.learn(ctx, Provider(task.Scope))
	return d.arrived(Provider(task.Scope), task.ID)
}

// arrived is Arrived without waiting for the distance of a provider's Redis.
func (d *Dispatcher) arrived(provider, ticket string) *throttle.Granted {
	d.Start()
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.watches[provider]
	if one == nil {
		return nil
	}
	if len(one.over) > 0 {
		one.over = slices.DeleteFunc(one.over, func(p throttle.WaiterRef) bool { return p.ID == ticket })
	}
	its := one.out[ticket]
	delete(one.out, ticket)
	if !its.hands.IsZero() {
		d.reach.pickup.note(time.Since(its.hands))
	}
	if time.Since(its.asked) > handedStays+mostReach {
		return nil
	}
	return its.granted
}

// isOut removes a task that was granted its start here, and reports whether it has not come.
func (d *Dispatcher) isOut(one *watch, ticket string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, is := one.out[ticket]
	delete(one.out, ticket)
	return is
}

// claimed makes the next dispatch report that tasks have taken their starts.
func (d *Dispatcher) claimed(provider string, places []throttle.WaiterRef) {
	if d.stopped() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.ensureLoop(provider, hint{in: lookAgain})
	one.runs = append(one.runs, places...)
}

// heedOverdue finds out what happened to tasks that were granted a while ago and have not come. A task
// that waits in asynq goes back to its place. Any other may have started, and nothing of its grant is
// refunded. Tasks that could not be checked are reported again.
func (d *Dispatcher) heedOverdue(one *watch, overdue []throttle.WaiterRef) {
	for name, its := range byQueue(overdue) {
		states, err := d.states(d.cfg.Serving, name, its)
		if err != nil {
			if !d.stopped() {
				d.cfg.Observer.Failed("wake")
			}
			continue
		}
		for i, p := range its {
			switch states[i] {
			case "pending", "scheduled", "retry":
				one.news.Unused = append(one.news.Unused, p.WaiterRef)
			default:
				d.mu.Lock()
				one.runs = append(one.runs, p.WaiterRef)
				d.mu.Unlock()
			}
		}
	}
}

// run brings granted tasks to a server of this process, or into pending if other processes serve their
// queue: those of each queue in one call.
func (d *Dispatcher) run(one *watch, list []throttle.Granted) {
	byQueue := map[string][]throttle.Granted{}
	ids := map[string][]string{}
	var order []string
	for _, g := range list {
		name, id, ok := queue.ReadTicket(g.ID)
		if !ok {
			one.news.Deleted = append(one.news.Deleted, g.WaiterRef)
			continue
		}
		if byQueue[name] == nil {
			order = append(order, name)
		}
		byQueue[name], ids[name] = append(byQueue[name], g), append(ids[name], id)
	}
	if len(order) > 0 {
		far := slices.ContainsFunc(order, func(name string) bool { return !d.cfg.Queues.Owns(name) })
		d.mu.Lock()
		one.far = far
		one.yield.granted(order, d.cfg.Queues.Owns)
		d.mu.Unlock()
	}
	for _, name := range order {
		if g := d.cfg.Servers.Serving(name); g != nil && !d.cfg.Queues.Stands(name) {
			d.cfg.Moves.Go(func() { d.takeGranted(one, g, name, byQueue[name], ids[name]) })
			continue
		}
		outcomes, err := d.releaseInto(name, ids[name])
		d.cfg.Servers.Kick()
		d.tellUnreleased(name, err)
		for i, g := range byQueue[name] {
			d.handleOutcome(one, answer{place: g.WaiterRef, queue: name, id: ids[name][i], became: outcomes[i]})
		}
	}
}

// tellUnreleased logs that granted tasks were not released, if err says so.
func (d *Dispatcher) tellUnreleased(name string, err error) {
	if err == nil || d.stopped() {
		return
	}
	if more, due := d.repeats.Due("release "+name, time.Now()); due {
		d.cfg.Log.Warn("cannot release tasks that are due; they run at their fallback time", "queue", name, "more", more, "error", err)
	}
}

// answer is the outcome of a task that was to be put into pending.
type answer struct {
	place  throttle.WaiterRef
	queue  string
	id     string
	became asynqx.Outcome
}

// handleOutcome handles the outcome of a task that was to be put into pending.
func (d *Dispatcher) handleOutcome(one *watch, a answer) {
	again := d.wasMissed(one, a)
	switch a.became {
	case asynqx.Moved, asynqx.Pending, asynqx.Unknown:
		return
	case asynqx.Active:
		go d.retry(one, a)
		return
	case asynqx.Gone:
		if !again {
			one.news.NotFound = append(one.news.NotFound, a.place)
			break
		}
		d.mu.Lock()
		delete(one.missed, a.place.ID)
		d.mu.Unlock()
		one.news.Deleted = append(one.news.Deleted, a.place)
	case asynqx.Elsewhere:
		one.news.Deleted = append(one.news.Deleted, a.place)
	case asynqx.StandsStill:
		d.heedStill(one, a)
	}
	d.arrived(one.provider, a.place.ID)
}

// mostMissed bounds what is remembered of tasks that were missing once.
const mostMissed = 10_000

// wasMissed reports whether a task was missing the last time too, and records whether it is missing
// now: a task that is missing twice in a row is gone.
func (d *Dispatcher) wasMissed(one *watch, a answer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := one.missed[a.place.ID]
	switch {
	case a.became == asynqx.Gone:
		if len(one.missed) >= mostMissed { // those that other processes were granted the next time stay
			clear(one.missed)
		}
		one.missed[a.place.ID] = true
	case a.became != asynqx.Active:
		delete(one.missed, a.place.ID)
	}
	return was
}

// heedEnded records which tasks have ended since the last poll, where they stood or after they were
// released.
func (d *Dispatcher) heedEnded(one *watch) {
	d.mu.Lock()
	later := one.later
	one.later = nil
	n := min(portion(one.over), max(0, mostGone-len(one.news.Deleted)))
	one.news.Deleted = append(one.news.Deleted, one.over[:n]...)
	one.over = slices.Delete(one.over, 0, n)
	d.mu.Unlock()
	for _, a := range later {
		d.handleOutcome(one, a)
	}
}

// retry releases a task that was active when its turn came. Most often it is on its way back to its
// queue, and does not know yet that its turn has come. Or it has ended by then, for example because its
// max wait has passed.
func (d *Dispatcher) retry(one *watch, a answer) {
	pause := activePause
	for range activeTries {
		if !asynqx.Sleep(d.cfg.Serving, pause) {
			return
		}
		d.mu.Lock()
		_, waiting := one.out[a.place.ID]
		d.mu.Unlock()
		if !waiting {
			return // it has come
		}
		if _, granted, err := d.cfg.Limiter.Waitlist().Standing(d.cfg.Serving, a.place); err == nil && !granted {
			d.isOut(one, a.place.ID) // it has come to another process: it may have failed by now, and waits for its retry
			return
		}
		got, _ := d.cfg.Mover.Release(d.cfg.Serving, a.queue, []string{a.id})
		if a.became = got[0]; a.became != asynqx.Active {
			d.cfg.Servers.Kick()
			break
		}
		pause *= 2
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(one.missed, a.place.ID) // it was there
	switch a.became {
	case asynqx.Active:
		delete(one.out, a.place.ID)
		one.runs = append(one.runs, a.place)
	case asynqx.Gone, asynqx.Elsewhere, asynqx.StandsStill:
		one.later = append(one.later, a)
	default:
		return
	}
	one.kick()
}
