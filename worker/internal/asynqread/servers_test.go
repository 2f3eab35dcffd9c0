package asynqread

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// The servers are what asynq's own inspector says of them, and no more are read than asked for.
func TestServerList(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	queues := map[string]int{"default": 3, "low": 1}
	for range 3 {
		server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 7, Queues: queues, LogLevel: asynq.FatalLevel})
		must(t, server.Start(asynq.NewServeMux()))
		t.Cleanup(server.Shutdown)
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	redistest.WaitFor(t, "all servers to be known", 10*time.Second, func() bool {
		list, err := inspector.Servers()
		return err == nil && len(list) == 3
	})
	want, err := inspector.Servers()
	must(t, err)
	keys, all, err := ServerKeys(t.Context(), rdb, time.Now(), 2)
	if err != nil || all != 3 || len(keys) != 2 {
		t.Errorf("%q of %d, %v", keys, all, err)
	}
	if keys, _, err = ServerKeys(t.Context(), rdb, time.Now(), 10); err != nil || len(keys) != 3 {
		t.Fatalf("%q, %v", keys, err)
	}
	got, err := ReadServers(t.Context(), rdb, append(keys, "asynq:servers:{gone:1:x}"))
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, s := range got {
		if s.Host != want[0].Host || s.PID != want[0].PID || s.Concurrency != 7 || s.Status != "active" || s.Active != 0 || !maps.Equal(s.Queues, queues) || s.Started.Sub(want[0].Started).Abs() > 10*time.Second {
			t.Errorf("got %+v, want %+v", s, want[0])
		}
	}
	if _, later, err := ServerKeys(t.Context(), rdb, time.Now().Add(time.Hour), 10); err != nil || later != 0 {
		t.Errorf("an hour later %d are alive, %v", later, err)
	}
	for _, damaged := range []string{"\x0a\xff", "\xff", "\x2a\x02\x0a\x09"} {
		if s, ok := readServerInfo([]byte(damaged)); ok {
			t.Errorf("%q is read as %+v", damaged, s)
		}
	}
}

// Tasks are counted by queue and by whether they wait, and read many at a time: those that have gone are left out.
func TestTasks(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	client := asynq.NewClientFromRedisClient(rdb)
	add := func(id string, opts ...asynq.Option) {
		t.Helper()
		_, err := client.Enqueue(asynq.NewTaskWithHeaders("mail", nil, map[string]string{"due": "at " + id}), append(opts, asynq.TaskID(id))...)
		must(t, err)
	}
	add("a")
	add("b")
	add("later", asynq.Queue("low"), asynq.ProcessIn(time.Hour))
	counts, more, err := CountTasks(t.Context(), rdb, 1)
	if err != nil || !more || len(counts) != 1 || counts[0] != (QueueTasks{Name: "default", Pending: 2}) {
		t.Errorf("%+v, more: %t, %v", counts, more, err)
	}
	if n, err := Backlog(t.Context(), rdb, []string{"default", "low", "none"}); err != nil || n != 3 {
		t.Errorf("%d wait, %v", n, err)
	}
	tasks := []TaskRef{{"default", "b"}, {"low", "later"}, {"low", "gone"}}
	values, err := Headers(t.Context(), rdb, tasks, "due")
	if err != nil || !slices.Equal(values, []string{"at b", "at later", ""}) {
		t.Errorf("%q, %v", values, err)
	}
	heads, err := TaskHeads(t.Context(), rdb, tasks)
	if err != nil || len(heads) != 2 || heads[tasks[1]].Type != "mail" || heads[tasks[1]].Headers["due"] != "at later" {
		t.Errorf("%+v, %v", heads, err)
	}
}
