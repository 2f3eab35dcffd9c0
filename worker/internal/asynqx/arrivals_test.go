package asynqx

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// A carrier enqueues its task once: also when it does so again, for example after a crash, and the task has run and is gone.
func TestArrivals(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) { t.Parallel(); testArrivals(t, redistest.NewServer(t).Client(t)) })
	t.Run("miniredis", func(t *testing.T) { _, rdb := redistest.Miniredis(t); testArrivals(t, rdb) })
}

func testArrivals(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	client, inspector := asynq.NewClientFromRedisClient(Arrivals{rdb}), asynq.NewInspectorFromRedisClient(rdb)
	enqueue := func(id string, opts ...asynq.Option) {
		t.Helper()
		opts = append(opts, asynq.TaskID(id), asynq.ProcessIn(time.Hour))
		if _, err := client.EnqueueContext(WithCarrier(t.Context(), "default", id), asynq.NewTask("work", []byte(id)), opts...); err != nil {
			t.Fatal(err)
		}
	}
	is := func(id string, want bool) {
		t.Helper()
		if _, err := inspector.GetTaskInfo("default", id); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t: %v", id, !want, want, err)
		}
	}
	for id, opts := range map[string][]asynq.Option{"plain": nil, "unique": {asynq.Unique(time.Hour)}} {
		if _, err := client.EnqueueContext(t.Context(), asynq.NewTask(CarrierType, nil), asynq.TaskID(CarrierID(id))); err != nil {
			t.Fatal(err)
		}
		enqueue(id, opts...)
		is(id, true)
		enqueue(id, opts...)
		must(t, inspector.DeleteTask("default", id))
		enqueue(id, opts...)
		is(id, false)
		must(t, inspector.DeleteTask("default", CarrierID(id)))
		enqueue(id, opts...) // another carrier's, or one that was deleted: nothing of it is left
		is(id, true)
		is(CarrierID(id), false)
	}
}
