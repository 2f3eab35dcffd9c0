package demand_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// lines reads all that a record has.
func lines(t *testing.T, r io.Reader) (tasks []demand.Task, processes []demand.Process, err error) {
	t.Helper()
	err = demand.Read(r, func(l *demand.Line) error {
		if l.V > 0 {
			processes = append(processes, l.Process)
		} else {
			tasks = append(tasks, l.Task)
		}
		return nil
	})
	return tasks, processes, err
}

// record runs a Recorder while it records.
func record(t *testing.T, cfg demand.Config, during func(*demand.Recorder)) {
	t.Helper()
	r, err := demand.NewRecorder(cfg)
	must(t, err)
	ctx, end := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		r.Run(ctx, func() demand.Process { return demand.Process{At: 7, Slots: 32, Limits: "ab"} })
	})
	during(r)
	end()
	run.Wait()
}

func one(i int) demand.Task {
	return demand.Task{ID: demand.ID("default", fmt.Sprint(i)), Scope: fmt.Sprintf("p/t%d", i), Wanted: 1, Started: 2, Ended: int64(3 + i)}
}

// toFile records tasks into a file, and returns all that it has then.
func toFile(t *testing.T, path string, tasks ...demand.Task) []byte {
	t.Helper()
	file, err := demand.OpenFile(path, 1<<20)
	must(t, err)
	record(t, demand.Config{Out: file}, func(r *demand.Recorder) {
		for _, task := range tasks {
			r.Record(task)
		}
	})
	must(t, file.Close())
	text, err := os.ReadFile(path)
	must(t, err)
	return text
}

func many(n int) (tasks []demand.Task) {
	for i := range n {
		tasks = append(tasks, one(i))
	}
	return tasks
}

// What is recorded is read again, from a file that is appended to, whether or not blocks were full. "A block that a crash has cut off is
// removed first", and what is no record is left as it is.
func TestRecordInAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web-1.ndjson.gz")
	want := append([]demand.Task{{
		ID: "ab", Scope: "p/a", Queue: "q", Cost: 2, Costs: policy.Costs{"tokens": 5}, Used: policy.Costs{"tokens": 0}, Priority: -1, Member: "key1", Retried: 3,
		Wanted: 1, Started: 2, Ended: 3, Status: 429, Outcome: "deferred",
	}}, many(2500)...)
	toFile(t, path, want[0])
	whole := toFile(t, path, want[1:]...)
	tasks, processes, err := lines(t, bytes.NewReader(whole))
	if err != nil || !reflect.DeepEqual(tasks, want) {
		t.Errorf("%d of %d tasks, %v", len(tasks), len(want), err)
	}
	if p := processes[0]; len(processes) != 4 || p.V != 1 || p.Process == "" || p.At != 7 || p.Slots != 32 || p.Limits != "ab" || p.End || !processes[1].End {
		t.Errorf("%+v", processes)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %s, %v", info.Mode(), err)
	}
	must(t, os.Truncate(path, int64(len(whole)-9)))
	tasks, _, err = lines(t, bytes.NewReader(toFile(t, path, one(9))))
	if last := len(tasks) - 1; err != nil || last != 2000 || tasks[last].Scope != "p/t9" {
		t.Errorf("behind a cut: %d tasks, %v", len(tasks), err)
	}
	block := whole[:bytes.Index(whole[1:], whole[:10])+1]
	for rest, before := range map[string][]byte{"\x1f": block, string(whole[:9]): block, "\x00\x00": block, string(whole[:5]): nil} { // within a header
		must(t, os.WriteFile(path, append(slices.Clip(before), rest...), 0o600))
		tasks, _, err = lines(t, bytes.NewReader(toFile(t, path, one(9))))
		if err != nil || len(tasks) != 1+min(len(before), 1) {
			t.Errorf("behind a cut of %q after %d bytes: %d tasks, %v", rest, len(before), len(tasks), err)
		}
	}
	must(t, os.WriteFile(path, []byte("limits: {}\n"), 0o600))
	if _, err := demand.OpenFile(path, 1<<20); !errors.Is(err, demand.ErrNoRecord) {
		t.Errorf("a file of limits is opened: %v", err)
	}
}

// "Then the recording stops, with an error in the log and a last line in the file."
func TestFullRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "record")
	const most = 20_000
	file, err := demand.OpenFile(path, most)
	must(t, err)
	var log bytes.Buffer
	record(t, demand.Config{Out: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(r *demand.Recorder) {
		for i := 0; r.Wants("p/a"); i++ {
			r.Record(one(i))
		}
	})
	text, err := os.ReadFile(path)
	must(t, err)
	tasks, processes, err := lines(t, bytes.NewReader(text))
	last := processes[len(processes)-1]
	if err != nil || len(text) > most || len(tasks) < 500 || !last.Full || !last.End || strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("%d bytes, %d tasks, %+v, %v, %s", len(text), len(tasks), last, err, &log)
	}
	if _, err := demand.OpenFile(path, int64(len(text))); !errors.Is(err, demand.ErrFull) {
		t.Errorf("a full file is opened: %v", err)
	}
}

// A record in Redis is that of all processes. "The oldest part goes when it is larger than that."
func TestRecordInRedis(t *testing.T) {
	t.Parallel()
	mini, _ := redistest.Miniredis(t)
	for name, rdb := range map[string]*redis.Client{"Redis": redistest.Client(t), "miniredis": redis.NewClient(redistest.MiniredisOptions(mini))} {
		prefix := "record-" + name
		for _, host := range []string{"p/a", "p/b"} {
			record(t, demand.Config{Out: demand.ToRedis(rdb, prefix, 1<<20)}, func(r *demand.Recorder) {
				for _, task := range many(2000) {
					task.Scope = host
					r.Record(task)
				}
			})
		}
		tasks, processes, err := lines(t, demand.FromRedis(t.Context(), rdb, prefix))
		if err != nil || len(tasks) != 4000 || len(processes) != 4 || tasks[0].Scope != "p/a" || tasks[3999].Scope != "p/b" {
			t.Errorf("%s: %d tasks, %d processes, %v", name, len(tasks), len(processes), err)
		}
		if ttl := rdb.TTL(t.Context(), prefix+":{!record}").Val(); ttl < 7*24*time.Hour {
			t.Errorf("%s: it expires in %s", name, ttl)
		}
		for size, most := range map[int]int64{10_000: 104, 500: 2000} { // in 1 MB
			out := demand.ToRedis(rdb, prefix, 1<<20)
			for range 2100 {
				_, err := out.Write(make([]byte, size))
				must(t, err)
			}
			if n := rdb.XLen(t.Context(), prefix+":{!record}").Val(); n < most/2 || n > most+100 {
				t.Errorf("%s: %d blocks of %d bytes in 1 MB", name, n, size)
			}
		}
		none, _, err := lines(t, demand.FromRedis(t.Context(), rdb, "none"))
		if len(none) > 0 || err != nil {
			t.Errorf("%s: of a record that does not exist: %v, %v", name, none, err)
		}
	}
}

// "Recording delays no task: what cannot be written in time is left out, and counted." What is lost with a Redis that is away counts too.
func TestRecordNeverBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		var log bytes.Buffer
		var works atomic.Bool
		out := output(func(b []byte) (int, error) {
			if !works.Load() {
				return 0, io.ErrClosedPipe
			}
			return text.Write(b)
		})
		record(t, demand.Config{Out: out, Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(r *demand.Recorder) {
			synctest.Wait()
			for i := range 900 {
				r.Record(one(i))
			}
			<-time.After(11 * time.Second) // two blocks fail
			r.Record(one(1))
			<-time.After(6 * time.Second)
			works.Store(true)
			r.Record(one(2))
		})
		tasks, processes, err := lines(t, &text)
		if err != nil || len(tasks) != 1 || len(processes) != 1 || processes[0].Lost != 902 { // the first line of the process too
			t.Errorf("%v, %+v, %v", tasks, processes, err)
		}
		if strings.Count(log.String(), "cannot write") != 1 {
			t.Errorf("the log says\n%s", &log)
		}
		r, err := demand.NewRecorder(demand.Config{Out: out})
		must(t, err)
		for i := range 30_000 { // nobody takes them
			r.Record(one(i))
		}
	})
}

type output func([]byte) (int, error)

func (o output) Write(b []byte) (int, error) { return o(b) }

// "A tenth of the tenants is recorded, each with all tasks, and each worker chooses the same ones."
func TestSample(t *testing.T) {
	t.Parallel()
	a, err := demand.NewRecorder(demand.Config{Out: io.Discard, Sample: 0.1})
	must(t, err)
	b, err := demand.NewRecorder(demand.Config{Out: io.Discard, Sample: 0.1})
	must(t, err)
	some := 0
	for i := range 10_000 {
		tenant := fmt.Sprintf("p/t%d", i)
		if a.Wants(tenant) {
			some++
		}
		if a.Wants(tenant) != b.Wants(tenant) || a.Wants(tenant) != a.Wants(tenant+"/refunds/slow") {
			t.Errorf("%s is recorded in part", tenant)
		}
	}
	if some < 900 || some > 1100 {
		t.Errorf("%d of 10000 tenants are recorded", some)
	}
	var none *demand.Recorder
	if none.Wants("p") {
		t.Error("no Recorder wants a task")
	}
	for _, cfg := range []demand.Config{{}, {Out: io.Discard, Sample: -1}, {Out: io.Discard, Sample: 1.1}} {
		if _, err := demand.NewRecorder(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// What is no record is refused, with the line; one that was cut off is read as far as it goes.
func TestReadFaults(t *testing.T) {
	t.Parallel()
	const good = `{"scope":"p/a","wanted":1,"started":2,"ended":3}` + "\n"
	for text, want := range map[string]string{
		"":                                    "",
		good + "\n" + good:                    "",
		good + strings.TrimSuffix(good, "\n"): "",
		good + `{"scope":"p`:                  "the record ends within a line",
		`{"scope":"p`:                         "line 1: unexpected end",
		good + "nonsense\n" + good:            "line 2: invalid character",
		good + "{}\n":                         "line 2: it has no scope",
		good + `{"scope":"p//a","wanted":1}` + "\n":                       "line 2: ",
		good + `{"scope":"p","wanted":1,"started":5,"ended":4}` + "\n":    "line 2: its cost or its times",
		good + `{"scope":"p"}` + "\n":                                     "line 2: its cost or its times",
		good + `{"scope":"p","wanted":-1}` + "\n":                         "line 2: its cost or its times",
		good + `{"scope":"p","wanted":1,"costs":{"A":1}}` + "\n":          "line 2: ",
		good + `{"v":2,"process":"a"}`:                                    "version 2; this program reads version 1",
		`{"scope":"p","wanted":1,"queue":"` + strings.Repeat("x", 70_000): "line 1: it is longer than 65536 bytes",
	} {
		_, _, err := lines(t, strings.NewReader(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.80q: %v", text, err)
		}
	}
	text := toFile(t, filepath.Join(t.TempDir(), "record"), many(1500)...)
	for _, size := range []int{3, 200, len(text) / 2, len(text) - 1} {
		if tasks, _, err := lines(t, bytes.NewReader(text[:size])); !errors.Is(err, demand.ErrCut) || len(tasks) == 0 && size > 20_000 {
			t.Errorf("%d of %d bytes: %d tasks, %v", size, len(text), len(tasks), err)
		}
	}
	if _, _, err := lines(t, bytes.NewReader(append(text, "rest"...))); !errors.Is(err, demand.ErrCut) {
		t.Errorf("behind it is something else: %v", err)
	}
}

// A task's id is a hash, of its queue too, and always the same.
func TestID(t *testing.T) {
	t.Parallel()
	if a, b := demand.ID("q", "a"), demand.ID("r", "a"); a == b || a != demand.ID("q", "a") || len(a) != 16 || strings.Contains(a, "q") {
		t.Error(a, b)
	}
}
