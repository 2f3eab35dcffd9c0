package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// mixed has a line of every kind.
const mixed = `{"type":"http","id":"a","scope":"a","http":{"url":"http://h/<1>"}}

{"type":"mail","id":"b","scope":"a","payload":1}
{"type":"mail","id":"b","scope":"a","payload":2}
{"type":"mail","id":"c","scope":"a","prio":1,"cost":0}
{"type":"mail","id":"d","scope":"elsewhere"}
{"type":"mail","id":"e","scope":"a","cost":5}
not JSON
{"type":"mail","id":"a","scope":"a","queue":"other"}`

// elapsed hides what differs from run to run.
func elapsed(text string) string {
	text = regexp.MustCompile(`"(start|done_at)":"[0-9T:.-]+Z"`).ReplaceAllString(text, `"$1":"T"`)
	text = regexp.MustCompile(`done at [0-9: .-]+[0-9]`).ReplaceAllString(text, "done at T")
	text = regexp.MustCompile(`"elapsed_ms":\d+`).ReplaceAllString(text, `"elapsed_ms":N`)
	return regexp.MustCompile(` in [0-9.µms]+\n`).ReplaceAllString(text, " in N\n")
}

func TestBatch(t *testing.T) {
	t.Parallel()
	limits := file(t, "limits.yaml", limitsYAML)
	for name, format := range map[string]string{"batch.golden": "-json=false", "batch_json.golden": "-json"} {
		url, rdb := private(t)
		args := []string{"batch", "-limits", limits, "-remember", "1h", format}
		got := program(t, url, "", append(args, file(t, "tasks.ndjson", mixed))...)
		again := program(t, url, mixed, append(args, "-")...)
		if got.code != cli.ExitFailed || again.code != cli.ExitFailed || got.stderr+again.stderr != "" {
			t.Errorf("%+v, again: %+v", got, again)
		}
		golden(t, name, elapsed(got.stdout+"\nagain\n"+again.stdout))
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		for _, at := range []struct{ queue, id string }{{"default", "a"}, {"default", "b"}, {"other", "a"}} {
			if task, err := inspector.GetTaskInfo(at.queue, at.id); err != nil || task.Retention != time.Hour {
				t.Errorf("%+v: %+v %v", at, task, err)
			}
		}
		if q, err := inspector.GetQueueInfo("default"); err != nil || q.Size != 2 {
			t.Errorf("%+v %v", q, err)
		}
	}
}

// TestBatchManyDuplicates holds that exit code 0 is for a file whose lines are all enqueued or duplicates, and that
// running a batch again does not print a line for every one that was done before.
func TestBatchManyDuplicates(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	tasks := tasksOf("a", 1000)
	for _, tt := range []struct {
		tasks string
		flags []string
		lines int // of stdout
		told  string
	}{
		{"", nil, 1, "0 lines: 0 enqueued, 0 duplicate, 0 invalid in "},
		{tasks, nil, 1, "1000 lines: 1000 enqueued, 0 duplicate, 0 invalid in "},
		{tasks, nil, listed + 2, "\n… and 980 more duplicate (-json lists every line)\n1000 lines: 0 enqueued, 1000 duplicate, 0 invalid in "},
		{tasks, []string{"-json"}, 1001, `"enqueued":0,"duplicate":1000,`},
	} {
		got := program(t, url, tt.tasks, append(append([]string{"batch"}, tt.flags...), "-")...)
		if got.code != cli.ExitOK || got.stderr != "enqueue batch: "+noPolicy || strings.Count(got.stdout, "\n") != tt.lines || !strings.Contains(got.stdout, tt.told) {
			t.Errorf("%q: %+v", tt.told, got)
		}
	}
}

// A batch that is enqueued again says which of its tasks have failed for good, and how they run again.
func TestBatchOfFailedTasks(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	tasks := tasksOf("a", 30)
	program(t, url, tasks, "batch", "-")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for i := range 25 {
		must(t, inspector.ArchiveTask("default", fmt.Sprint("a", i)))
	}
	got := program(t, url, tasks, "batch", "-")
	got.says(t, cli.ExitOK,
		"line 1: duplicate: id a0 is taken in queue default, by a task that failed for good\n",
		"30 lines: 0 enqueued, 30 duplicate, 25 of them failed, 0 invalid in ",
		"\nto run what failed again: worker tasks run a0 a1 ", " a19 … and 5 more (-json lists every line)\n")
	got = program(t, url, tasks, "batch", "-json", "-")
	if n := strings.Count(got.stdout, `"state":"duplicate","archived":true}`); n != 25 || !strings.Contains(got.stdout, `"failed":0,"archived":25,`) {
		t.Errorf("%d lines: %+v", n, got)
	}
	program(t, url, "", "http", "-scope", "a", "-id", "a0", "http://127.0.0.1/").says(t, cli.ExitOK,
		"duplicate a0 in queue default, whose task failed for good; worker tasks run a0 runs it again\n")
}

// TestBatchRedisFails holds that a Redis that becomes full ends the batch with the line, the reason and how to go on.
func TestBatchRedisFails(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	input, feed := io.Pipe()
	ended := make(chan outcome)
	go func() { ended <- programIn(t, map[string]string{"REDIS_URL": url}, input, "batch", "-") }()
	_, err := io.WriteString(feed, tasksOf("a", 100))
	must(t, err)
	redistest.WaitFor(t, "the lines to be enqueued", 2*time.Minute, func() bool {
		return rdb.LLen(t.Context(), "asynq:{default}:pending").Val() == 100
	})
	rdb.ConfigSet(t.Context(), "maxmemory", "1")
	_, err = io.WriteString(feed, tasksOf("b", 1))
	must(t, err)
	got := <-ended
	_ = feed.Close()
	name := strings.TrimPrefix(url, "redis://")
	got.says(t, cli.ExitFailed,
		"line 101: failed: Redis at "+name+" is full", "101 lines: 100 enqueued, 0 duplicate, 0 invalid, 1 failed in ",
		"enqueue batch: stopped at line 101: Redis at "+name+" is full", "try: raise maxmemory",
		"try: run it again: tasks that are enqueued already are reported as duplicates and left alone\n")
}

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
