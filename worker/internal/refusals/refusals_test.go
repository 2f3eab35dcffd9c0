package refusals

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// "However many there are, they come back some at a time": 10,000 tasks cost some 220 pick-ups a second, and fewer 20 at most.
func TestRefusedComeBackSomeAtATime(t *testing.T) {
	t.Parallel()
	for tasks, most := range map[int]int{1: 1, 10: 15, 1000: 40, 10_000: 260} {
		var r Returns
		begin, due, total := time.Unix(1_800_000_000, 0), map[int64]int{0: tasks}, 0 // due by second
		for second := int64(0); second < 600; second++ {
			now := begin.Add(time.Duration(second) * time.Second)
			if n := due[second]; second >= 60 && n > 2*most {
				t.Errorf("of %d tasks %d come in second %d, want %d at most", tasks, n, second, 2*most)
			} else if second >= 60 {
				total += n
			}
			for range due[second] {
				at := r.Next(now, time.Second)
				if wait := at.Sub(now); wait < time.Second || wait > time.Minute {
					t.Fatalf("one of %d comes in %s", tasks, wait)
				}
				due[asynqx.SecondAtOrAfter(at)-begin.Unix()]++
			}
		}
		if total > 540*most || total < 540/2 {
			t.Errorf("of %d tasks %d come in 540 seconds, want %d at most", tasks, total, 540*most)
		}
	}
}

// A scope that meets no rule has one warning a minute, which says how many of its tasks wait. One more stands for all beyond 20.
func TestUnmatchedWarnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, u := new(bytes.Buffer), new(Unmatched)
		logger := slog.New(slog.NewTextHandler(log, nil))
		times := func(text string) int { return strings.Count(log.String(), text) }
		back := func(scope string, tasks int) {
			for i := range tasks {
				u.Waits(t.Context(), logger, Task{Scope: scope, Queue: "q", ID: fmt.Sprint(i)}, time.Now().Add(30*time.Second))
			}
		}
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		back("p/a", 3)
		back("p/b", 1)
		pass(2 * gather)
		if times("scope=p/a tasks=3 queue=q task_id=0") != 1 || times("scope=p/b tasks=1") != 1 || times("level=WARN") != 2 {
			t.Errorf("the log is %s", log.String())
		}
		pass(55 * time.Second) // the first are due by now
		back("p/a", 2)
		pass(5 * time.Second)
		if times("scope=p/a") != 1 {
			t.Error("a scope is warned of twice in a minute")
		}
		back("p/a", 3)
		pass(2 * gather)
		if times("scope=p/a tasks=5") != 1 {
			t.Errorf("a minute later the log is %s", log.String())
		}
		for i := range 100 {
			back(fmt.Sprint("misspelt/", i), 2)
		}
		pass(2 * gather)
		if n := times("scope=misspelt/"); n != mostWarned || times("tasks of more scopes wait") != 1 {
			t.Errorf("there are %d lines of 100 scopes", n)
		}
	})
}
