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
	for step := range 2 {
		must(t, write.Run(t.Context(), g, keys, 10, info).Err())
		g.beats.wait()
		text, err := rdb.Get(t.Context(), keys[0]).Bytes()
		must(t, err)
		last := text[len(text)-1] // of two values the last one counts
		if host := field(text, 1); host != "here" || last != 16 {
			t.Errorf("step %d: %q says %q and %d, want a Concurrency of 16, not %d", step, text, host, last, g.Slots.Most())
		}
		must(t, rdb.Del(t.Context(), keys[0]).Err())
	}
}
