package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// pending returns the ids in a queue in the order in which asynq will run them.
func pending(t *testing.T, rdb redis.UniversalClient, queueName string) []string {
	t.Helper()
	ids, err := rdb.LRange(t.Context(), "asynq:{"+queueName+"}:pending", 0, -1).Result()
	must(t, err)
	slices.Reverse(ids)
	return ids
}

// wantIDs are the first n ids of many of scope a.
func wantIDs(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("a", i))
	}
	return ids
}

// A batch reports each line in its order, goes on after bad lines and taken ids, and enqueues what was read before its source failed.
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
	broken := errors.New("disk on fire")
	source := queue.NewReader(io.MultiReader(strings.NewReader(text+"\n"), iotest.ErrReader(broken)))
	sum, err := queue.NewClient(rdb, queue.ClientConfig{}).EnqueueBatch(t.Context(), source.All(), func(r queue.Result) {
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
	if (sum != queue.Summary{Enqueued: 4, Duplicate: 3, Invalid: 2, Random: 1}) || sum.Total() != 9 || !errors.Is(err, broken) {
		t.Errorf("%+v %v", sum, err)
	}
	if ids := pending(t, rdb, name); len(ids) != 3 || ids[0] != "a" || ids[2] != "d" {
		t.Errorf("pending %q", ids)
	}
}

// Of two entries with the same id the first is enqueued, also if one of them is delayed and Redis has only one of asynq's two scripts.
func TestBatchFirstOfTwo(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	const pairs = 50
	for round := range 4 {
		loaded, first := time.Duration(round/2)*time.Hour, time.Duration(round%2)*time.Hour
		must(t, rdb.ScriptFlush(t.Context()).Err())
		_, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "a", Delay: loaded})
		must(t, err)
		var tasks []queue.Task
		for i := range pairs {
			task := queue.Task{Type: "mail", Scope: "a", ID: fmt.Sprintf("%d-%d", round, i), Delay: first}
			tasks = append(tasks, task)
			task.Delay = time.Hour - first
			tasks = append(tasks, task)
		}
		sum, err := client.EnqueueBatch(t.Context(), queue.Number(slices.Values(tasks)), func(r queue.Result) {
			if want := []queue.State{queue.Enqueued, queue.Duplicate}[(r.Line-1)%2]; r.State != want {
				t.Errorf("loaded %v, line %d, id %s: %s", loaded, r.Line, r.ID, r.State)
			}
		})
		if (sum != queue.Summary{Enqueued: pairs, Duplicate: pairs}) || err != nil {
			t.Errorf("%+v %v", sum, err)
		}
	}
}

// An interrupted batch reports what was enqueued. Running all of it again enqueues each id once.
func TestBatchInterrupted(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Client(t), redistest.Prefix(t)
	client := queue.NewClient(rdb, queue.ClientConfig{})
	const n = 20000
	ctx, cancel := context.WithCancel(t.Context())
	results := 0
	first, err := client.EnqueueBatch(ctx, many(name, n, "a"), func(queue.Result) {
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
	second, err := client.EnqueueBatch(t.Context(), many(name, n, "a"), nil)
	if err != nil || second.Duplicate != results || second.Enqueued != n-results {
		t.Errorf("again: %+v %v", second, err)
	}
	if !slices.Equal(pending(t, rdb, name), wantIDs(n)) {
		t.Error("not each id once")
	}
}

// "A million lines need no more memory than a thousand". It is not parallel: the memory of other tests would count.
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
	file, out := io.Pipe() // a file that is made while it is read
	t.Cleanup(func() { _ = file.Close() })
	go func() {
		defer out.Close()
		for i := range n {
			_, _ = fmt.Fprintf(out, `{"type":"mail","scope":"a","id":"%d","payload":%q}`+"\n", i, strings.Repeat("x", 200))
		}
	}()
	_, err := client.EnqueueBatch(t.Context(), queue.NewReader(file).All(), func(r queue.Result) {
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

// A call that is sent again after its answer was lost enqueues its task once, and reports a Duplicate unless this package drew the id.
func TestLostReply(t *testing.T) {
	t.Parallel()
	plain, name := redistest.Client(t), redistest.Prefix(t)
	opts := *plain.Options()
	rdb := redis.NewClient(&opts)
	t.Cleanup(func() { _ = rdb.Close() })
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			_ = send()
		}
		return send()
	}))
	client := queue.NewClient(rdb, queue.ClientConfig{})
	for id, want := range map[string]queue.State{"": queue.Enqueued, "x": queue.Duplicate} {
		got, err := client.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "a", Queue: name, ID: id})
		if got.State != want || err != nil {
			t.Errorf("%q: %+v %v", id, got, err)
		}
	}
	if ids := pending(t, plain, name); len(ids) != 2 {
		t.Errorf("pending %q", ids)
	}
}

func mail(id string) string { return fmt.Sprintf(`{"type":"mail","scope":"a","id":"%s"}`, id) }

func TestReader(t *testing.T) {
	t.Parallel()
	long := mail(strings.Repeat("x", 70<<10)) // longer than the buffer, too long an id
	fits := `{"type":"mail","scope":"a","id":"fits","payload":"` + strings.Repeat("x", 900<<10) + `"}`
	exact := strings.Repeat(" ", queue.MaxLine-len(mail("e"))) + mail("e")
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":            {"", nil},
		"no newline":       {mail("a") + "\n" + mail("b"), []string{"1:a", "2:b"}},
		"blank lines":      {"\n" + mail("a") + "\n \n\n" + mail("b") + "\n\n", []string{"2:a", "5:b"}},
		"CRLF":             {mail("a") + "\r\n\r\n" + mail("b") + "\r\n", []string{"1:a", "3:b"}},
		"byte order mark":  {"\ufeff" + mail("a") + "\n" + mail("b"), []string{"1:a", "2:b"}},
		"mark elsewhere":   {mail("a") + "\n\ufeff" + mail("b"), []string{"1:a", "2:not JSON at byte 1: invalid character '\\ufeff' at start of value"}},
		"UTF-16":           {"\xff\xfe{\x00}\x00\n\x00", []string{"1:not JSON at byte 1: invalid character '\\xff' at start of value", "2:not JSON at byte 1: invalid character '\\x00' at start of value"}},
		"bad among good":   {mail("a") + "\n{\n" + mail("b") + "\n\xff\n" + mail("c"), []string{"1:a", "2:not JSON at byte 2: unexpected EOF", "3:b", "4:not JSON at byte 1: invalid character '\\xff' at start of value", "5:c"}},
		"above the buffer": {long + "\n" + fits + "\n" + mail("b"), []string{"1:id: 71680 bytes long; 256 at most", "2:fits", "3:b"}},
		"as long as may be": {
			exact + "\r\n " + exact + "\n" + mail("b"),
			[]string{"1:e", "2:longer than 1048576 bytes", "3:b"},
		},
		"far too long": {strings.Repeat("x", 5<<20) + "\n" + mail("b"), []string{"1:longer than 1048576 bytes", "2:b"}},
	} {
		for way, r := range map[string]io.Reader{"": strings.NewReader(tt.text), ", halved": iotest.HalfReader(strings.NewReader(tt.text))} {
			var got []string // line:id or line:reason
			for e := range queue.NewReader(r).All() {
				what := e.Task.ID
				if e.Err != nil {
					what = strings.TrimPrefix(e.Err.Error(), "queue: invalid task: ")
				}
				got = append(got, fmt.Sprintf("%d:%s", e.Line, what))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s%s:\ngot  %.300q\nwant %.300q", name, way, got, tt.want)
			}
		}
	}
}
