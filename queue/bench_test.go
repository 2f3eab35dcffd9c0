package queue_test

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

// BenchmarkEnqueue enqueues equal tasks with asynq's own client, from as many
// goroutines as its name says, and with EnqueueBatch, from tasks and from lines.
//
//	go test -run '^$' -bench BenchmarkEnqueue -benchtime 100000x ./queue
func BenchmarkEnqueue(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("asynq/callers=%d", callers), func(b *testing.B) { benchmarkAsynq(b, callers) })
	}
	b.Run("batch/tasks", func(b *testing.B) {
		name := redistest.Prefix(b)
		benchmarkBatch(b, func(yield func(queue.Task) bool) {
			for i := range b.N {
				if !yield(benchTask(name, i)) {
					return
				}
			}
		})
	})
	b.Run("batch/lines", func(b *testing.B) {
		client := queue.NewClient(benchClient(b, 10), queue.ClientConfig{})
		reader := queue.NewReader(newLines(b.N, redistest.Prefix(b)))
		b.ReportAllocs()
		b.ResetTimer()
		sum, err := client.EnqueueBatch(b.Context(), reader.All(), nil)
		if err != nil || sum.Enqueued != b.N {
			b.Fatalf("%+v %v", sum, err)
		}
		reportRate(b)
	})
}

func benchmarkAsynq(b *testing.B, callers int) {
	b.Helper()
	client := asynq.NewClientFromRedisClient(benchClient(b, callers))
	name := redistest.Prefix(b)
	payload := []byte(`{"method":"POST","url":"https://api.example.com/charge","headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}`)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				id := fmt.Sprintf("inv-%d", i)
				task := asynq.NewTaskWithHeaders("http", payload, map[string]string{
					queue.HeaderScope: "payments/acme", queue.HeaderMaxRetry: "3",
					queue.HeaderTimeout: "10s", queue.HeaderID: id,
				})
				if _, err := client.EnqueueContext(b.Context(), task, asynq.TaskID(id), asynq.Queue(name)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	reportRate(b)
}

func benchmarkBatch(b *testing.B, tasks func(func(queue.Task) bool)) {
	b.Helper()
	client := queue.NewClient(benchClient(b, 10), queue.ClientConfig{})
	b.ReportAllocs()
	b.ResetTimer()
	sum, err := client.EnqueueBatch(b.Context(), queue.Number(tasks), nil)
	if err != nil || sum.Enqueued != b.N {
		b.Fatalf("%+v %v", sum, err)
	}
	reportRate(b)
}

// benchClient empties the server, so that every run meets the same.
func benchClient(b *testing.B, pool int) redis.UniversalClient {
	b.Helper()
	opts := *redistest.Client(b).Options()
	opts.PoolSize = pool
	client := redis.NewClient(&opts)
	b.Cleanup(func() { _ = client.Close() })
	if err := client.FlushAll(b.Context()).Err(); err != nil {
		b.Fatal(err)
	}
	return client
}

func reportRate(b *testing.B) {
	b.Helper()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(0, "ns/op")
}

func benchTask(queueName string, i int) queue.Task {
	return queue.Task{
		Type: queue.TypeHTTP, Scope: "payments/acme", ID: fmt.Sprintf("inv-%d", i), Queue: queueName,
		MaxRetry: queue.Retries(3), Timeout: 10e9,
		HTTP: &queue.HTTP{
			Method: "POST", URL: "https://api.example.com/charge",
			Headers: map[string]string{"X-Tenant": "acme"}, Body: `{"amount":100}`,
		},
	}
}

// lines is a file of n tasks that is made while it is read.
type lines struct {
	n, next int
	queue   string
	buf     bytes.Buffer
}

func newLines(n int, queueName string) *lines { return &lines{n: n, queue: queueName} }

func (l *lines) Read(p []byte) (int, error) {
	for l.buf.Len() < len(p) && l.next < l.n {
		l.buf.WriteString(`{"type":"http","id":"inv-`)
		l.buf.WriteString(strconv.Itoa(l.next))
		l.buf.WriteString(`","scope":"payments/acme","cost":1,"queue":"`)
		l.buf.WriteString(l.queue)
		l.buf.WriteString(`","max_retry":3,"delay":"0s","timeout":"10s","http":{"method":"POST","url":"https://api.example.com/charge",` +
			`"headers":{"X-Tenant":"acme"},"body":"{\"amount\":100}"}}` + "\n")
		l.next++
	}
	if l.buf.Len() == 0 {
		return 0, io.EOF
	}
	return l.buf.Read(p)
}
