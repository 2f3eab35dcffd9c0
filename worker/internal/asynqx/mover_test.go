package asynqx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// yard is a Redis with asynq's tasks in every state, and a mover of them.
type yard struct {
	*Mover
	t         *testing.T
	rdb       *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	faults    []string
}

func newYard(t *testing.T, rdb *redis.Client) *yard {
	t.Helper()
	y := &yard{t: t, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb)}
	y.Mover = NewMover(rdb, func(kind string) { y.faults = append(y.faults, kind) })
	return y
}

func (y *yard) add(id string, opts ...asynq.Option) {
	y.t.Helper()
	_, err := y.client.Enqueue(asynq.NewTask("work", []byte(id)), append(opts, asynq.TaskID(id))...)
	must(y.t, err)
}

// later enqueues tasks that wait for an hour.
func (y *yard) later(ids ...string) {
	y.t.Helper()
	for _, id := range ids {
		y.add(id, asynq.ProcessIn(time.Hour))
	}
}

// serve runs tasks by asynq alone, as their ids say, until all of them have run; it returns their ids in the order in which they began.
func (y *yard) serve(n int) []string {
	y.t.Helper()
	ran := make(chan string, n)
	server := asynq.NewServerFromRedisClient(y.rdb, asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		id := string(task.Payload())
		ran <- id
		switch id {
		case "retry":
			return errors.New("not yet")
		case "archived":
			return asynq.SkipRetry
		}
		return nil
	}))
	must(y.t, err)
	var ids []string
	for range n {
		ids = append(ids, <-ran)
	}
	server.Shutdown()
	return ids
}

// everyState lays a task of each state.
func (y *yard) everyState() {
	y.t.Helper()
	y.add("retry")
	y.add("archived")
	y.add("completed", asynq.Retention(time.Hour))
	y.serve(3)
	y.later("scheduled", "later")
	y.add("group", asynq.Group("g"))
	y.add("pending")
	y.add("active")
	for _, cmd := range [][]any{
		{"LMOVE", "asynq:{default}:pending", "asynq:{default}:active", "LEFT", "LEFT"},
		{"HSET", "asynq:{default}:t:active", "state", "active"},
		{"ZADD", "asynq:{default}:lease", time.Now().Add(time.Hour).Unix(), "active"},
	} {
		must(y.t, y.rdb.Do(y.t.Context(), cmd...).Err())
	}
}

func (y *yard) state(id string) string {
	info, err := y.inspector.GetTaskInfo("default", id)
	if err != nil {
		return err.Error()
	}
	return info.State.String()
}

// outcomes releases tasks and fails when anything could not be found out.
func (y *yard) outcomes(ids ...string) []Outcome {
	y.t.Helper()
	out, err := y.Release(y.t.Context(), "default", ids)
	must(y.t, err)
	return out
}

// The outcomes say what a task is in any state. What waits is moved, and nothing else.
func TestReleaserStates(t *testing.T) {
	t.Parallel()
	y := newYard(t, redistest.NewServer(t).Client(t))
	y.everyState()
	ids := []string{"retry", "scheduled", "none", "pending", "active", "archived", "completed", "group"}
	want := []Outcome{Moved, Moved, Gone, Pending, Active, Elsewhere, Elsewhere, Elsewhere}
	for round := range 2 {
		if got := y.outcomes(ids...); !slices.Equal(got, want) {
			t.Errorf("round %d: outcomes %d, want %d", round, got, want)
		}
		want[0], want[1] = Pending, Pending
	}
	for id, want := range map[string]string{
		"retry": "pending", "scheduled": "pending", "later": "scheduled", "pending": "pending", "active": "active",
		"archived": "archived", "completed": "completed", "group": "aggregating",
	} {
		if got := y.state(id); got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	if len(y.faults) > 0 {
		t.Errorf("faults %q", y.faults)
	}
	if order := y.serve(3); !slices.Equal(order, []string{"retry", "scheduled", "pending"}) {
		t.Errorf("they ran in the order %q", order)
	}
}

// "Commands that a task costs": two, and five more for the call.
func TestReleaserCost(t *testing.T) {
	t.Parallel()
	y := newYard(t, redistest.NewServer(t).Client(t))
	for _, test := range []struct{ n, commands int }{{1, 8}, {1, 7}, {10, 25}, {moveBatch, 205}} { // the first call sends the script, too
		var ids []string
		for i := range test.n {
			ids = append(ids, fmt.Sprint(test.commands, " ", i))
		}
		y.later(ids...)
		if got := redistest.Commands(t, y.rdb, func() { y.outcomes(ids...) }); redistest.Total(got) != test.commands && test.commands != 8 {
			t.Errorf("%d tasks: %d commands, want %d: %v", test.n, redistest.Total(got), test.commands, got)
		}
	}
}

// A release that was not tested is refused, and the error says which one it is, which were tested, and what to do.
func TestUntested(t *testing.T) {
	t.Parallel()
	built := func(m *debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Deps: []*debug.Module{{Path: "other", Version: "v9.9.9"}, m}}
	}
	const unknown = "built with asynq v0.27.0, and Headway was tested with v0.25.0, v0.25.1, v0.26.0; run: go get github.com/hibiken/asynq@v0.26.0, or take a release of Headway that was tested with v0.27.0"
	for name, test := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"tested":     {built(&debug.Module{Path: asynqModule, Version: "v0.26.0"}), ""},
		"not tested": {built(&debug.Module{Path: asynqModule, Version: "v0.27.0"}), unknown},
		"replaced":   {built(&debug.Module{Path: asynqModule, Version: "v0.27.0", Replace: &debug.Module{Path: asynqModule, Version: "v0.26.0"}}), ""},
		"a fork":     {built(&debug.Module{Path: asynqModule, Version: "v0.26.0", Replace: &debug.Module{Path: "fork", Version: "v0.26.0"}}), "built with asynq fork@v0.26.0"},
		"not known":  {nil, ""},
	} {
		if err := untested(test.info); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q in it", name, err, test.want)
		}
	}
	if err := CheckRelease(); err != nil {
		t.Error(err)
	}
}

// A held task is active, and back where it was when it is put back, with the headers that were changed and all else as asynq wrote it.
func TestHeldAndPutBack(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	task := asynq.NewTaskWithHeaders("work", []byte("payload"), map[string]string{"keep": "1", "change": "2", "drop": "3"})
	add := func(id string, opts ...asynq.Option) {
		t.Helper()
		_, err := client.Enqueue(task, append(opts, asynq.TaskID(id), asynq.Queue("low"), asynq.MaxRetry(7), asynq.Retention(time.Hour))...)
		must(t, err)
	}
	info := func(id string) *asynq.TaskInfo {
		t.Helper()
		got, err := inspector.GetTaskInfo("low", id)
		must(t, err)
		return got
	}
	add("a", asynq.ProcessAt(at), asynq.Unique(2*time.Hour))
	if err := inspector.PauseQueue("low"); err != nil { // a paused queue's tasks can be held too
		t.Fatal(err)
	}
	held, was, err := Hold(t.Context(), rdb, "low", "a")
	if err != nil || was != Moved || info("a").State != asynq.TaskStateActive {
		t.Fatalf("%v, %v, %s", was, err, info("a").State)
	}
	if _, was, err := Hold(t.Context(), rdb, "low", "a"); err != nil || was != Active {
		t.Errorf("held twice: %v, %v", was, err)
	}
	if err := inspector.DeleteTask("low", "a"); err == nil {
		t.Error("a held task was deleted")
	}
	must(t, held.PutBack(t.Context(), map[string]string{"change": "4", "new": "5", "drop": ""}, at.Add(time.Hour)))
	got := info("a")
	if got.State != asynq.TaskStateScheduled || !got.NextProcessAt.Equal(at) || got.MaxRetry != 7 || got.Retention != time.Hour || string(got.Payload) != "payload" {
		t.Errorf("%+v", got)
	}
	if want := map[string]string{"keep": "1", "change": "4", "new": "5"}; !maps.Equal(got.Headers, want) {
		t.Errorf("headers %v, want %v", got.Headers, want)
	}
	if _, err := client.Enqueue(task, asynq.Queue("low"), asynq.Unique(time.Hour)); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("its lock is lost: %v", err)
	}
	for _, key := range []string{"active", "lease"} {
		if n := rdb.Exists(t.Context(), QueuePrefix("low")+key).Val(); n != 0 {
			t.Errorf("%s is left", key)
		}
	}

	held, _, err = Hold(t.Context(), rdb, "low", "a")
	must(t, err)
	soon := time.Now().Add(time.Minute)
	if err := held.PutBack(t.Context(), nil, soon); err != nil || info("a").NextProcessAt.Unix() != SecondAtOrAfter(soon) || info("a").Headers["new"] != "5" {
		t.Errorf("%+v, %v", info("a"), err)
	}
	held, _, _ = Hold(t.Context(), rdb, "low", "a")
	rdb.ZAdd(t.Context(), QueuePrefix("low")+"lease", redis.Z{Score: 1.5, Member: "a"}) // another's by now
	if err := held.PutBack(t.Context(), nil, soon); err != nil || info("a").State != asynq.TaskStateActive {
		t.Errorf("another's run was put back: %+v, %v", info("a"), err)
	}

	add("p")
	for id, want := range map[string]Outcome{"p": Pending, "none": Gone} {
		if held, was, err := Hold(t.Context(), rdb, "low", id); err != nil || was != want {
			t.Errorf("%s: %v, %v, %v", id, held, was, err)
		}
	}
}

// A task that becomes pending while it is being held is pending.
func TestHeldAsItLeaves(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb, beside := server.Client(t), server.Client(t)
	client, inspector := asynq.NewClientFromRedisClient(beside), asynq.NewInspectorFromRedisClient(beside)
	_, err := client.Enqueue(asynq.NewTask("work", nil), asynq.TaskID("a"), asynq.ProcessIn(time.Hour))
	must(t, err)
	runs := sync.OnceFunc(func() { must(t, inspector.RunTask("default", "a")) })
	rdb.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
		if cmd.Name() == "zscore" {
			runs()
		}
		return send()
	}))
	if _, was, err := Hold(t.Context(), rdb, "default", "a"); err != nil || was != Pending {
		t.Errorf("held as it became pending: %v, %v", was, err)
	}
}

// Tasks of every asynq in testedReleases are moved by the scripts as by asynq's own code. Each release is built and run as a
// program of its own, which takes it from the module cache or the module proxy.
//
// To take a new release in: add it to testedReleases, require it in go.mod, and run all tests.
func TestReleases(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds a program for every asynq release")
	}
	for _, release := range testedReleases {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			program := buildWith(t, release)
			server := redistest.NewServer(t)
			y := newYard(t, server.Client(t))
			output(t, program, "fill", server.Addr())
			moves, err := y.Park(t.Context(), "default", []string{"pending", "retry"}, time.Now().Add(time.Hour))
			if err != nil || !slices.Equal(moves, []bool{true, false}) || y.state("pending") != "scheduled" {
				t.Errorf("parked: %t, %v; pending is %s", moves, err, y.state("pending"))
			}
			if out := y.outcomes("pending"); out[0] != Moved {
				t.Errorf("what was parked is released: %d", out)
			}
			got := y.outcomes("retry", "none", "pending", "archived", "completed", "scheduled")
			if want := []Outcome{Moved, Gone, Pending, Elsewhere, Elsewhere, Moved}; !slices.Equal(got, want) {
				t.Errorf("outcomes %d, want %d", got, want)
			}
			for id, want := range map[string]string{"archived": "archived", "completed": "completed", "later": "scheduled"} {
				if got := y.state(id); got != want {
					t.Errorf("%s is %s, want %s", id, got, want)
				}
			}
			if order := output(t, program, "drain", server.Addr(), "3"); !slices.Equal(order, []string{"retry", "scheduled", "pending"}) {
				t.Errorf("they ran in the order %q", order)
			}
			if got := y.state("scheduled"); !strings.Contains(got, "not found") {
				t.Errorf("a task that has run is %s", got)
			}
		})
	}
}

// buildWith builds testdata/releases against an asynq release, with the other
// modules as in go.mod where that release has no say, and returns the program's path.
func buildWith(t *testing.T, release string) string {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{
		"../../../go.mod": "go.mod", "../../../go.sum": "go.sum",
		"testdata/releases/main.go": "main.go",
	} {
		text, err := os.ReadFile(from)
		must(t, err)
		text = regexp.MustCompile(`(?m)^(\s+`+regexp.QuoteMeta(asynqModule)+`) v\S+$`).ReplaceAll(text, []byte("$1 "+release))
		must(t, os.WriteFile(filepath.Join(dir, to), text, 0o644))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-o", "releases", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("asynq %s can't be built: %v\n%s\ntry: go mod download %s@%s, where the module proxy can be reached; "+
			"-short leaves this test out", release, err, out, asynqModule, release)
	}
	return filepath.Join(dir, "releases")
}

// output runs the program and returns the lines that it prints.
func output(t *testing.T, program string, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	if len(out) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
