package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/cmd/internal/cli"
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
	return inN(text)
}

// inN is elapsed of how long it took alone.
func inN(text string) string {
	return regexp.MustCompile(` in [0-9.µms]+\n`).ReplaceAllString(text, " in N\n")
}

func TestBatch(t *testing.T) {
	t.Parallel()
	limits := file(t, "limits.yaml", limitsYAML)
	for name, tt := range map[string]struct {
		json   []string
		golden string
	}{
		"plain": {nil, "batch.golden"},
		"json":  {[]string{"-json"}, "batch_json.golden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, rdb := private(t)
			args := append([]string{"batch", "-limits", limits, "-remember", "1h"}, tt.json...)
			got := program(t, url, "", append(args, file(t, "tasks.ndjson", mixed))...)
			if got.code != cli.ExitFailed || got.stderr != "" {
				t.Errorf("%+v", got)
			}
			again := program(t, url, mixed, append(args, "-")...)
			if again.code != cli.ExitFailed || again.stderr != "" {
				t.Errorf("again: %+v", again)
			}
			golden(t, tt.golden, elapsed(got.stdout+"\nagain\n"+again.stdout))
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			for _, at := range []struct{ queue, id string }{{"default", "a"}, {"default", "b"}, {"other", "a"}} {
				if task, err := inspector.GetTaskInfo(at.queue, at.id); err != nil || task.Retention != time.Hour {
					t.Errorf("%+v: %+v %v", at, task, err)
				}
			}
			if q, err := inspector.GetQueueInfo("default"); err != nil || q.Size != 2 {
				t.Errorf("%+v %v", q, err)
			}
		})
	}
}

// TestBatchDone holds that exit code 0 is for a file whose lines are all
// enqueued or duplicates.
func TestBatchDone(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	for i, want := range []string{"2 lines: 2 enqueued, 0 duplicate", "line 1: duplicate: id x is taken in queue default\n2 lines: 1 enqueued, 1 duplicate"} {
		got := program(t, url, `{"type":"mail","scope":"a","id":"x"}`+"\n"+`{"type":"mail","scope":"a"}`, "batch", "-")
		if got.code != cli.ExitOK || !strings.HasPrefix(got.stdout, want) || got.stderr != "enqueue batch: "+noPolicy {
			t.Errorf("run %d: %+v", i, got)
		}
	}
	got := program(t, url, "", "batch", "-json", "-")
	if want := `{"summary":true,"lines":0,"enqueued":0,"duplicate":0,"invalid":0,"failed":0,"random_ids":0,"unknown_starts":0,"interrupted":false,"elapsed_ms":N}` + "\n"; got.code != cli.ExitOK || elapsed(got.stdout) != want {
		t.Errorf("nothing: %+v", got)
	}
}

// TestBatchManyDuplicates holds that running a batch again does not print a line
// for every one that was done before.
func TestBatchManyDuplicates(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	tasks := numbered(0, 1000)
	if got := program(t, url, tasks, "batch", "-"); got.code != cli.ExitOK || strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("%+v", got)
	}
	got := program(t, url, tasks, "batch", "-")
	if got.code != cli.ExitOK || strings.Count(got.stdout, "\n") != listed+2 || !strings.Contains(got.stdout, "\n… and 980 more duplicate (-json lists every line)\n1000 lines: 0 enqueued, 1000 duplicate, 0 invalid in ") {
		t.Errorf("%+v", got)
	}
	if got := program(t, url, tasks, "batch", "-json", "-"); got.code != cli.ExitOK || strings.Count(got.stdout, "\n") != 1001 {
		t.Errorf("%+v", got)
	}
}

// A batch that is enqueued again says which of its tasks have failed for good, and how they run again.
func TestBatchOfFailedTasks(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	tasks := numbered(0, 30)
	program(t, url, tasks, "batch", "-")
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	for i := range 25 {
		if err := inspector.ArchiveTask("default", fmt.Sprint("t", i)); err != nil {
			t.Fatal(err)
		}
	}
	got := program(t, url, tasks, "batch", "-")
	for _, want := range []string{
		"line 1: duplicate: id t0 is taken in queue default, by a task that failed for good\n",
		"30 lines: 0 enqueued, 30 duplicate, 25 of them failed, 0 invalid in ",
		"\nto run what failed again: worker tasks run t0 t1 ", " t19 … and 5 more (-json lists every line)\n",
	} {
		if got.code != cli.ExitOK || !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in %+v", want, got)
		}
	}
	got = program(t, url, tasks, "batch", "-json", "-")
	if n := strings.Count(got.stdout, `"state":"duplicate","archived":true}`); n != 25 || !strings.Contains(got.stdout, `"duplicate":30,"invalid":0,"failed":0,"archived":25,`) {
		t.Errorf("%d lines: %+v", n, got)
	}
	if got := program(t, url, "", "http", "-scope", "a", "-id", "t0", "http://127.0.0.1/"); got.stdout != "duplicate t0 in queue default, whose task failed for good; worker tasks run t0 runs it again\n" {
		t.Errorf("%+v", got)
	}
}

// numbered is lines with the ids t<from> to t<to-1>.
func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, `{"type":"mail","scope":"a","id":"t%d"}`+"\n", i)
	}
	return b.String()
}

// TestBatchRedisFails holds that a Redis that becomes full ends the batch with
// the line, the reason and how to go on.
func TestBatchRedisFails(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	input, feed := io.Pipe()
	ended := make(chan outcome)
	go func() { ended <- programOf(t.Context(), url, input, "batch", "-") }()
	if _, err := io.WriteString(feed, numbered(0, 100)); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the lines to be enqueued", 2*time.Minute, func() bool {
		return rdb.LLen(t.Context(), "asynq:{default}:pending").Val() == 100
	})
	rdb.ConfigSet(t.Context(), "maxmemory", "1")
	if _, err := io.WriteString(feed, numbered(100, 101)); err != nil {
		t.Fatal(err)
	}
	got := <-ended
	_ = feed.Close()
	name := strings.TrimPrefix(url, "redis://")
	if got.code != cli.ExitFailed || !strings.HasPrefix(got.stdout, "line 101: failed: Redis at "+name+" is full") || !strings.Contains(got.stdout, "101 lines: 100 enqueued, 0 duplicate, 0 invalid, 1 failed in ") {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(got.stderr, "enqueue batch: stopped at line 101: Redis at "+name+" is full") || !strings.Contains(got.stderr, "try: raise maxmemory") || !strings.HasSuffix(got.stderr, "try: run it again: tasks that are enqueued already are reported as duplicates and left alone\n") {
		t.Errorf("stderr %s", got.stderr)
	}
}
