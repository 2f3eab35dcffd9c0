package dispatch

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/throttle"
)

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
