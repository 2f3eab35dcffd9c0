package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// "Where Redis does not answer, what waits is dropped", and nobody is held up: neither who sends nor who ends.
func TestBeatsOfARedisThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b beats
		var sent atomic.Int64
		hangs := func(ctx context.Context) error {
			sent.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		for range 2 * mostBeats {
			_ = b.send(t.Context(), hangs)
		}
		if err := b.send(t.Context(), hangs); !errors.Is(err, errBeats) {
			t.Errorf("%v where %d calls wait", err, mostBeats)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("sending took %s", took)
		}
		b.wait()
		if took := time.Since(began); took > guardLast {
			t.Errorf("it was waited for them for %s", took)
		}
		<-time.After(guardTry)
		if n := sent.Load(); n != 1 {
			t.Errorf("%d calls were sent to a Redis that does not answer, want 1: the next heartbeat writes all anew", n)
		}
		if err := b.send(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call after that was answered %v, want how the last one has ended", err)
		}
		b.wait()
		if err := b.send(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Errorf("Redis answers again: %v", err)
		}
		b.wait()
	})
}

// A task is taken for the server that has most slots to spare, and for none without one.
func TestTakenForWhoHasASlot(t *testing.T) {
	t.Parallel()
	var all gates
	full, idle := newGate(time.Hour), newGate(time.Hour)
	slots := newSlots(2)
	all.add(full, slots)
	all.add(idle, newSlots(2))
	for _, g := range []*dequeuePacer{full, idle} {
		g.met[queuePrefix("q")] = true
	}
	first := slots.take("a")
	for range 10 {
		if got := all.serving("q"); got != idle {
			t.Fatal("it is taken for the server with fewer slots to spare")
		}
	}
	all.remove(idle)
	if all.serving("q") != full {
		t.Error("it is not taken for a server that has a slot")
	}
	slots.take("b")
	if all.serving("q") != nil || all.serving("other") != nil {
		t.Error("it is taken for a server that has no slot, or does not serve its queue")
	}
	first.leave()
	if all.serving("q") != full {
		t.Error("it is not taken where a slot has come free")
	}
}
