package asynqx

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
		if took := time.Since(began); took > lastTry {
			t.Errorf("it was waited for them for %s", took)
		}
		<-time.After(TryFor)
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
	var all Servers
	full, idle := NewPacer(time.Hour), NewPacer(time.Hour)
	slots := NewSlots(2)
	all.Add(full, slots)
	all.Add(idle, NewSlots(2))
	for _, g := range []*Pacer{full, idle} {
		g.met[QueuePrefix("q")] = true
	}
	first := slots.take("a")
	for range 10 {
		if got := all.Serving("q"); got != idle {
			t.Fatal("it is taken for the server with fewer slots to spare")
		}
	}
	all.Remove(idle)
	if all.Serving("q") != full {
		t.Error("it is not taken for a server that has a slot")
	}
	slots.take("b")
	if all.Serving("q") != nil || all.Serving("other") != nil {
		t.Error("it is taken for a server that has no slot, or does not serve its queue")
	}
	first.Leave()
	if all.Serving("q") != full {
		t.Error("it is not taken where a slot has come free")
	}
}
