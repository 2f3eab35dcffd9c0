package queue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// Tasks from another author stay in a part of the scopes, overtake no others there, and "no task takes an id of another scope".
func TestWithin(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	of := func(scope string, most int) *queue.Client {
		return queue.NewClient(rdb, queue.ClientConfig{Within: &queue.Within{Scope: scope, MaxPriority: most}})
	}
	acme, other, free := of("p/acme", 0), of("p/a", 5), queue.NewClient(rdb, queue.ClientConfig{})
	task := func(scope, id string) queue.Task { return queue.Task{Type: "mail", Scope: scope, ID: id} }
	for _, row := range []struct {
		client *queue.Client
		task   queue.Task
		id     string // in asynq, or the fault
		state  queue.State
	}{
		{acme, task("p/acme", "1"), "p/acme//1", queue.Enqueued},
		{acme, task("p/acme/x", "1"), "p/acme//1", queue.Duplicate},
		{acme, task("p/acme/x", "2"), "p/acme//2", queue.Enqueued},
		{other, task("p/a", "1"), "p/a//1", queue.Enqueued}, // no duplicate of acme's
		{other, task("p/a", "cme//1"), "p/a//cme//1", queue.Enqueued},
		{free, task("p/acme", "1"), "1", queue.Enqueued},
		{acme, task("p", "3"), "scope: p is not within p/acme", queue.Invalid},
		{acme, task("p/acm", "3"), "scope: p/acm is not within p/acme", queue.Invalid},
		{acme, task("p/acmes", "3"), "scope: p/acmes is not within p/acme", queue.Invalid},
		{acme, task("q/acme", "3"), "scope: q/acme is not within p/acme", queue.Invalid},
		{acme, queue.Task{Type: "mail", Scope: "p/acme", ID: "3", Priority: 1}, "priority: 1 is above 0, the highest within p/acme", queue.Invalid},
		{acme, queue.Task{Type: "mail", Scope: "p/acme", ID: "3", Priority: -1}, "p/acme//3", queue.Enqueued},
		{other, queue.Task{Type: "mail", Scope: "p/a", ID: "3", Priority: 5}, "p/a//3", queue.Enqueued},
		{acme, task("p/acme", strings.Repeat("x", 249)), "id: 249 bytes long; 248 at most within p/acme", queue.Invalid},
	} {
		got, err := row.client.Enqueue(t.Context(), row.task)
		if got.State != row.state || row.state == queue.Invalid && !strings.HasSuffix(err.Error(), row.id) || row.state != queue.Invalid && got.ID != row.id {
			t.Errorf("%+v: %+v, %v", row.task, got, err)
		}
	}
	var ids []string
	tasks, err := asynq.NewInspectorFromRedisClient(rdb).ListPendingTasks("default")
	for _, info := range tasks {
		ids = append(ids, info.ID)
	}
	slices.Sort(ids)
	if want := []string{"1", "p/a//1", "p/a//3", "p/a//cme//1", "p/acme//1", "p/acme//2", "p/acme//3"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("%q, %v", ids, err)
	}
	if got, err := acme.Enqueue(t.Context(), task("p/acme", "")); err != nil || !got.Random || strings.Contains(got.ID, "//") {
		t.Errorf("%+v, %v", got, err)
	}
}
