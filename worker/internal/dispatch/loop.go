package dispatch

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/worker/internal/watchdog"
)

var errPanicked = errors.New("it panicked")

const (
	// gatedLead is how long before its start a task is granted at the latest: enough to bring it from a Redis nearby.
	gatedLead = 20 * time.Millisecond
	// spread is how much earlier a task may be granted, so that a call serves several tasks.
	spread = 80 * time.Millisecond
	// mostSpread is the spread of a slow limit, under which a call grants fewer than fewGranted tasks. With the lead it stays within
	// 250 ms: a start that is further ahead is checked for pauses again.
	mostSpread = 230 * time.Millisecond
	fewGranted = 3
	// callAgain is when to call again while tasks are on their way, or after an error.
	callAgain = 500 * time.Millisecond
	// callMost is when to call again whatever the reply says, for each loop of many: a wake may have been lost.
	callMost, callShare = 3 * time.Second, 20 * time.Millisecond
	// manyStarve is how many loops without room make those that have some leave half of it to others.
	manyStarve = 64
	// emptyPause is how long after a call that granted nothing a reason to come sooner waits, so that reasons are taken together.
	emptyPause = 2 * time.Millisecond
	// outStays is how long a granted task is on its way. Dispatch gives its grant to another process then.
	outStays = 3 * time.Second
	// mostSkips is how many scopes are passed over because their tenants have too many slots.
	mostSkips = 64
	// learnsFor bounds the measurement of Redis's distance. Tasks then start by what is known.
	learnsFor = 3 * time.Second
)

// loop calls dispatch for one provider, as long as tasks wait for it. Its fields are guarded by Dispatcher.mu.
type loop struct {
	d        *Dispatcher
	provider string
	wakes    chan struct{} // holds one reason to call
	pulse    *watchdog.Pulse

	skips  []string      // scopes of tenants that have too many slots
	asks   int           // how many tasks the call under way may grant
	called time.Time     // when that or the last one began
	lent   bool          // only slots were free that tenants with few of them may use
	wide   time.Duration // the spread of a slow limit
}

// sent is a task that was granted.
type sent struct {
	granted *waitlist.Granted
	at      time.Time
	hands   time.Time // when it is handed to its server, if that is later than it was taken
}

func (l *loop) kick() {
	select {
	case l.wakes <- struct{}{}:
	default:
	}
}

func (l *loop) run() {
	if l.pulse == nil {
		l.pulse = l.d.watchdog.Begins(l.provider)
	}
	ends := false
	defer func() {
		if ends {
			l.pulse.Ends()
		} else {
			l.pulse.Failed(errPanicked)
		}
	}()
	l.d.learn(l.d.cfg.Serving, l.provider)
	for !ends {
		wait, least := l.call()
		ends = wait < 0 || !l.rest(wait, least)
	}
}

// rest waits until the next call is due, or until there is a reason to call sooner, but for least at any rate.
func (l *loop) rest(wait, least time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.wakes:
	case <-l.d.cfg.Serving.Done():
		return false
	}
	if least <= 0 {
		return true
	}
	timer.Reset(least)
	select {
	case <-timer.C:
	case <-l.d.cfg.Serving.Done():
	}
	return l.d.cfg.Serving.Err() == nil
}

// call calls dispatch, and returns when to call again: never, if that is negative.
func (l *loop) call() (wait, least time.Duration) {
	d := l.d
	select {
	case <-l.wakes: // what it is for, this call does
	default:
	}
	req, rests := l.request()
	if rests > 0 {
		l.pulse.Rests(rests)
		return rests, 0
	}
	began := time.Now()
	got, err := d.dispatch(d.cfg.Serving, req)
	if err != nil {
		return l.failed(err)
	}
	l.measure(began, got)
	l.bring(l.granted(got.Granted))
	l.heedOverdue(got.Overdue)
	l.releaseRefused(got.Refused)
	wait = l.pause(req, got)
	l.pulse.Beats(wait)
	if len(got.Granted) == 0 {
		least = emptyPause
	}
	return wait, least
}

// request returns what to ask for, and takes the room for it, or a share if many loops have none. Without room it returns how long to
// wait for some: such a call is due only as often as at the least.
func (l *loop) request() (req waitlist.Request, rests time.Duration) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	l.ask(0)
	n, lent := d.room()
	if n == 0 {
		l.starve()
		if rests = d.callMost() - time.Since(l.called); rests > 0 {
			return req, rests
		}
	} else {
		l.ask(min(max(1, n/(1+len(d.slots.starving)/manyStarve)), d.mostAsked()))
		l.fed()
	}
	l.called, l.lent = time.Now(), lent
	l.skips = slices.DeleteFunc(l.skips, func(scope string) bool { return !l.refuses(scope) })
	return waitlist.Request{
		Provider: l.provider, Lead: d.Lead(), Spread: max(d.far(d.reach.window), l.wide), From: d.far(d.reach.from), Max: l.asks,
		Serves: d.serves(), Skips: slices.Clone(l.skips),
	}, 0
}

// room returns how many tasks calls may grant: as many as there are slots that are free, or will be in a moment, and that no task
// is on its way to. lent says that these are slots that only tenants with few of them may use. d.mu is held.
func (d *Dispatcher) room() (n int, lent bool) {
	if d.cfg.Retired() {
		return 0, false
	}
	maps.DeleteFunc(d.out, func(_ waitlist.Ref, s sent) bool { return time.Since(s.at) > outStays })
	onTheWay := len(d.out) + d.slots.asked
	free := d.slots.all - int(d.slots.running.Load()) - onTheWay
	more := d.cfg.Servers.Lent()
	if lent = more > 0 && free <= 0; lent {
		free += more
	} else if more == 0 { // else those that leave may not be of the tenant that must make room
		free += d.leaving()
	}
	if most := int(d.slots.ahead.most); most > 0 {
		free = min(free, most-onTheWay)
	}
	return max(0, free), lent
}

// ask records how many tasks the call under way may grant. d.mu is held.
func (l *loop) ask(n int) {
	l.d.slots.asked += n - l.asks
	l.asks = n
}

// callMost returns how often a loop calls at the least. d.mu is held.
func (d *Dispatcher) callMost() time.Duration {
	return max(callMost, time.Duration(len(d.loops))*callShare)
}

// failed records that a call failed, and returns when to call again.
func (l *loop) failed(err error) (wait, least time.Duration) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	if l.ask(0); l.d.stopped() {
		return -1, 0
	}
	l.d.cfg.Observer.Failed("wake")
	l.pulse.Failed(err)
	return callAgain, callAgain / 10
}

// measure notes how long the call took, and adapts the spread to the limit. A call, and the one that brings its tasks, cost as
// much for one task as for several, so that a slow limit gets a wider spread. Each task then occupies its slot for longer, so that
// half of the slots must be free.
func (l *loop) measure(began time.Time, got waitlist.Dispatched) {
	d, n := l.d, len(got.Granted)
	if n > 0 {
		d.reach.dispatch.note(time.Since(began))
		d.reach.ask.note(got.Granted[0].Starts.Add(-got.Granted[0].Wait).Sub(began))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !d.Holds() || !d.hasPlenty():
		l.wide = 0
	case n > 0 && n < fewGranted:
		l.wide = min(max(2*l.wide, spread), mostSpread)
	case n > 2*fewGranted:
		l.wide /= 2
	}
}

// granted notes which tasks were granted their starts, and gives back those of tenants that have too many slots.
func (l *loop) granted(list []waitlist.Granted) (starts []waitlist.Granted) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	l.ask(0)
	defer d.offer()
	for _, g := range list {
		ref := g.Ref()
		if l.refuses(ref.Scope) && len(l.skips) < mostSkips {
			d.reportSoon(waitlist.News{Ref: ref, What: waitlist.Unused})
			if !slices.Contains(l.skips, ref.Scope) {
				l.skips = append(l.skips, ref.Scope)
			}
			continue
		}
		d.out[ref] = sent{granted: &g, at: time.Now()}
		starts = append(starts, g)
	}
	return starts
}

// refuses reports whether no server may start a task of a scope's tenant now.
func (l *loop) refuses(scope string) bool {
	return l.d.cfg.Servers.Refuse(l.d.cfg.Tenant(scope), l.lent)
}

// pause returns the time until the next call, and ends the loop if nothing is left to wait for: the time is then negative.
func (l *loop) pause(req waitlist.Request, got waitlist.Dispatched) (wait time.Duration) {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	full := len(got.Granted) >= req.Max && got.Next <= 0
	switch {
	case d.stopped():
		return -1
	case got.Waits && full:
		wait = d.callMost()
		l.starve()
		d.offer()
	case got.Waits:
		most := d.callMost()
		wait = max(0, min(l.due(got), most*3/4+rand.N(most/2)))
	case l.isOut():
		wait = callAgain // they may not come
	case len(l.wakes) > 0:
		wait = 0
	default:
		delete(d.loops, l.provider)
		l.fed()
		return -1
	}
	return wait
}

// due returns the time until the call for the next tasks. It is shorter the farther this process is from Redis.
func (l *loop) due(got waitlist.Dispatched) time.Duration {
	in := got.Next - l.d.far(l.d.reach.beyond)
	if in < gatedLead && len(got.Granted) == 0 { // do not call again and again for what no clock can tell
		return min(got.Next, gatedLead)
	}
	return in
}

// isOut reports whether tasks that were granted here are on their way.
func (l *loop) isOut() bool {
	for ref, s := range l.d.out {
		if ref.Provider() == l.provider && time.Since(s.at) <= outStays {
			return true
		}
	}
	return false
}

// Arrived records that a task has come. It returns the task's grant from this process, nil if there is none. The first of a
// provider's tasks waits until the distance of its Redis is known.
func (d *Dispatcher) Arrived(ctx context.Context, task waitlist.Ref) *waitlist.Granted {
	d.Start()
	d.learn(ctx, task.Provider())
	d.mu.Lock()
	defer d.mu.Unlock()
	sent := d.out[task]
	delete(d.out, task)
	if !sent.hands.IsZero() {
		d.reach.pickup.note(time.Since(sent.hands))
	}
	if sent.granted != nil {
		d.came(time.Since(sent.granted.Starts))
	}
	if time.Since(sent.at) > outStays-throttleMargin {
		return nil
	}
	return sent.granted
}

// throttleMargin is how long before another process may be given the grant of a task it is no longer used from memory.
const throttleMargin = time.Second

// learn measures the distance of a provider's Redis and reads its clock, before the first of the provider's tasks starts here.
// Concurrent callers wait for the result.
func (d *Dispatcher) learn(ctx context.Context, provider string) {
	d.mu.Lock()
	learned, known := d.learned[provider]
	if !known {
		if len(d.learned) >= mostLearned {
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
	d.cfg.Limiter.SyncClock(ctx, provider)
	d.reach.learn(func() error { return d.cfg.Redis.Ping(ctx).Err() })
}

// mostLearned is of how many providers it is remembered that their clock is known.
const mostLearned = 10_000
