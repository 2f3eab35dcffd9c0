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
	// gatedLead is how long before its start a task is released to a server whose
	// looks this process can bring about: two round trips to release it, one to take
	// it, one to decide, and a busy machine.
	gatedLead = 20 * time.Millisecond
	// spread is how much earlier it may be, so that a call serves several tasks.
	spread = 80 * time.Millisecond
	// mostSpread is the spread of a slow limit, one of which a look grants fewer than fewGranted tasks. With the lead it stays
	// within 250 ms: a start that is further ahead is checked for pauses again.
	mostSpread = 230 * time.Millisecond
	fewGranted = 3

	learnsFor     = 3 * time.Second        // how far away Redis is: then tasks start by what is known
	lookAgain     = 500 * time.Millisecond // while somebody is on the way
	askAround     = 500 * time.Millisecond
	askAll        = 30 * time.Second // for those who were announced within a day; in between for the latest
	skewed        = 10 * time.Second // what clocks of processes differ by at most, for the latest to be found at once
	lookAnyway    = time.Minute      // at an announcement that has not been repeated
	announceAgain = time.Hour
	outStays      = 3 * time.Second
	handedStays   = time.Second // a grant may be taken from memory: later somebody else may have seen to the task
	lately        = 50 * time.Millisecond
	mostGone      = 128 // taken out of line by one look, which is to take a millisecond or two
	goneScopes    = 32  // and of so many scopes, as a look has no room for many more
	mostAtOnce    = 64  // granted ahead by one look
	nearAtOnce    = 18  // the same and those whose start has come, beside Redis: the next look is a moment away

	// A task that is being put back while its turn comes is still active: it is
	// tried again so often, after a pause that doubles: for two seconds in all, since on a busy machine
	// that takes its time, and one that is taken to run already has lost its place.
	activeTries = 10
	activePause = 2 * time.Millisecond
)

// watch is one provider's loop.
type watch struct {
	provider string
	beat     *beat
	wake     chan struct{} // holds one kick
	all      bool          // look at every round: limits may have changed
	changed  bool          // limits have: who was too dear may fit
	wide     time.Duration // the spread of a slow limit
	quiet    bool          // nothing is due: a glance will do, if nobody kicks
	whole    time.Time     // when the last look began that was no glance
	said     time.Time     // when processes were last told that somebody waits
	kicked   bool
	idle     bool      // nobody waits but those who are parked
	starved  bool      // tasks were due that there was no room for
	next     time.Time // when the next look is due, as far as this process knows
	wanted   time.Time // when one was asked for since the last began, which may not have seen why; zero: none was
	vacant   bool      // places were given back since
	early    bool      // this process looks before others can know of a reason
	hours    time.Time // when rules begin or end to hold next, by the server's clock
	edge     time.Time // the same by ours
	news     throttle.DispatchRequest
	runs     []throttle.WaiterRef // granted, and found to run already
	parked   parked
	later    []answer             // granted, tried again, and found to have ended, or to stand still
	over     []throttle.WaiterRef // ended instead of waiting
	missed   map[string]bool      // tickets whose task was not there once
	took     time.Duration        // the last look
	far      bool                 // of those granted last, some only other processes take
	yield    yield
	out      map[string]sent // tasks granted here that have not come here, by ticket
	sweep    sweep
}

// Start begins to look around, once, until Config.Serving is over.
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

// heedChanges has every provider looked at that somebody waits for, each time that the
// limiter gets another policy: their turns may have come.
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

// lookAtAll has all nodes looked at, of every provider that this process looks at or
// that others have announced.
func (d *Dispatcher) lookAtAll() {
	d.mu.Lock()
	for _, one := range d.watches {
		one.all, one.changed = true, true
		one.kick()
	}
	d.mu.Unlock()
	turns, err := d.cfg.Limiter.Waitlist().ActiveProviders(d.cfg.Serving, time.Time{})
	if err != nil && !d.stopped() {
		d.cfg.Observer.Failed("wake") // who is announced is looked at within a minute
	}
	for provider, said := range turns {
		d.look(provider, hint{all: true, said: said})
	}
}

// guarded runs a loop, and runs it again should it panic.
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

// hint is why a provider is to be looked at.
type hint struct {
	in   time.Duration // how long from now, at the latest
	all  bool          // limits may have changed
	said time.Time     // when other processes were told, if they were
}

// look has a provider looked at.
func (d *Dispatcher) look(provider string, why hint) {
	if d.stopped() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ensureLoop(provider, why)
}

// ensureLoop is look for who holds d.mu, and returns who does.
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

// capacityFreed notes that something has come free that tasks of a provider wait for, as a run's places: no clock told when, so
// that the next look may be far. Where it is near that will do: many runs end while a rate is what is waited for.
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

// Ended notes that a task ends that may stand in line: those behind it need not wait until
// its turn tells that it is not there.
func (d *Dispatcher) Ended(task throttle.WaiterRef) {
	if d.stopped() {
		return // it is forgotten when its turn comes
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.ensureLoop(Provider(task.Scope), hint{in: lookAgain})
	one.over = append(one.over, task)
	delete(one.out, task.ID) // nobody waits for it to come
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

// watch looks at a provider for as long as somebody waits for it.
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
			d.cfg.Limiter.Waitlist().PublishActiveSoon(one.provider) // others cannot know of this look, and may start what this process cannot
		}
		one.early = one.early && !lacks && (err != nil || wait == 0) // else it is known what came of it
		if !waits || !d.rest(one, wait) {
			return
		}
	}
}

// learn measures how far a provider's Redis is, and learns what time it is there, before the first of its tasks starts
// here. Whoever comes meanwhile waits for it.
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
	ctx, cancel := context.WithTimeout(d.cfg.Serving, learnsFor) // not the task's: others wait for it too
	defer cancel()
	d.cfg.Limiter.Waitlist().SyncClock(ctx, provider)
	d.reach.learn(func() error { return d.cfg.Redis.Ping(ctx).Err() })
}

// heedHours says whether rules have begun or ended to hold since the last look. Turns may
// have come by it, as by other limits.
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

// dispatched grants those whose turn it is. Whatever happens, the room that was set aside for them
// is free again.
func (d *Dispatcher) dispatched(one *watch, req throttle.DispatchRequest, had capacity) (got throttle.Dispatched, err error) {
	err = errPanicked // what a panic leaves behind
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

// pause returns how long the next look can wait, if there is to be one.
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
		wait = lookAgain // those who are out may not come
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

// due is in how long to look again for those who are next: as much sooner than whoever is beside Redis as this process is
// farther away.
func (d *Dispatcher) due(got throttle.Dispatched, far bool) time.Duration {
	in := got.Next - d.beyond(far)
	if in < gatedLead && len(got.Granted) == 0 { // what no clock tells is not to be looked at again and again
		return min(got.Next, gatedLead)
	}
	return in
}

// sooner is how long the next look can wait after one that may have been taken before what was heard
// while it was on its way.
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
