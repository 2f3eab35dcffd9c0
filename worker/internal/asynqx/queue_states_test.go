package asynqx

import (
	"io"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/redistest"
)

// A queue whose servers could not be asked for is not taken for one that nobody serves.
func TestServersCouldNotBeAsked(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	failed := 0
	q := NewQueueStates(rdb, asynq.NewInspectorFromRedisClient(rdb), func(string) { failed++ })
	q.servers = func() ([]*asynq.ServerInfo, error) { return nil, io.ErrUnexpectedEOF }
	q.Ask(t.Context(), time.Second, "nobody's")
	if q.Stands("nobody's") || failed != 1 {
		t.Errorf("stands still: %t, %d faults", q.Stands("nobody's"), failed)
	}
}
