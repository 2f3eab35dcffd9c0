package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/queue"
)

// TestProgressOnTerminal holds that progress is one line that is rewritten, with
// rate and what is left where the size is known, that results do not run into
// it, and that nothing of it stays.
func TestProgressOnTerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var screen bytes.Buffer // stdout and stderr of one terminal
		src := &source{size: 1000}
		r := newReport(&screen, &screen, false, src)
		r.screen = &screen
		stop := r.start()
		<-time.After(100 * time.Millisecond)
		src.read.Store(250)
		r.result(queue.Result{Line: 1, ID: "a", State: queue.Enqueued})
		<-time.After(200 * time.Millisecond)
		r.result(queue.Result{Line: 2, ID: "b", Queue: "q", State: queue.Duplicate})
		<-time.After(200 * time.Millisecond)
		stop()
		if err := r.finish(queue.Summary{Enqueued: 1, Duplicate: 1}, false); err != nil {
			t.Error(err)
		}
		want := eraseLine + "1 lines, 5/s, 25 %, 1s left" +
			eraseLine + "line 2: duplicate: id b is taken in queue q\n" +
			eraseLine + "2 lines, 5/s, 25 %, 1s left" +
			eraseLine + "2 lines: 1 enqueued, 1 duplicate, 0 invalid in 500ms\n"
		if got := screen.String(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}
