package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// tasks are n tasks with the ids t0, t1, …
func tasks(n int, queueName string) iter.Seq[queue.Entry] {
	return queue.Number(func(yield func(queue.Task) bool) {
		for i := range n {
			if !yield(queue.Task{Type: "mail", Scope: "a", ID: fmt.Sprintf("t%d", i), Queue: queueName}) {
				return
			}
		}
	})
}

// pending returns the ids in a queue in the order in which asynq will run them.
func pending(t *testing.T, rdb redis.UniversalClient, queueName string) []string {
	t.Helper()
	ids, err := rdb.LRange(t.Context(), "asynq:{"+queueName+"}:pending", 0, -1).Result()
	must(t, err)
	slices.Reverse(ids)
	return ids
}

func wantIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("t%d", i)
	}
	return ids
}

// TestBatchReportsEveryLine holds that "a bad entry is a Result, Invalid, and a
// taken id one, Duplicate; neither stops the batch", in the order of the lines.
func TestBatchReportsEveryLine(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	line := func(id string, more string) string {
		return fmt.Sprintf(`{"type":"mail","scope":"a","queue":%q,"id":%q%s}`, name, id, more)
	}
	text := strings.Join([]string{
		line("a", ""), line("b", `,"cost":0`), "", line("a", `,"delay":"1h"`), "{", line("c", `,"delay":"1h"`), line("c", ""),
		fmt.Sprintf(`{"type":"mail","scope":"a","queue":%q}`, name), line("a", ""), line("d", ""),
	}, "\n")
	var got []string
	client := queue.NewClient(rdb, queue.ClientConfig{})
	sum, err := client.EnqueueBatch(t.Context(), queue.NewReader(strings.NewReader(text)).All(), func(r queue.Result) {
		if r.Random {
			r.ID = "random"
		}
		if (r.Err != nil) != (r.State == queue.Invalid) {
			t.Errorf("line %d: %s with %v", r.Line, r.State, r.Err)
		}
		got = append(got, fmt.Sprintf("%d %s %s", r.Line, r.ID, r.State))
	})
	want := []string{
		"1 a enqueued", "2 b invalid", "4 a duplicate", "5  invalid", "6 c enqueued", "7 c duplicate",
		"8 random enqueued", "9 a duplicate", "10 d enqueued",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if (sum != queue.Summary{Enqueued: 4, Duplicate: 3, Invalid: 2, Random: 1}) || sum.Total() != 9 || err != nil {
		t.Errorf("%+v %v", sum, err)
	}
	if ids := pending(t, rdb, name); len(ids) != 3 || ids[0] != "a" || ids[2] != "d" {
		t.Errorf("pending %q", ids)
	}
}

func TestBatchKeepsOrder(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	const n = 5000
	line := 0
	client := queue.NewClient(rdb, queue.ClientConfig{})
	sum, err := client.EnqueueBatch(t.Context(), tasks(n, name), func(r queue.Result) {
		if line++; r.Line != line || r.ID != fmt.Sprintf("t%d", line-1) || r.Queue != name {
			t.Fatalf("result %d: %+v", line, r)
		}
	})
	if sum.Enqueued != n || line != n || err != nil {
		t.Errorf("%+v %v, %d results", sum, err, line)
	}
	if !slices.Equal(pending(t, rdb, name), wantIDs(n)) {
		t.Error("asynq will not run them in order")
	}
}

// TestBatchFirstOfTwo holds that "of two entries with the same id and queue the
// first is enqueued", also where one of them is delayed and Redis has only one
// of asynq's two scripts.
func TestBatchFirstOfTwo(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	const pairs = 50
	for round, loaded := range []time.Duration{0, time.Hour} {
		for _, first := range []time.Duration{0, time.Hour} {
			must(t, rdb.ScriptFlush(t.Context()).Err())
			if _, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "a", Delay: loaded}); err != nil {
				t.Fatal(err)
			}
			sum, err := client.EnqueueBatch(t.Context(), queue.Number(func(yield func(queue.Task) bool) {
				for i := range 2 * pairs {
					task := queue.Task{Type: "mail", Scope: "a", ID: fmt.Sprintf("%d-%v-%d", round, first, i/2), Delay: first}
					if i%2 == 1 {
						task.Delay = time.Hour - first
					}
					if !yield(task) {
						return
					}
				}
			}), func(r queue.Result) {
				want := []queue.State{queue.Enqueued, queue.Duplicate}[(r.Line-1)%2]
				if r.State != want {
					t.Errorf("loaded %v, line %d, id %s: %s", loaded, r.Line, r.ID, r.State)
				}
			})
			if (sum != queue.Summary{Enqueued: pairs, Duplicate: pairs}) || err != nil {
				t.Errorf("%+v %v", sum, err)
			}
		}
	}
}

// TestBatchDoesNotLinger holds that a batch "sends what it has as soon as Redis
// has answered what went before": this source waits for each result before it
// gives the next task.
func TestBatchDoesNotLinger(t *testing.T) {
	t.Parallel()
	results := make(chan queue.Result)
	client := queue.NewClient(redistest.Client(t), queue.ClientConfig{})
	all := tasks(20, redistest.Prefix(t))
	sum, err := client.EnqueueBatch(t.Context(), func(yield func(queue.Entry) bool) {
		for e := range all {
			if !yield(e) {
				return
			}
			if got := <-results; got.Line != e.Line {
				t.Errorf("result %d of line %d", got.Line, e.Line)
			}
		}
	}, func(r queue.Result) { results <- r })
	if sum.Enqueued != 20 || err != nil {
		t.Errorf("%+v %v", sum, err)
	}
}

// TestBatchInterrupted holds that a batch that is interrupted says how many were
// done, and that all of it can be given again: each id is enqueued once.
func TestBatchInterrupted(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	const n = 20000
	ctx, cancel := context.WithCancel(t.Context())
	results := 0
	first, err := client.EnqueueBatch(ctx, tasks(n, name), func(queue.Result) {
		if results++; results == 700 {
			cancel()
		}
	})
	if err != context.Canceled || first.Enqueued != results || first.Total() != results { //nolint:errorlint // exactly this one
		t.Fatalf("%+v %v after %d results", first, err, results)
	}
	if results < 700 || results == n {
		t.Errorf("interrupted after 700, ended after %d", results)
	}
	// What had no result is not enqueued, and what had one is.
	if got := pending(t, rdb, name); !slices.Equal(got, wantIDs(results)) {
		t.Errorf("%d enqueued, %d results", len(got), results)
	}
	second, err := client.EnqueueBatch(t.Context(), tasks(n, name), nil)
	if err != nil || second.Duplicate != results || second.Enqueued != n-results {
		t.Errorf("again: %+v %v", second, err)
	}
	if !slices.Equal(pending(t, rdb, name), wantIDs(n)) {
		t.Error("not each id once")
	}
}

// TestBatchSourceFails holds that what was read before the source failed is
// enqueued, and that the failure is told.
func TestBatchSourceFails(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	broken := errors.New("disk on fire")
	client := queue.NewClient(rdb, queue.ClientConfig{})
	text := fmt.Sprintf(`{"type":"mail","scope":"a","queue":%q}`, name) + "\n"
	source := queue.NewReader(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)))
	sum, err := client.EnqueueBatch(t.Context(), source.All(), nil)
	if sum.Enqueued != 1 || sum.Total() != 1 || !errors.Is(err, broken) {
		t.Errorf("%+v %v", sum, err)
	}
	if len(pending(t, rdb, name)) != 1 {
		t.Error("what was read is not enqueued")
	}
}

// TestBatchRedisFails holds that a batch stops when Redis refuses, says which
// tasks failed, and that all of it can be given again.
func TestBatchRedisFails(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	const n = 20000
	results, failed := 0, 0
	sum, err := client.EnqueueBatch(t.Context(), tasks(n, "q"), func(r queue.Result) {
		if results++; results == 700 {
			if err := rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Error(err)
			}
		}
		if r.State == queue.Failed {
			failed++
		}
	})
	if !redis.HasErrorPrefix(rootOf(err), "OOM") || sum.Failed != failed || failed == 0 || sum.Enqueued < 700 || sum.Total() != results || results == n {
		t.Fatalf("%+v %v, %d results, %d failed", sum, err, results, failed)
	}
	rdb.ConfigSet(t.Context(), "maxmemory", "0")
	if got := pending(t, rdb, "q"); !slices.Equal(got, wantIDs(sum.Enqueued)) {
		t.Errorf("%d enqueued, %+v", len(got), sum)
	}
	if again, err := client.EnqueueBatch(t.Context(), tasks(n, "q"), nil); err != nil || again.Duplicate != sum.Enqueued {
		t.Errorf("again: %+v %v", again, err)
	}
	if !slices.Equal(pending(t, rdb, "q"), wantIDs(n)) {
		t.Error("not each id once")
	}
}

// TestBatchMemory holds that "a million lines need no more memory than a
// thousand": what is alive does not grow with what has been read. It is not
// parallel, since the other tests' memory would be counted.
func TestBatchMemory(t *testing.T) {
	const n, slack = 20000, 4 << 20
	rdb := redistest.NewServer(t).Client(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	alive := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var early, late uint64
	_, err := client.EnqueueBatch(t.Context(), queue.NewReader(newLines(n, "q")).All(), func(r queue.Result) {
		switch {
		case r.State != queue.Enqueued:
			t.Errorf("%+v", r)
		case r.Line == 2000:
			early = alive()
		case r.Line%5000 == 0:
			late = max(late, alive())
		}
	})
	if err != nil || early == 0 || late > early+slack {
		t.Errorf("%v; %d bytes alive after 2000 lines, %d later on", err, early, late)
	}
}
