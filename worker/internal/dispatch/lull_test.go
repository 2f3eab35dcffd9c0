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

// What grants hint at is followed, but looks that find nobody stay a small part of
// what is done; who was denied is looked for at once.
func TestHintsAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 5 * time.Millisecond
		w := newBench(t)
		defer w.stop()
		w.d.Size(4)
		var looks atomic.Int64
		w.grants(func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			looks.Add(1)
			<-time.After(took)
			return throttle.Dispatched{}, nil
		})
		after := func(pass time.Duration, want int64, why string) {
			t.Helper()
			<-time.After(pass)
			synctest.Wait()
			if n := looks.Load(); n != want {
				t.Fatalf("%d looks, want %d: %s", n, want, why)
			}
		}
		granted := throttle.Decision{Allowed: true}
		w.d.Decided("p", granted)
		after(2*took, 1, "a grant said that others may wait")
		for range 10 {
			w.d.Decided("p", granted)
		}
		after(lullOf*took/2, 1, "a look has just found nobody")
		after(lullOf*took, 2, "the hints have not been followed")
		after(lullOf*took, 2, "nothing has been heard since")
		w.d.Decided("p", granted)
		after(2*took, 3, "it has been quiet")
		w.d.Decided("p", throttle.Decision{})
		after(took/2, 4, "one was denied, and waits")
		after(took, 4, "nothing has been heard since")
	})
}

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
		if err := limiter.Waitlist().PublishActive(t.Context(), "p"); err != nil {
			t.Fatal(err)
		}
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

// While somebody waits it is looked again, however late the last look was, and whatever it
// says of the next.
func TestLooksGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newBench(t)
		defer w.stop()
		w.d.Size(4)
		var looks atomic.Int64
		w.grants(func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			next := []time.Duration{-time.Microsecond, time.Hour, -time.Hour}[looks.Add(1)%3]
			<-time.After(time.Millisecond)
			return throttle.Dispatched{Waiting: true, Next: next}, nil
		})
		w.d.look("p", hint{})
		<-time.After(time.Minute)
		if n := looks.Load(); n < 120 { // two of three come at once, the third within 1.5 s
			t.Errorf("%d looks in a minute", n)
		}
	})
}

// A task whose turn comes while it is active, and which then ends or is deleted instead of
// going back to its queue, is told to be gone at the next look: what was set aside for it
// does for others, who need not wait until it counts as lost.
func TestEndedWhileReleased(t *testing.T) {
	t.Parallel()
	const key = "asynq:{default}:t:one"
	for name, end := range map[string]struct {
		by   []any
		tell func(throttle.DispatchRequest) []throttle.WaiterRef
	}{
		"archived": {[]any{"HSET", key, "state", "archived"}, func(r throttle.DispatchRequest) []throttle.WaiterRef { return r.Deleted }},
		// It may be on its way to another queue: it is looked for once more.
		"deleted": {[]any{"DEL", key}, func(r throttle.DispatchRequest) []throttle.WaiterRef { return r.NotFound }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newBench(t)
				defer w.stop()
				w.serves()
				w.rdb.HSet(t.Context(), key, "state", "active", "msg", "as asynq leaves it")
				one := throttle.WaiterRef{Scope: "p/a", ID: queue.Ticket("default", "one")}
				w.rdb.HSet(t.Context(), "hw:{p}!flight", "/a\x00:"+one.ID, "its grant")
				asked := make(chan throttle.DispatchRequest, 10)
				w.grants(func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
					asked <- req
					if len(asked) == 1 {
						return throttle.Dispatched{Granted: []throttle.Granted{{WaiterRef: one}}, Waiting: true, Next: time.Hour}, nil
					}
					return throttle.Dispatched{}, nil
				})
				w.d.Decided("p", throttle.Decision{})
				<-time.After(activePause / 2)
				if n := len(asked); n != 1 {
					t.Fatalf("%d looks, want one: the task is active", n)
				}
				if err := w.rdb.Do(t.Context(), end.by...).Err(); err != nil {
					t.Fatal(err)
				}
				<-time.After(activePause)
				<-asked
				if len(asked) == 0 {
					t.Fatal("nobody has looked since")
				}
				if got := end.tell(<-asked); len(got) != 1 || got[0] != one {
					t.Errorf("told %v, want %v", got, one)
				}
			})
		})
	}
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
