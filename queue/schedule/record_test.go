package schedule

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// Records only move on, whoever writes them, and the first one stands.
func TestRecordsOnlyMoveOn(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]redis.UniversalClient{
		"a server":  redistest.NewServer(t).Client(t),
		"a cluster": redistest.Cluster(t),
		// what docs/operations.md grants, and no more
		"a user of few rights": redistest.NewServer(t).User(t, []string{recordsKey},
			"time", "zadd", "zrange", "zremrangebyscore", "pexpire"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := records{rdb: rdb}
			ctx := t.Context()
			member := redistest.Prefix(t)
			begin, err := r.read(ctx)
			if err != nil || !begin.until[member].IsZero() || time.Since(begin.exact).Abs() > time.Minute {
				t.Fatalf("%+v, %v", begin, err)
			}
			at := begin.now
			for i, step := range []struct {
				write func(marks)
				want  time.Time
			}{
				{func(m marks) { m.first(member, at) }, at},
				{func(m marks) { m.first(member, at.Add(time.Hour)) }, at},
				{func(m marks) { m.advance(member, at.Add(time.Minute)) }, at.Add(time.Minute)},
				{func(m marks) { m.advance(member, at.Add(time.Second)) }, at.Add(time.Minute)},
				{func(marks) {}, at.Add(time.Minute)},
			} {
				m := marks{}
				step.write(m)
				must(t, r.write(ctx, m))
				st, err := r.read(ctx)
				if err != nil || !st.until[member].Equal(step.want) {
					t.Errorf("step %d: %v, %v, want %v", i, st.until, err, step.want)
				}
			}
		})
	}
}
