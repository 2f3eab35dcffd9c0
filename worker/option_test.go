package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// A task that can't start before its deadline fails with that reason; waiting
// for a turn never counts against its time-out.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "spends it"})
	s.serve(asynq.Config{Concurrency: 1}, nil)
	<-s.ended
	soon := time.Now().Add(5 * time.Minute)
	s.add(queue.Task{ID: "own", Deadline: soon})
	s.addForeign("foreign", asynq.Deadline(soon), asynq.MaxRetry(5))
	s.addForeign("timeout", asynq.Timeout(5*time.Minute), asynq.MaxRetry(5))
	for _, id := range []string{"own", "foreign"} {
		if text := s.archived(id); !strings.Contains(text, "deadline") || !strings.Contains(text, "rule r of p") {
			t.Errorf("%s failed with %q", id, text)
		}
	}
	s.until("a time-out is no deadline", func() bool {
		info := s.info("timeout")
		return info != nil && info.State == asynq.TaskStateRetry && info.Retried == 0
	})
}

// "timeout bounds the run from its start"
func TestTimeoutOfOwn(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(100), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", Timeout: 20 * time.Millisecond, MaxRetry: queue.Retries(0)})
	s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if text := s.archived("t"); !strings.Contains(text, context.DeadlineExceeded.Error()) {
		t.Errorf("it failed with %q", text)
	}
}

// "waiting stops the lock's clock"
func TestUniqueWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "spends it"})
	s.serve(asynq.Config{Concurrency: 1}, nil)
	<-s.ended
	unique := func(id string, retries int) error {
		task := asynq.NewTaskWithHeaders("work", []byte(id[:1]), map[string]string{queue.HeaderScope: "p/a"})
		_, err := s.client.Enqueue(task, asynq.TaskID(id), asynq.Unique(2*time.Second), asynq.MaxRetry(retries))
		return err
	}
	for id, retries := range map[string]int{"a1": 3, "b1": 0} {
		must(t, unique(id, retries))
		key := asynqx.NewLock("default", id, "work", []byte(id[:1])).Key
		s.until("the lock of "+id+" is put off", func() bool { return s.rdb.PTTL(t.Context(), key).Val() > time.Minute })
		if err := unique(id[:1]+"2", retries); !errors.Is(err, asynq.ErrDuplicateTask) {
			t.Errorf("a duplicate of %s got in: %v", id, err)
		}
	}
}

// "Leave gives the waiting tasks of a queue back their plain asynq form"
func TestLeave(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{Hold: -1})
	s.add(queue.Task{ID: "spends it"})
	server := s.serve(asynq.Config{Concurrency: 1}, nil)
	<-s.ended
	s.add(queue.Task{ID: "waits", MaxRetry: queue.Retries(7), Timeout: 90 * time.Second, Remember: time.Hour, Payload: []byte(`{"n":1}`)})
	s.addForeign("carried", asynq.MaxRetry(0))
	s.until("both wait", func() bool {
		w, c := s.info("waits"), s.info("carried")
		return w != nil && c != nil && w.State == asynq.TaskStateRetry && c.State == asynq.TaskStateScheduled
	})
	server.Shutdown()
	s.add(queue.Task{ID: "later", Delay: time.Hour, MaxRetry: queue.Retries(0)})
	s.add(queue.Task{ID: "now"})
	_, err := s.client.Enqueue(asynq.NewTask("plain", nil), asynq.TaskID("plain"))
	must(t, err)
	n, err := Detach(t.Context(), s.rdb, "default")
	if err != nil || n != 4 {
		t.Fatalf("changed %d tasks: %v", n, err)
	}
	want := map[string]int{"waits": 7, "carried": 0, "later": 0, "now": 25, "plain": 25}
	for id, retries := range want {
		info := s.info(id)
		if info == nil || info.MaxRetry != retries {
			t.Errorf("%s is %+v, want max retry %d", id, info, retries)
		}
	}
	if w := s.info("waits"); w.Timeout != 90*time.Second || w.Retention != time.Hour || string(w.Payload) != `{"n":1}` || w.State != asynq.TaskStateScheduled {
		t.Errorf("waits is %+v", w)
	}
	if n, err := Detach(t.Context(), s.rdb, "default"); err != nil || n != 0 {
		t.Errorf("a second Leave changed %d: %v", n, err)
	}
	if keys := s.rdb.Keys(t.Context(), "hw:leaving*").Val(); len(keys) > 0 {
		t.Errorf("left behind: %v", keys)
	}
}

// "calling Leave again finishes what a crash cut off"
func TestLeaveAfterCrash(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	s.add(queue.Task{ID: "t", MaxRetry: queue.Retries(3)})
	l := &leaving{rdb: s.rdb, queue: "default", client: s.client, inspector: s.inspector}
	p, _, err := plainOf(s.info("t"))
	must(t, err)
	s.rdb.HSet(t.Context(), l.journal(), "t", `{"id":"t","type":"work","max_retry":3}`)
	must(t, s.inspector.DeleteTask("default", "t"))
	_, err = Detach(t.Context(), s.rdb, "default")
	must(t, err)
	if info := s.info("t"); info == nil || info.MaxRetry != p.MaxRetry {
		t.Errorf("got %+v", info)
	}
}

// "Config returns cfg with what limited tasks need around what it holds already"
func TestConfigKeepsTheUsers(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perHour(1), MiddlewareConfig{})
	mine := errors.New("mine")
	var told []error
	cfg := s.throttle.Config(asynq.Config{
		IsFailure:      func(err error) bool { return !errors.Is(err, mine) },
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 42 * time.Second },
		ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told = append(told, err) }),
		Queues:         map[string]int{"a": 3}, TaskCheckInterval: time.Minute,
	})
	limited := errors.Join(errors.New("middleware"), &Limited{At: time.Now().Add(2500 * time.Millisecond)})
	if cfg.IsFailure(mine) || !cfg.IsFailure(errors.New("other")) || cfg.IsFailure(limited) {
		t.Error("IsFailure is not around the user's own")
	}
	if d := cfg.RetryDelayFunc(0, mine, nil); d != 42*time.Second {
		t.Errorf("the user's delay became %s", d)
	}
	if d := cfg.RetryDelayFunc(0, limited, nil); d < 2500*time.Millisecond || d > 3600*time.Millisecond {
		t.Errorf("a limited task comes back after %s", d)
	}
	if d := cfg.RetryDelayFunc(0, errors.Join(&asking{time.Hour}, mine), nil); d < time.Hour || d > time.Hour+2*time.Second {
		t.Errorf("a task that asked for an hour comes back after %s", d)
	}
	if d := cfg.RetryDelayFunc(0, &asking{}, nil); d != 42*time.Second {
		t.Errorf("a task that asked for nothing comes back after %s", d)
	}
	cfg.ErrorHandler.HandleError(t.Context(), nil, limited)
	cfg.ErrorHandler.HandleError(t.Context(), nil, mine)
	if !slices.Equal(told, []error{mine}) {
		t.Errorf("the user was told of %v", told)
	}
	if cfg.TaskCheckInterval != time.Minute || cfg.DelayedTaskCheckInterval != delayedCheckInterval || cfg.Queues["a"] != 3 {
		t.Errorf("got %+v", cfg)
	}
}

// asking is an error that says when to try again.
type asking struct{ wait time.Duration }

func (a *asking) Error() string                  { return "asking" }
func (a *asking) RetryIn() (time.Duration, bool) { return a.wait, a.wait > 0 }

// "never before it": asynq keeps whole seconds and rounds them down.
func TestDelayIsNeverEarly(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 700_000_000)
	for at, want := range map[time.Duration]int64{0: 1, 200 * time.Millisecond: 1, 300 * time.Millisecond: 1, 301 * time.Millisecond: 2, -time.Hour: 0} {
		stored := now.Add(delay(now.Add(at), now)).Unix()
		if got := stored - now.Unix(); got != want {
			t.Errorf("a wait of %s is stored as second %d, want %d", at, got, want)
		}
	}
}
