package dispatch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// A process that hears that somebody waits, looks, and finds nobody, says nothing of it:
// two that did would have each other look for ever.
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

// Looks at several providers share the room there is. One that finds none is taken again when
// its next turn comes, if nothing was due, and else as soon as another look gives room back:
// however many providers are looked at, none waits for the next half second.
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

// A task whose turn comes while its own process puts it back is released when it is back, though that
// takes a second on a busy machine: it has its place, and comes by itself minutes later.
func TestReleasedWhilePutBack(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "it came to another process, and waits for its retry": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testWhilePutBack(t, elsewhere)
		})
	}
}

func testWhilePutBack(t *testing.T, elsewhere bool) {
	t.Helper()
	const key, flight = "asynq:{default}:t:one", "hw:{p}!flight"
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		w.serves()
		w.rdb.HSet(t.Context(), key, "state", "active", "msg", "as asynq leaves it")
		one := throttle.WaiterRef{Scope: "p/a", ID: queue.Ticket("default", "one")}
		w.rdb.HSet(t.Context(), flight, "/a\x00:"+one.ID, "its grant")
		var looks, running atomic.Int64
		w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			running.Add(int64(len(req.Claimed)))
			if looks.Add(1) == 1 {
				return throttle.Dispatched{Granted: []throttle.Granted{{WaiterRef: one}}, Waiting: true, Next: time.Hour}, nil
			}
			return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
		})
		w.d.Decided("p", throttle.Decision{})
		<-time.After(time.Second)
		want := int64(1)
		if elsewhere {
			w.rdb.Del(t.Context(), flight)
			want = 0
		}
		w.rdb.HSet(t.Context(), key, "state", "scheduled")
		w.rdb.ZAdd(t.Context(), "asynq:{default}:scheduled", redis.Z{Score: float64(time.Now().Add(time.Hour).Unix()), Member: "one"})
		<-time.After(2 * time.Second)
		if n := w.rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != want || running.Load() != 0 {
			t.Errorf("%d tasks are in pending, want %d, and %d were taken to run", n, want, running.Load())
		}
	})
}
