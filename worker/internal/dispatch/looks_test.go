package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// "Each that does, while this process grants starts, makes the net of those after it looser, and a while without any makes
// it tighter again."
func TestNets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n nets
		tight := throttle.FallbackDelay(time.Minute)
		if got := n.of(time.Minute); got != tight {
			t.Errorf("nobody has come by itself, and a net is %s, want %s", got, tight)
		}
		for range 30 {
			n.came()
		}
		if got := n.of(time.Minute); got < 2*tight || got > 3*tight {
			t.Errorf("30 have come, and a net is %s", got)
		}
		for range 1000 {
			n.came()
		}
		most := mostSlip * tight
		if got := n.of(time.Minute); got != most {
			t.Errorf("many have come, and a net is %s, want %s", got, most)
		}
		if got := n.of(throttle.Never); got != throttle.FallbackDelay(throttle.Never) {
			t.Errorf("where no clock tells it is %s", got)
		}
		<-time.After(slipHalves)
		if got := n.of(time.Minute) - tight; got != (most-tight)/2 {
			t.Errorf("half a minute later it is looser by %s, want half of %s", got, most-tight)
		}
	})
}

// "Beside Redis they are 20 and 80 ms, and never less; they grow to a second at most": and they follow what was measured,
// with its deviation, soon.
func TestReach(t *testing.T) {
	t.Parallel()
	r := newReach()
	if r.lead() != gatedLead || r.beyond() != 0 || r.from() != 0 || r.window() != spread {
		t.Errorf("nothing measured: lead %v, beyond %v, from %v, window %v", r.lead(), r.beyond(), r.from(), r.window())
	}
	note := func(d *delayMeter, times int, mean, jitter time.Duration) {
		for range times {
			d.note(mean - jitter + rand.N(2*jitter+1))
		}
	}
	note(&r.hand, 50, time.Millisecond, time.Millisecond/2)
	note(&r.pickup, 50, time.Millisecond, time.Millisecond/2)
	note(&r.dispatch, 50, time.Millisecond, time.Millisecond/2)
	if r.lead() != gatedLead || r.from() != 0 || r.window() != spread {
		t.Errorf("beside Redis: lead %v, from %v, window %v", r.lead(), r.from(), r.window())
	}
	note(&r.hand, 50, 100*time.Millisecond, 25*time.Millisecond)
	note(&r.dispatch, 50, 100*time.Millisecond, 25*time.Millisecond)
	if lead := r.lead(); lead < 110*time.Millisecond || lead > 220*time.Millisecond {
		t.Errorf("100 ms away, with jitter of a quarter: lead %v", lead)
	}
	if from := r.from(); from < 100*time.Millisecond || from > 200*time.Millisecond {
		t.Errorf("no start is granted for a moment at which its task cannot be there: from %v", from)
	}
	if window := r.window(); window < r.beyond()+100*time.Millisecond {
		t.Errorf("a call grants what starts in %v, and takes 100 ms", window)
	}
	note(&r.hand, 50, time.Minute, 0)
	if r.lead() != mostReach || r.from() != mostReach {
		t.Errorf("a minute away: lead %v, from %v", r.lead(), r.from())
	}
}

// A process yields to others while they come first, and grants their tasks itself, for a while, when nobody did.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const soonest, next = 10 * time.Millisecond, 300 * time.Millisecond
		owns := func(name string) bool { return name == "mine" }
		overdue := []throttle.Granted{{Wait: -time.Millisecond}}
		ahead := []throttle.Granted{{Wait: 20 * time.Millisecond}}
		var y yield
		expect := func(when string, want time.Duration) {
			t.Helper()
			if got := y.due(soonest, next); got != want {
				t.Errorf("%s: looks in %s, want %s", when, got, want)
			}
		}
		expect("at first", soonest)
		y.granted([]string{"theirs", "mine"}, owns)
		expect("some are its own", soonest)
		y.granted([]string{"theirs"}, owns)
		expect("none are its own", next+yieldsFor)
		y.granted(nil, owns)
		expect("none were granted", next+yieldsFor)
		y.looked(ahead, false)
		expect("others came first", next+yieldsFor)
		y.looked(overdue, true)
		expect("it was kicked, so that others had no time", next+yieldsFor)
		y.looked(overdue, false)
		expect("nobody came first", soonest)
		y.looked(overdue, false)
		<-time.After(aloneFor)
		expect("a while later", next+yieldsFor)
	})
}

// "Looks at quiet providers need not be many": a process that has 500 makes some 50 a second in all, most of them
// glances, and none of the others' looks is put off by them.
func TestQuietProviders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		var mu sync.Mutex
		looks, whole, busy := 0, 0, 0
		w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			mu.Lock()
			defer mu.Unlock()
			if req.Provider == "busy" {
				busy++
				return throttle.Dispatched{Waiting: true, Next: 100 * time.Millisecond}, nil
			}
			if looks++; !req.OnlyIfDue {
				whole++
			}
			return throttle.Dispatched{Waiting: true, Next: 2 * time.Hour}, nil
		})
		const many = 500
		for i := range many {
			w.d.look(fmt.Sprint("quiet ", i), hint{})
			synctest.Wait()
		}
		w.d.look("busy", hint{})
		<-time.After(time.Minute)
		mu.Lock()
		looks, whole, busy = 0, 0, 0
		mu.Unlock()
		<-time.After(4 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if most := 240 * 55; looks > most || looks < 240*40 || whole > most/10 {
			t.Errorf("%d looks in four minutes, %d of them whole", looks, whole)
		}
		if busy < 2350 {
			t.Errorf("%d looks at one that is due ten times a second", busy)
		}
	})
}

// "What makes a task due sooner is announced": a process that has many quiet providers looks at one within half a second
// then, and at no other.
func TestQuietIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		w.d.Start()
		var mu sync.Mutex
		looked := map[string]time.Time{}
		w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			mu.Lock()
			defer mu.Unlock()
			looked[req.Provider] = time.Now()
			return throttle.Dispatched{Waiting: true, Next: 2 * time.Hour}, nil
		})
		for i := range 500 {
			w.d.look(fmt.Sprint("quiet ", i), hint{})
			synctest.Wait()
		}
		<-time.After(time.Minute)
		other, err := throttle.New(w.rdb, w.cfg.Limiter.Policy(), throttle.Config{})
		must(t, err)
		for i := range 20 {
			provider := fmt.Sprint("quiet ", i*25)
			began := time.Now()
			must(t, other.Waitlist().PublishActive(t.Context(), provider))
			<-time.After(askAround + spread + time.Millisecond)
			mu.Lock()
			if at := looked[provider]; at.Before(began) {
				t.Errorf("%s was announced, and looked at %s before", provider, began.Sub(at))
			}
			mu.Unlock()
		}
	})
}

// Tasks that a look grants which other processes serve, and which they do not know of, are announced to them; those that
// they know of are not.
func TestOthersAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		next := make(chan throttle.Dispatched, 1)
		w.grants(func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			select {
			case d := <-next:
				return d, nil
			default:
				return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
			}
		})
		said := func() time.Time {
			t.Helper()
			synctest.Wait()
			turns, err := w.cfg.Limiter.Waitlist().ActiveProviders(t.Context(), time.Time{})
			must(t, err)
			return turns["p"]
		}
		w.d.look("p", hint{})
		<-time.After(time.Minute)
		before := said()
		next <- throttle.Dispatched{Waiting: true, Next: time.Hour, ForOthers: 3}
		<-time.After(2 * pollMost)
		if !said().Equal(before) {
			t.Error("others were told of what was due, which they know")
		}
		for soon := true; soon; <-time.After(spread / 2) { // a look that is near needs nobody's hint
			w.d.mu.Lock()
			soon = time.Until(w.d.watches["p"].next) <= 2*spread
			w.d.mu.Unlock()
		}
		next <- throttle.Dispatched{Waiting: true, Next: time.Hour, ForOthers: 3}
		began := time.Now()
		w.d.capacityFreed("p")
		if at := said(); at.UnixMicro() < began.UnixMicro() {
			t.Error("something came free here, others' tasks were granted, and they were not told")
		}
	})
}

// A process that hears that somebody waits, looks, and finds nobody, says nothing of it: two that did would have each other look for ever.
func TestProcessesAtRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		var looks atomic.Int64
		for _, one := range []*Dispatcher{w.d, New(w.cfg)} {
			one.Intercept(func(next Func) Func {
				return func(ctx context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
					looks.Add(1)
					return next(ctx, req)
				}
			})
			one.Start()
			<-time.After(askAround / 2)
		}
		limiter := w.cfg.Limiter
		must(t, limiter.Waitlist().PublishActive(t.Context(), "p"))
		<-time.After(lookAnyway / 2)
		if n := looks.Load(); n != 2 {
			t.Errorf("%d looks after one announcement, want one of each process", n)
		}
		said, err := limiter.Waitlist().ActiveProviders(t.Context(), time.Time{})
		if err != nil || time.Since(said["p"]) < lookAnyway/2-askAround {
			t.Errorf("%v, %v: it was announced again, and nobody waits", said, err)
		}
		<-time.After(lookAnyway)
		if n := looks.Load(); n != 4 {
			t.Errorf("%d looks after a minute and a half, want another of each process", n)
		}
	})
}

// Looks at several providers share the room there is. One that finds none is taken again when its next turn comes, if nothing was due, and
// else as soon as another look gives room back: however many providers are looked at, none waits for the next half second.
func TestLooksShareTheRoom(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]time.Duration{"nothing is due": 100 * time.Millisecond, "a turn is due": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const took = 5 * time.Millisecond
				w := newBench(t)
				defer w.stop()
				w.d.Size(4)
				var without, with, came atomic.Int64 // looks at q, and when it was looked at with room
				began := time.Now()
				w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
					switch {
					case req.Provider == "p":
						<-time.After(took)
					case req.Max == 0:
						without.Add(1)
						return throttle.Dispatched{Waiting: true, Next: next}, nil
					case with.Add(1) == 1:
						came.Store(int64(time.Since(began)))
					}
					return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
				})
				w.d.look("p", hint{})
				synctest.Wait() // it has all the room
				w.d.look("q", hint{})
				<-time.After(lookAgain - took) // until which nobody looks anyway
				if n := without.Load(); n != 1 {
					t.Errorf("%d looks without room", n)
				}
				if got, want := time.Duration(came.Load()), max(took, next); got != want {
					t.Errorf("it was looked at again after %v, want %v", got, want)
				}
			})
		})
	}
}

// Who joins a line while a look is on its way that does not see it is looked for when its turn comes, however
// far that is. A place that is given back meanwhile is seen as well.
func TestHeardWhileALookIsOnItsWay(t *testing.T) {
	t.Parallel()
	const took = 5 * time.Millisecond
	far, near := throttle.Decision{}, throttle.Decision{}
	far.Position.Look, near.Position.Look = time.Minute, 100*time.Millisecond
	for name, tt := range map[string]struct {
		hear func(*Dispatcher)
		saw  throttle.Dispatched // by the look that was on its way
		want time.Duration       // from its end to the next
	}{
		"its turn is far":         {func(w *Dispatcher) { w.Decided("p", far) }, throttle.Dispatched{}, lookAgain},
		"its turn is near":        {func(w *Dispatcher) { w.Decided("p", near) }, throttle.Dispatched{Waiting: true, Next: time.Hour}, near.Position.Look - took/2},
		"and others are parked":   {func(w *Dispatcher) { w.Decided("p", far) }, throttle.Dispatched{Parked: true}, lookAgain},
		"a place was given back":  {func(w *Dispatcher) { w.capacityFreed("p") }, throttle.Dispatched{Waiting: true, Next: time.Hour}, 0},
		"but another turn is due": {func(w *Dispatcher) { w.capacityFreed("p") }, throttle.Dispatched{Waiting: true, Next: spread / 2}, spread / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t)
				defer w.stop()
				w.d.Size(4)
				var looks []time.Time
				w.grants(func(ctx context.Context, _ throttle.DispatchRequest) (throttle.Dispatched, error) {
					looks = append(looks, time.Now())
					asynqx.Sleep(ctx, took)
					if len(looks) == 1 {
						return tt.saw, nil
					}
					return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
				})
				w.d.look("p", hint{})
				<-time.After(took / 2)
				tt.hear(w.d)
				<-time.After(lookAgain + took)
				synctest.Wait()
				if len(looks) < 2 {
					t.Fatal("nobody looks any more")
				}
				if got := looks[1].Sub(looks[0]) - took; got != tt.want {
					t.Errorf("the next look is %v after it, want %v", got, tt.want)
				}
			})
		})
	}
}
