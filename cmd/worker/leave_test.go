package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

func noEnv(string) string { return "" }

// "Gives the waiting tasks of Headway's making back the plain form that asynq has"
func TestLeave(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	tasks := queue.NewClient(rdb, queue.ClientConfig{})
	for id, name := range map[string]string{"a": "default", "b": "low", "c": "low"} {
		if _, err := tasks.Enqueue(t.Context(), queue.Task{Type: "work", Scope: "p", ID: id, Queue: name, MaxRetry: queue.Retries(4)}); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr(), "-queues", "low", "-json"}, noEnv, &out, &errs)
	if want := `{"queue":"low","changed":2}` + "\n"; code != 0 || out.String() != want {
		t.Fatalf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	out.Reset()
	code = run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr()}, noEnv, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "queue default: 1 tasks") || !strings.Contains(out.String(), "queue low: 0 tasks") {
		t.Fatalf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("low", "b")
	if err != nil || info.MaxRetry != 4 {
		t.Errorf("got %+v, %v", info, err)
	}
}

// "Stop every worker first."
func TestLeaveWhileServing(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	srv := asynq.NewServerFromRedisClient(server.Client(t), asynq.Config{LogLevel: asynq.FatalLevel})
	must(t, srv.Start(asynq.NewServeMux()))
	t.Cleanup(srv.Shutdown)
	inspector := asynq.NewInspectorFromRedisClient(server.Client(t))
	redistest.WaitFor(t, "the server shows", bound, func() bool {
		servers, err := inspector.Servers()
		return err == nil && len(servers) == 1
	})
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"leave", "-redis", "redis://" + server.Addr()}, noEnv, &out, &errs)
	if code != 1 || !strings.Contains(errs.String(), "1 workers still serve") || !strings.Contains(errs.String(), "\ntry: ") || out.Len() > 0 {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out.String(), errs.String())
	}
}
