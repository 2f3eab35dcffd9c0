package asynqx

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// A held task is active, and back where it was when it is put back, with the headers that were changed and all else as asynq
// wrote it.
func TestHeldAndPutBack(t *testing.T) {
	t.Parallel()
	if !KeysKnown() {
		t.Fatal("the keys of this asynq are not known")
	}
	rdb := redistest.NewServer(t).Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	task := asynq.NewTaskWithHeaders("work", []byte("payload"), map[string]string{"keep": "1", "change": "2", "drop": "3"})
	add := func(id string, opts ...asynq.Option) {
		t.Helper()
		if _, err := client.Enqueue(task, append(opts, asynq.TaskID(id), asynq.Queue("low"), asynq.MaxRetry(7), asynq.Retention(time.Hour))...); err != nil {
			t.Fatal(err)
		}
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
	rdb.ZAdd(t.Context(), QueuePrefix("low")+"lease", redis.Z{Score: 1, Member: "a"}) // another's by now
	if err := held.PutBack(t.Context(), nil, soon); err != nil || info("a").State != asynq.TaskStateActive {
		t.Errorf("another's run was put back: %+v, %v", info("a"), err)
	}

	add("p")
	for id, want := range map[string]Outcome{"p": Pending, "none": Gone} {
		if held, was, err := Hold(t.Context(), rdb, "low", id); err != nil || was != want {
			t.Errorf("%s: %v, %v, %v", id, held, was, err)
		}
	}
	if was, err := RewritePending(t.Context(), rdb, "low", "p", map[string]string{"change": "6"}); err != nil || was != Pending || info("p").Headers["change"] != "6" {
		t.Errorf("%v, %v, %+v", was, err, info("p"))
	}
	if was, err := RewritePending(t.Context(), rdb, "low", "a", map[string]string{"change": "7"}); err != nil || was != Active || info("a").Headers["change"] != "4" {
		t.Errorf("%v, %v, %+v", was, err, info("a"))
	}
}
