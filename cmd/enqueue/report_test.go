package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/queue"
)

// TestProgressOnTerminal holds that progress is one line that is rewritten, with rate and what is left where the size is known,
// that results do not run into it, and that nothing of it stays.
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
		must(t, r.finish(queue.Summary{Enqueued: 1, Duplicate: 1}, false))
		want := eraseLine + "1 lines, 5/s, 25 %, 1s left" +
			eraseLine + "line 2: duplicate: id b is taken in queue q\n" +
			eraseLine + "2 lines, 5/s, 25 %, 1s left" +
			eraseLine + "2 lines: 1 enqueued, 1 duplicate, 0 invalid in 500ms\n"
		if got := screen.String(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	})
}

// The drawing has a row for each step of time, and as many starts in all as were added.
func TestStartPlot(t *testing.T) {
	t.Parallel()
	from := time.Date(2030, 1, 31, 12, 0, 0, 0, time.Local)
	if got := newStartPlot(from).String(); got != "" {
		t.Errorf("nothing is drawn as %s", got)
	}
	for _, test := range []struct {
		apart time.Duration
		n     int
		want  string
	}{
		{0, 3, "expected starts in each 1s:\n  12:00:00  " + strings.Repeat("#", plotWidth) + " 3"},
		{500 * time.Millisecond, 8, " 2\n  12:00:01  "},
		{time.Second, 300, "each 30s:\n  12:00:00  " + strings.Repeat("#", plotWidth) + " 30\n  12:00:30  "},
		{time.Hour, 48, "\n  Feb  1 12:00  "},
		{24 * time.Hour, 365, "each 35d:"},
	} {
		p := newStartPlot(from)
		for i := range test.n {
			p.add(from.Add(time.Duration(i) * test.apart))
		}
		text := p.String()
		sum, rows := 0, strings.Split(strings.TrimSuffix(text, "\n"), "\n")[1:]
		for _, row := range rows {
			n, err := strconv.Atoi(row[strings.LastIndex(row, " ")+1:])
			must(t, err)
			sum += n
		}
		if sum != test.n || len(rows) > plotRows || !strings.Contains(text, test.want) {
			t.Errorf("%d starts in %d rows, of %d, %s apart; want %q in\n%s", sum, len(rows), test.n, test.apart, test.want, text)
		}
	}
}

// TestProgressInLog holds that elsewhere it is a log line every five seconds, and that results do not wait for the end.
func TestProgressInLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		src := &source{}
		r := newReport(&stdout, &stderr, true, src)
		stop := r.start()
		for line := range 4 {
			<-time.After(2900 * time.Millisecond)
			r.result(queue.Result{Line: line + 1, ID: "x", State: queue.Enqueued})
			<-time.After(drawEvery)
			synctest.Wait()
			r.mu.Lock()
			if got := strings.Count(stdout.String(), "\n"); got != line+1 {
				t.Errorf("%d results shown of %d", got, line+1)
			}
			r.progress.size = 4 // as if it came to be known
			r.mu.Unlock()
			src.read.Store(int64(line))
		}
		stop()
		must(t, r.finish(queue.Summary{Enqueued: 4}, true))
		want := "level=INFO msg=enqueueing lines=1 lines_per_second=0\n" +
			"level=INFO msg=enqueueing lines=3 lines_per_second=0 percent=50 eta_seconds=10\n"
		if got := regexp.MustCompile(`time=\S+ `).ReplaceAllString(stderr.String(), ""); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if !strings.Contains(stdout.String(), `"enqueued":4,"duplicate":0,"invalid":0,"failed":0,"random_ids":0,"unknown_starts":0,"interrupted":true,"elapsed_ms":12400}`) {
			t.Errorf("stdout %s", stdout.String())
		}
	})
}
