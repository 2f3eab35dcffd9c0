package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

const (
	// gatedLead is how long before its start a task is released to a server that this process can make
	// poll: two round trips to release it, one to take it, one to decide, and a busy machine.
	gatedLead = 20 * time.Millisecond
	// spread is how much earlier a task may be released, so that a call serves several tasks.
	spread = 80 * time.Millisecond
	// mostSpread is the spread of a slow limit, under which a poll grants fewer than fewGranted tasks.
	// With the lead it stays within 250 ms: a start that is further ahead is checked for pauses again.
	mostSpread = 230 * time.Millisecond
	fewGranted = 3

	learnsFor     = 3 * time.Second        // bounds the measurement of Redis's distance; tasks then start by what is known
	lookAgain     = 500 * time.Millisecond // while tasks are on their way
	askAround     = 500 * time.Millisecond
	askAll        = 30 * time.Second // for all providers announced within a day; in between for the latest
	skewed        = 10 * time.Second // the most that clocks of processes differ for the latest to be found at once
	lookAnyway    = time.Minute      // for an announcement that has not been repeated
	announceAgain = time.Hour
	outStays      = 3 * time.Second
	handedStays   = time.Second // a grant may be taken from memory; later another process may have handled the task
	lately        = 50 * time.Millisecond
	mostGone      = 128 // removed from queues by one poll, which should take a millisecond or two
	goneScopes    = 32  // and of so many scopes, since a poll has no room for many more
	mostAtOnce    = 64  // granted ahead by one poll
	nearAtOnce    = 18  // the same plus the tasks that are due, if Redis is near: the next poll is a moment away

	// A task that is being put back when its turn comes is still active. It is tried again activeTries
	// times, with pauses that double, for two seconds in all: putting back takes time on a busy machine,
	// and a task that was already taken to run has lost its place.
	activeTries = 10
	activePause = 2 * time.Millisecond
)

// watch is one provider's loop.
type watch struct {
	provider string
	beat     *beat
	wake     chan struct{} // holds one kick
	all      bool          // check all waiters: limits may have changed
	changed  bool          // limits have changed: a task that cost too much may fit
	wide     time.Duration // the spread of a slow limit
	quiet    bool          // nothing is due: a glance suffices unless there is a kick
	whole    time.Time     // when the last poll that was no glance began
	said     time.Time     // when it was last announced to other processes that tasks wait
	kicked   bool
	idle     bool      // only parked tasks wait
	starved  bool      // tasks were due without room for them
	next     time.Time // when the next poll is due, as far as this process knows
	wanted   time.Time // when a poll was asked for since the last began, which may not have seen the reason; zero: none was
	vacant   bool      // places were given back since
	early    bool      // this process polls before others can know of a reason
	hours    time.Time // when rules begin or end to apply next, by the server's clock
	edge     time.Time // the same by this process's clock
	news     throttle.DispatchRequest
	runs     []throttle.WaiterRef // granted, and already running
	parked   parked
	later    []answer             // granted, tried again, and found ended or standing still
	over     []throttle.WaiterRef // ended instead of waiting
	missed   map[string]bool      // tickets whose task was not found once
	took     time.Duration        // how long the last poll took
	far      bool                 // some of the tasks granted last can only be taken by other processes
	yield    yield
	out      map[string]sent // tasks granted here that have not come here, by ticket
	sweep    sweep
}

// Start starts the loops, once. They run until Config.Serving ends.
func (d *Dispatcher) Start() {
	d.begin.Do(func() {
		beat := d.watchdog.begins(anyProvider)
		go func() {
			defer d.watchdog.ends(beat)
			d.guarded("ask around", func() { d.around(beat) })
		}()
		context.AfterFunc(d.cfg.Serving, d.cfg.Limiter.Waitlist().OnCapacityFreed(d.capacityFreed))
		changed := d.cfg.Limiter.PolicyChanged()
		go d.guarded("heed changes", func() { d.heedChanges(changed) })
	})
}

// heedChanges polls every provider with waiters each time that the limiter gets another policy, since
// turns may have come by it.
func (d *Dispatcher) heedChanges(changed <-chan struct{}) {
	for {
		select {
		case <-d.cfg.Serving.Done():
			return
		case <-changed:
		}
		changed = d.cfg.Limiter.PolicyChanged() // first: it may change again meanwhile
		d.cfg.PolicyChanged()
		d.lookAtAll()
	}
}

// lookAtAll polls every provider that this process polls or that others have announced, and checks all
// waiters.
func (d *Dispatcher) lookAtAll() {
	d.mu.Lock()
	for _, one := range d.watches {
		one.all, one.changed = true, true
		one.kick()
	}
	d.mu.Unlock()
	turns, err := d.cfg.Limiter.Waitlist().ActiveProviders(d.cfg.Serving, time.Time{})
	if err != nil && !d.stopped() {
		d.cfg.Observer.Failed("wake") // announced providers are polled within a minute
	}
	for provider, said := range turns {
		d.look(provider, hint{all: true, said: said})
	}
}

// guarded runs a loop, and runs it again if it panics.
func (d *Dispatcher) guarded(what string, loop func()) {
	for again := true; again; {
		again = false
		func() {
			defer func() {
				if x := recover(); x != nil {
					d.cfg.Observer.Failed("wake")
					d.cfg.Log.Error("dispatcher panicked; restarting", "part", what, "panic", fmt.Sprint(x), "stack", string(debug.Stack()))
					again = asynqx.Sleep(d.cfg.Serving, askAround)
				}
			}()
			loop()
		}()
	}
}

// hint is a reason to poll a provider.
type hint struct {
	in   time.Duration // the time until the poll, at most
	all  bool          // limits may have changed
	said time.Time     // when other processes were informed, if they were
}

// look schedules a poll of a provider.
func (d *Dispatcher) look(provider string, why hint) {
	if d.stopped() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ensureLoop(provider, why)
}

// ensureLoop is look for a caller that holds d.mu. It returns the watch.
func (d *Dispatcher) ensureLoop(provider string, why hint) *watch {
	one := d.watches[provider]
	at := time.Now().Add(max(0, why.in-d.beyond(one != nil && one.far)))
	if one == nil {
		one = &watch{
			provider: provider, wake: make(chan struct{}, 1), missed: map[string]bool{}, next: at, all: why.all, said: why.said,
			beat: d.watchdog.begins(provider), parked: newlyParked(), out: map[string]sent{},
		}
		d.watches[provider] = one
		go func() {
			defer d.watchdog.ends(one.beat)
			d.guarded("provider", func() { d.watch(one) })
		}()
		return one
	}
	one.all = one.all || why.all
	if one.wanted.IsZero() || at.Before(one.wanted) {
		one.wanted = at
	}
	if at.Before(one.next) {
		one.kick()
	}
	return one
}

// capacityFreed records that capacity for a provider's tasks has come free, such as the place of a run
// that ended. No clock could tell when, so the next poll may be far off, and is made now. If it is
// near, it suffices: many runs end while tasks wait for a rate.
func (d *Dispatcher) capacityFreed(provider string) {
	if d.stopped() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.watches[provider]
	if one == nil {
		d.ensureLoop(provider, hint{})
		return
	}
	one.vacant = true
	if time.Until(one.next) > spread {
		one.kick()
	}
}

// Ended records that a task that may have a place in a queue has ended. The tasks behind it then need
// not wait until its turn shows that it is gone.
func (d *Dispatcher) Ended(task throttle.WaiterRef) {
	if d.stopped() {
		return // its place is removed when its turn comes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.ensureLoop(Provider(task.Scope), hint{in: lookAgain})
	one.over = append(one.over, task)
	delete(one.out, task.ID) // it is not expected any more
	if time.Until(one.next) > spread {
		one.kick()
	}
}

func (o *watch) kick() {
	o.kicked = true
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// watch polls a provider for as long as tasks wait for it.
func (d *Dispatcher) watch(one *watch) {
	d.learn(d.cfg.Serving, one.provider)
	for {
		d.heedEnded(one)
		hours := d.heedHours(one)
		d.heedStandstill(one, hours)
		room := d.take()
		req := throttle.DispatchRequest{
			Provider: one.provider, Lead: d.leadOf(one.far), Spread: max(d.window(one.far), one.wide), MinLead: d.from(one.far), Max: room.ahead, MaxReady: room.now,
			Deleted: one.news.Deleted, NotFound: one.news.NotFound, Unused: one.news.Unused, StalledGroups: one.news.StalledGroups, Unpark: one.news.Unpark,
			Skip: func(scope string) bool { return d.cfg.Servers.Refuse(d.cfg.Tenant(scope), room.lent) },
		}
		d.mu.Lock()
		one.early = one.early || one.kicked || one.vacant
		req.OnlyIfDue = one.quiet && !one.kicked
		kicked := one.kicked
		req.CheckAll, one.all, one.kicked, one.starved = one.all || hours, false, false, false
		if !req.OnlyIfDue {
			one.whole = time.Now()
		}
		one.wanted, one.vacant = time.Time{}, false
		req.Claimed, one.runs = one.runs, nil
		d.mu.Unlock()
		got, err := d.dispatched(one, req, room)
		if err == nil {
			one.news, one.parked.any = throttle.DispatchRequest{}, got.Parked
			one.yield.looked(got.Granted, kicked)
			d.heedOverdue(one, got.Overdue)
			d.heedSlow(one)
			d.widen(one, len(got.Granted))
		} else {
			one.parked.back = nil // they have not been tried
			d.mu.Lock()
			one.runs = append(req.Claimed, one.runs...)
			d.mu.Unlock()
		}
		if got.Waiting || got.Parked {
			d.announce(one)
		}
		d.run(one, got.Granted)
		d.sweep(one)
		d.watchdog.looked(one.beat, err)
		wait, waits := d.pause(one, got, room, err)
		lacks := got.ForOthers > 0 || d.lacksRoom(one)
		if one.early && lacks {
			d.cfg.Limiter.Waitlist().PublishActiveSoon(one.provider) // other processes cannot know of this poll, and may start what this process cannot
		}
		one.early = one.early && !lacks && (err != nil || wait == 0) // else its result is known
		if !waits || !d.rest(one, wait) {
			return
		}
	}
}

// learn measures the distance of a provider's Redis and reads its clock, before the first of the
// provider's tasks starts here. Concurrent callers wait for the result.
func (d *Dispatcher) learn(ctx context.Context, provider string) {
	d.mu.Lock()
	learned, known := d.learned[provider]
	if !known {
		if len(d.learned) >= asynqx.MostStates {
			clear(d.learned)
		}
		learned = make(chan struct{})
		d.learned[provider] = learned
	}
	d.mu.Unlock()
	if known {
		select {
		case <-learned:
		case <-ctx.Done():
		case <-d.cfg.Serving.Done():
		}
		return
	}
	defer close(learned)
	ctx, cancel := context.WithTimeout(d.cfg.Serving, learnsFor) // not the task's: other callers wait for it too
	defer cancel()
	d.cfg.Limiter.Waitlist().SyncClock(ctx, provider)
	d.reach.learn(func() error { return d.cfg.Redis.Ping(ctx).Err() })
}

// heedHours reports whether rules have begun or ended to apply since the last poll. Turns may have come
// by that, as by other limits.
func (d *Dispatcher) heedHours(one *watch) bool {
	at, in := d.cfg.Limiter.Waitlist().NextHoursChange(one.provider)
	passed := !one.hours.IsZero() && at.After(one.hours)
	one.hours, one.edge = at, time.Time{}
	if !at.IsZero() {
		one.edge = time.Now().Add(in)
	}
	return passed
}

var errPanicked = errors.New("it panicked")

// dispatched grants starts to the tasks whose turn it is. It frees the room that was reserved for them
// in any case.
func (d *Dispatcher) dispatched(one *watch, req throttle.DispatchRequest, had capacity) (got throttle.Dispatched, err error) {
	err = errPanicked // the result of a panic
	began := time.Now()
	defer func() {
		one.took = time.Since(began)
		if len(got.Granted) > 0 {
			d.reach.dispatch.note(one.took)
			first := &got.Granted[0]
			d.reach.ask.note(first.Starts().Add(-first.Wait).Sub(began))
		}
		if errors.Is(err, errPanicked) {
			d.watchdog.looked(one.beat, err)
		}
		got.Granted = d.granted(one, got.Granted, had, began)
	}()
	return d.dispatch(d.cfg.Serving, req)
}

// pause returns the time until the next poll, and false if there is to be none.
func (d *Dispatcher) pause(one *watch, got throttle.Dispatched, had capacity, err error) (wait time.Duration, waits bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	poll := d.pollEach(one, got)
	wait = max(0, min(one.yield.due(d.due(got, one.far), got.Next), poll))
	if !one.edge.IsZero() {
		wait = min(wait, max(0, time.Until(one.edge)))
	}
	one.quiet = err == nil && d.due(got, one.far) > wait && time.Since(one.whole) < wholeEach*poll
	one.kicked, one.idle = one.kicked || len(one.runs) > 0, false
	switch {
	case d.stopped():
		return 0, false
	case err != nil:
		d.cfg.Observer.Failed("wake")
		wait = lookAgain
	case len(one.news.Deleted)+len(one.news.NotFound)+len(one.news.Unused)+len(one.over) > 0, one.parked.atOnce():
		wait = 0
	case got.Waiting && len(got.Granted) >= had.ahead && got.Next <= 0:
		one.starved = true
		d.starved.Store(true)
		d.burst = len(got.Granted) > had.ahead
		wait = lookAgain // or when places are free
		if d.worthALook() {
			wait = 0
		}
	case !got.Waiting && got.Parked && !one.kicked && one.wanted.IsZero() && len(one.out) == 0:
		one.idle = true // until their queues go on
		d.rests(one)
		wait = asynqx.StateStays
	case !got.Waiting && !one.kicked && one.wanted.IsZero() && len(one.out) == 0:
		delete(d.watches, one.provider)
		d.rests(one)
		return 0, false
	case !got.Waiting:
		wait = lookAgain // tasks on their way may not come
	}
	if err == nil && !one.starved {
		wait = one.sooner(wait)
	}
	one.next = time.Now().Add(wait)
	if err == nil {
		d.watchdog.rests(one.beat, wait)
	}
	return wait, true
}

// due returns the time until the next poll for the next waiters. It is shorter the farther this process
// is from Redis.
func (d *Dispatcher) due(got throttle.Dispatched, far bool) time.Duration {
	in := got.Next - d.beyond(far)
	if in < gatedLead && len(got.Granted) == 0 { // do not poll again and again for what no clock can tell
		return min(got.Next, gatedLead)
	}
	return in
}

// sooner returns the time until the next poll, given the hints that came while a poll was under way.
// That poll may not have seen their reasons.
func (o *watch) sooner(wait time.Duration) time.Duration {
	if o.vacant && wait > spread {
		return 0
	}
	if o.wanted.IsZero() {
		return wait
	}
	return min(wait, max(0, time.Until(o.wanted)))
}

func (d *Dispatcher) rest(one *watch, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-one.wake:
	case <-d.cfg.Serving.Done():
		return false
	}
	return true
}
