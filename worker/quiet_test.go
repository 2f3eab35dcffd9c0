package worker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// "Looks at quiet providers need not be many": a process that has 500 makes some 50 a second in all, most of them
// glances, and none of the others' looks is put off by them.
func TestQuietProviders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t)
		defer w.limits.Stop()
		var mu sync.Mutex
		looks, whole, busy := 0, 0, 0
		w.limits.waker.dispatch = func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
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
		}
		const many = 500
		for i := range many {
			w.limits.waker.look(fmt.Sprint("quiet ", i), hint{})
			synctest.Wait()
		}
		w.limits.waker.look("busy", hint{})
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
		w := newWard(t)
		defer w.limits.Stop()
		w.limits.waker.start()
		var mu sync.Mutex
		looked := map[string]time.Time{}
		w.limits.waker.dispatch = func(_ context.Context, req throttle.DispatchRequest) (throttle.Dispatched, error) {
			mu.Lock()
			defer mu.Unlock()
			looked[req.Provider] = time.Now()
			return throttle.Dispatched{Waiting: true, Next: 2 * time.Hour}, nil
		}
		for i := range 500 {
			w.limits.waker.look(fmt.Sprint("quiet ", i), hint{})
			synctest.Wait()
		}
		<-time.After(time.Minute)
		other, err := throttle.New(w.rdb, w.limits.cfg.Limiter.Policy(), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			provider := fmt.Sprint("quiet ", i*25)
			began := time.Now()
			if err := other.Waitlist().PublishActive(t.Context(), provider); err != nil {
				t.Fatal(err)
			}
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
		w := newWard(t)
		defer w.limits.Stop()
		next := make(chan throttle.Dispatched, 1)
		w.limits.waker.dispatch = func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			select {
			case d := <-next:
				return d, nil
			default:
				return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
			}
		}
		said := func() time.Time {
			t.Helper()
			synctest.Wait()
			turns, err := w.limits.cfg.Limiter.Waitlist().ActiveProviders(t.Context(), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			return turns["p"]
		}
		w.limits.waker.look("p", hint{})
		<-time.After(time.Minute)
		before := said()
		next <- throttle.Dispatched{Waiting: true, Next: time.Hour, ForOthers: 3}
		<-time.After(2 * pollMost)
		if !said().Equal(before) {
			t.Error("others were told of what was due, which they know")
		}
		for soon := true; soon; <-time.After(spread / 2) { // a look that is near needs nobody's hint
			w.limits.waker.mu.Lock()
			soon = time.Until(w.limits.waker.watches["p"].next) <= 2*spread
			w.limits.waker.mu.Unlock()
		}
		next <- throttle.Dispatched{Waiting: true, Next: time.Hour, ForOthers: 3}
		began := time.Now()
		w.limits.waker.capacityFreed("p")
		if at := said(); at.UnixMicro() < began.UnixMicro() {
			t.Error("something came free here, others' tasks were granted, and they were not told")
		}
	})
}

// An announcement that comes while a look is on its way that finds nobody is looked into.
func TestAnnouncedWhileLooking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWard(t)
		defer w.limits.Stop()
		w.limits.waker.start()
		<-time.After(2 * time.Second)
		other, err := throttle.New(w.rdb, w.limits.cfg.Limiter.Policy(), throttle.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var joined atomic.Int64 // when
		var found atomic.Int64
		w.limits.waker.dispatch = func(context.Context, throttle.DispatchRequest) (throttle.Dispatched, error) {
			if joined.Load() != 0 { // somebody waits
				if found.Load() == 0 {
					found.Store(time.Now().UnixNano())
				}
				return throttle.Dispatched{Waiting: true, Next: time.Hour}, nil
			}
			// the script has found nobody; its reply is on its way while another process joins and announces
			joined.Store(time.Now().UnixNano())
			if err := other.Waitlist().PublishActive(context.Background(), "p"); err != nil {
				t.Error(err)
			}
			<-time.After(askAround + 10*time.Millisecond) // Redis is slow, or the process busy
			return throttle.Dispatched{}, nil
		}
		w.limits.waker.look("p", hint{})
		<-time.After(5 * time.Minute)
		if found.Load() == 0 {
			t.Fatal("never looked at again in 5 minutes")
		}
		if late := time.Duration(found.Load() - joined.Load()); late > 2*time.Second {
			t.Errorf("looked at %v after it was announced", late)
		}
	})
}

// What comes free in a process that has no slot for who waits is taken by another that has.
func TestFreedWhereThereIsNoRoom(t *testing.T) {
	t.Parallel()
	for _, many := range []int{0, 2000} {
		synctest.Test(t, func(t *testing.T) {
			rules := []policy.Rule{{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: 10 * time.Hour}}
			pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: rules}})
			if err != nil {
				t.Fatal(err)
			}
			_, rdb := redistest.Miniredis(t)
			a, b := newSystemOn(t, rdb, pol, MiddlewareConfig{}), newSystemOn(t, rdb, pol, MiddlewareConfig{})
			settle, started := make(chan struct{}), make(chan time.Time, 1)
			a.serve(asynq.Config{Concurrency: 1}, func(ctx context.Context, _ *asynq.Task) error {
				<-settle
				if _, err := Settle(ctx, policy.Costs{"requests": 0}); err != nil {
					t.Error(err)
				}
				<-time.After(time.Minute)
				return nil
			})
			a.add(queue.Task{})
			<-time.After(time.Second)
			b.serve(asynq.Config{Concurrency: 1}, func(context.Context, *asynq.Task) error {
				started <- time.Now()
				return nil
			})
			a.add(queue.Task{})
			<-time.After(10 * time.Second)
			b.throttle.waker.mu.Lock()
			for i := range many { // quiet ones
				b.throttle.waker.watches[fmt.Sprint("other ", i)] = &watch{out: map[string]sent{}}
			}
			b.throttle.waker.mu.Unlock()
			<-time.After(10 * time.Second)
			began := time.Now()
			close(settle)
			at := <-started
			if at.Sub(began) > 700*time.Millisecond {
				t.Errorf("%d more providers: started %v after units came free", many, at.Sub(began))
			}
			<-time.After(2 * time.Minute)
		})
	}
}
