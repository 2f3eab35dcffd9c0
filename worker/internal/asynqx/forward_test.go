package asynqx

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// Where nothing is due asynq's script that forwards tasks is not sent: one command asks, and asynq hears that it
// moved none. It is sent as soon as something is due, and its errors reach asynq.
func TestForwardsWhatIsDue(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	forwarded := 0
	g := NewClient(ClientConfig{
		Redis: rdb, Serving: t.Context(), Interval: time.Second, Concurrency: 1,
		Forwarded: func(queue string, n int) {
			if queue != "default" {
				t.Errorf("%d were forwarded into %q", n, queue)
			}
			forwarded += n
		},
	})
	const now = 1_700_000_000
	keys := []string{"asynq:{default}:retry", "asynq:{default}:pending"}
	forwards := func(want int) map[string]int {
		t.Helper()
		return redistest.Commands(t, rdb, func() {
			got, err := g.Eval(t.Context(), `return redis.call("ZCARD", KEYS[1])`, keys, int64(now), "asynq:{default}:t:").Result()
			if err != nil || got != int64(want) {
				t.Errorf("%v (%T), %v; want %d", got, got, err, want)
			}
		})
	}
	add := func(id string, score float64) {
		t.Helper()
		must(t, rdb.ZAdd(t.Context(), keys[0], redis.Z{Score: score, Member: id}).Err())
	}
	if got := forwards(0); redistest.Total(got) != 1 || got["zrangebyscore"] != 1 {
		t.Errorf("an empty set takes %v", got)
	}
	add("later", now+1)
	if got := forwards(0); redistest.Total(got) != 1 {
		t.Errorf("a set with nothing due takes %v", got)
	}
	add("due", now)
	if got := forwards(2); got["eval"] != 1 || forwarded != 2 {
		t.Errorf("a task that is due takes %v, and %d were forwarded", got, forwarded)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Eval(over, `return 1`, keys, int64(now)).Err(); err == nil {
		t.Error("a Redis that cannot be asked forwards")
	}
}
