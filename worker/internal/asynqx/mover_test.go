package asynqx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// yard is a Redis with asynq's tasks in every state, and a mover of them.
type yard struct {
	*Mover
	t      *testing.T
	rdb    *redis.Client
	client *asynq.Client
	logged *bytes.Buffer
	faults []string
}

func newYard(t *testing.T, rdb *redis.Client) *yard {
	t.Helper()
	y := &yard{t: t, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), logged: &bytes.Buffer{}}
	y.Mover = NewMover(rdb, asynq.NewInspectorFromRedisClient(rdb), slog.New(slog.NewTextHandler(y.logged, nil)),
		func(kind string) { y.faults = append(y.faults, kind) })
	if !y.Known {
		t.Fatalf("the linked asynq is not known: %s", y.logged)
	}
	return y
}

func (y *yard) add(id string, opts ...asynq.Option) {
	y.t.Helper()
	if _, err := y.client.Enqueue(asynq.NewTask("work", []byte(id)), append(opts, asynq.TaskID(id))...); err != nil {
		y.t.Fatal(err)
	}
}

// later enqueues tasks that wait for an hour.
func (y *yard) later(ids ...string) {
	y.t.Helper()
	for _, id := range ids {
		y.add(id, asynq.ProcessIn(time.Hour))
	}
}

// serve runs tasks by asynq alone, as their ids say, until all of them have run;
// it returns their ids in the order in which they began.
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

// Both ways say the same of a task in any state, move what waits and nothing else.
func TestReleaserStates(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprintf("keys known %t", known), func(t *testing.T) {
			t.Parallel()
			y := newYard(t, redistest.NewServer(t).Client(t))
			y.Known = known
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
			if len(y.faults) > 0 || y.logged.Len() > 0 {
				t.Errorf("faults %q, log %s", y.faults, y.logged)
			}
			order := y.serve(3)
			if known && !slices.Equal(order, []string{"retry", "scheduled", "pending"}) {
				t.Errorf("they ran in the order %q", order)
			}
		})
	}
}

// "each is woken by itself, in 12 commands and 4 round trips instead of 3 to 5
// commands": 7 and 2 of them are RunTask's own, the rest is the look at the task's
// state that spares archived ones.
func TestReleaserCost(t *testing.T) {
	t.Parallel()
	y := newYard(t, redistest.NewServer(t).Client(t))
	ids := func(name string, n int) (ids []string) {
		for i := range n {
			ids = append(ids, fmt.Sprint(name, i))
		}
		y.later(ids...)
		return ids
	}
	y.outcomes(ids("warm", 1)...)
	y.Known = false
	y.outcomes(ids("warm too", 1)...)
	alone := ids("alone", 10)
	got := redistest.Commands(t, y.rdb, func() {
		for _, id := range alone {
			if err := y.inspector.RunTask("default", id); err != nil {
				t.Error(err)
			}
		}
	})
	if redistest.Total(got) != 70 || got["evalsha"]+got["sismember"] != 20 {
		t.Errorf("RunTask alone: %v", got)
	}
	for _, test := range []struct {
		known    bool
		n        int
		commands int
		calls    int
	}{
		{true, 1, 6, 1},
		{true, 10, 33, 1},
		{true, releaseBatch, 303, 1},
		{false, 10, 120, 40},
	} {
		tasks := ids(fmt.Sprint(test.known, test.n, " "), test.n)
		y.Known = test.known
		got := redistest.Commands(t, y.rdb, func() { y.outcomes(tasks...) })
		calls := got["evalsha"]
		if !test.known {
			calls += got["sismember"]
		}
		if redistest.Total(got) != test.commands || calls != test.calls {
			t.Errorf("%d tasks, keys known %t: %d commands in %d calls, want %d in %d: %v",
				test.n, test.known, redistest.Total(got), calls, test.commands, test.calls, got)
		}
	}
}

// "unknown asynq version": another release, other keys or another script, told by
// one line that says what it costs.
func TestSchemaFault(t *testing.T) {
	t.Parallel()
	built := func(m *debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Deps: []*debug.Module{{Path: "other", Version: "v9.9.9"}, m}}
	}
	changed := slices.Clone(testedSchema)
	changed[4] = strings.Replace(changed[4], ":pending", ":ready", 1)
	for name, test := range map[string]struct {
		info  *debug.BuildInfo
		calls []string
		want  string
	}{
		"linked":            {nil, recordSchema(), ""},
		"tested":            {built(&debug.Module{Path: asynqModule, Version: "v0.25.1"}), testedSchema, ""},
		"not tested":        {built(&debug.Module{Path: asynqModule, Version: "v0.27.0"}), testedSchema, "v0.27.0 was not tested; v0.25.0, "},
		"replaced":          {built(&debug.Module{Path: asynqModule, Version: "v0.27.0", Replace: &debug.Module{Path: asynqModule, Version: "v0.26.0"}}), testedSchema, ""},
		"a fork":            {built(&debug.Module{Path: asynqModule, Version: "v0.26.0", Replace: &debug.Module{Path: "fork", Version: "v0.26.0"}}), testedSchema, "fork@v0.26.0 was not tested"},
		"other keys":        {nil, changed, "asynq:{q}:ready"},
		"fewer calls":       {nil, testedSchema[1:], "it calls"},
		"nothing was heard": {&debug.BuildInfo{}, nil, "it calls []"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			switch err := schemaFault(test.info, test.calls); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want %q in it", err, test.want)
			}
		})
	}
}
