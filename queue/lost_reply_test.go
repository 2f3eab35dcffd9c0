package queue_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// TestLostReply holds that of two sendings of one task, the second after the
// answer to the first was lost, one is enqueued; and that it is reported as
// enqueued where the id was drawn here.
func TestLostReply(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id   string
		want queue.State
	}{
		"random id": {"", queue.Enqueued},
		"own id":    {"x", queue.Duplicate}, // "is then reported as a Duplicate, unless its id was drawn here"
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain, queueName := redistest.Client(t), redistest.Prefix(t)
			var lost atomic.Int32
			opts := *plain.Options()
			opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, addr)
				return &forgetful{Conn: conn, lost: &lost}, err
			}
			rdb := redis.NewClient(&opts)
			t.Cleanup(func() { _ = rdb.Close() })
			// One enqueued before, so that Redis has the script.
			warm := queue.Task{Type: "mail", Scope: "a", ID: "warm", Queue: queueName}
			if got, err := queue.NewClient(plain, queue.ClientConfig{}).Enqueue(t.Context(), warm); err != nil {
				t.Fatal(got, err)
			}
			task := queue.Task{Type: "mail", Scope: "a", ID: tt.id, Queue: queueName}
			got, err := queue.NewClient(rdb, queue.ClientConfig{}).Enqueue(t.Context(), task)
			if got.State != tt.want || err != nil || lost.Load() == 0 {
				t.Errorf("%+v %v after %d lost", got, err, lost.Load())
			}
			q, err := asynq.NewInspectorFromRedisClient(plain).GetQueueInfo(queueName)
			if err != nil || q.Pending != 2 {
				t.Errorf("%+v %v", q, err)
			}
		})
	}
}

// forgetful is a connection that breaks instead of giving the answer to the
// first script call that goes over any of them.
type forgetful struct {
	net.Conn
	lost   *atomic.Int32
	asked  bool
	broken bool
}

func (f *forgetful) Write(p []byte) (int, error) {
	f.asked = f.asked || bytes.Contains(p, []byte("evalsha"))
	return f.Conn.Write(p)
}

func (f *forgetful) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.broken || f.asked && f.lost.CompareAndSwap(0, 1) {
		f.broken = true
		return 0, io.EOF
	}
	return n, err
}
