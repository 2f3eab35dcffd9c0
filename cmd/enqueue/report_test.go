package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/queue"
)

// writes returns a command that writes there.
func writes(stdout, stderr io.Writer) *cobra.Command {
	c := &cobra.Command{Use: "batch"}
	c.SetOut(stdout)
	c.SetErr(stderr)
	return c
}

// TestProgressInLog holds that progress is a log line every five seconds, and that results do not wait for the end.
func TestProgressInLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		src := &source{}
		r := newReport(writes(&stdout, &stderr), src)
		r.json = true
		stop := r.start()
		for line := range 4 {
			<-time.After(2900 * time.Millisecond)
			r.result(queue.Result{Line: line + 1, ID: "x", State: queue.Enqueued})
			<-time.After(flushEvery)
			synctest.Wait()
			r.mu.Lock()
			if got := strings.Count(stdout.String(), "\n"); got != line+1 {
				t.Errorf("%d results shown of %d", got, line+1)
			}
			src.size = 4 // as if it came to be known
			r.mu.Unlock()
			src.read.Store(int64(line))
		}
		stop()
		r.finish(queue.Summary{Enqueued: 4}, true)
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
