package asynqx

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/test/redistest"
)

// A server says of itself that it runs as many tasks at once as its configuration has: the slots that it may lend beyond that are no part
// of it.
func TestServerSaysItsConcurrency(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	g := NewClient(ClientConfig{Redis: rdb, Serving: t.Context(), Interval: time.Second, Concurrency: 16})
	info := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "here")
	info = protowire.AppendVarint(protowire.AppendTag(info, fieldConcurrency, protowire.VarintType), uint64(g.Slots.Most())) //nolint:gosec // 24
	keys := []string{"asynq:servers:{here:1:x}", "asynq:workers:{here:1:x}"}
	write := redis.NewScript(`return redis.call("SETEX", KEYS[1], ARGV[1], ARGV[2])`)
	for step, send := range []func() error{
		func() error { return write.Eval(t.Context(), g, keys, 10, info).Err() },
		func() error { return write.EvalSha(t.Context(), g, keys, 10, info).Err() },
	} {
		must(t, send())
		g.beats.wait()
		got, err := ReadServers(t.Context(), rdb, keys[:1])
		if s := got[keys[0]]; err != nil || s.Host != "here" || s.Concurrency != 16 {
			t.Errorf("step %d: %+v, %v, want a Concurrency of 16, not %d", step, s, err, g.Slots.Most())
		}
		must(t, rdb.Del(t.Context(), keys[0]).Err())
	}
}
