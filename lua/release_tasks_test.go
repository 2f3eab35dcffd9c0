package lua

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// taskQueue is a queue as asynq keeps it, with tasks in every state.
type taskQueue struct {
	t      *testing.T
	rdb    redis.UniversalClient
	prefix string
}

func (q taskQueue) do(args ...any) {
	q.t.Helper()
	if err := q.rdb.Do(context.Background(), args...).Err(); err != nil {
		q.t.Fatal(err)
	}
}

// add lays a task down where its state says.
func (q taskQueue) add(id, state string) {
	q.t.Helper()
	q.do("HSET", q.prefix+"t:"+id, "state", state, "msg", "message of "+id)
	switch state {
	case "pending", "active":
		q.do("LPUSH", q.prefix+state, id)
	case "scheduled", "retry", "archived", "completed":
		q.do("ZADD", q.prefix+state, 2_000_000_000, id)
	}
}

// release makes the arguments of a call.
func (q taskQueue) release(ids ...string) (keys []string, args []any) {
	return q.releaseTaken("", ids...)
}

// releaseTaken is release for tasks that were taken under a lease.
func (q taskQueue) releaseTaken(lease string, ids ...string) (keys []string, args []any) {
	args = []any{"1800057600123456789", lease}
	for _, id := range ids {
		keys, args = append(keys, q.prefix+"t:"+id), append(args, id)
	}
	for _, name := range []string{"pending", "scheduled", "retry", "paused", "active", "lease"} {
		keys = append(keys, q.prefix+name)
	}
	return keys, args
}

// holds returns all that is in the queue: every list, set and hash.
func (q taskQueue) holds(ids ...string) string {
	q.t.Helper()
	ctx := context.Background()
	var out strings.Builder
	for _, list := range []string{"pending", "active"} {
		fmt.Fprintln(&out, list, q.rdb.LRange(ctx, q.prefix+list, 0, -1).Val())
	}
	for _, set := range []string{"scheduled", "retry", "archived", "completed", "lease"} {
		fmt.Fprintln(&out, set, q.rdb.ZRange(ctx, q.prefix+set, 0, -1).Val())
	}
	for _, id := range ids {
		fmt.Fprintln(&out, id, q.rdb.HGetAll(ctx, q.prefix+"t:"+id).Val())
	}
	return out.String()
}

// release_tasks moves what waits, in order and to the front, says of all else
// where it is, and touches none of it; on Redis, as a user who may touch the
// call's keys alone, on a cluster that forbids undeclared keys, and on miniredis.
func TestReleaseTasks(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Client(t), redistest.Cluster(t)
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": server, "cluster": cluster, "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + "}:"}
			states := []string{"scheduled", "retry", "active", "pending", "archived", "completed", "aggregating", "unheard of"}
			for _, state := range states {
				q.add(state, state)
			}
			q.add("later", "scheduled")
			q.add("lost", "retry")
			q.do("ZREM", q.prefix+"retry", "lost")
			q.do("HSET", q.prefix+"t:result only", "result", "x")
			q.do("HSET", q.prefix+"t:no message", "state", "scheduled")
			q.do("ZADD", q.prefix+"scheduled", 1, "no message")
			ids := append([]string{"retry", "none", "lost", "result only", "no message", "scheduled", "retry"}, states[2:]...)
			keys, args := q.release(ids...)

			caller, source := redis.Scripter(rdb), ReleaseTasks.Source()
			switch name {
			case "redis":
				caller = redistest.User(t, redistest.Literal(keys...),
					"eval", "evalsha", "hmget", "exists", "rpush", "zrem", "hset", "lrem")
			case "cluster":
				source = "#!lua\n" + source
			}
			want := []int64{1, 0, -4, -4, -4, 1, -4, -1, -2, -3, -3, -3, -4}
			for round := range 2 {
				got, err := redis.NewScript(source).Run(t.Context(), caller, keys, args...).Int64Slice()
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("round %d: outcomes %d, %v; want %d for %q", round, got, err, want, ids)
				}
				if got, want := q.holds(append(ids, "later")...), releasedQueue; got != want {
					t.Fatalf("round %d: the queue holds\n%swant\n%s", round, got, want)
				}
				want[0], want[5], want[6] = -2, -2, -2 // sent again it changes nothing
			}
		})
	}
}

// retry was given twice: it stands at its later place, once.
const releasedQueue = `pending [pending retry scheduled]
active [active]
scheduled [no message later]
retry []
archived [archived]
completed [completed]
lease []
retry map[msg:message of retry pending_since:1800057600123456789 state:pending]
none map[]
lost map[msg:message of lost state:retry]
result only map[result:x]
no message map[state:scheduled]
scheduled map[msg:message of scheduled pending_since:1800057600123456789 state:pending]
retry map[msg:message of retry pending_since:1800057600123456789 state:pending]
active map[msg:message of active state:active]
pending map[msg:message of pending state:pending]
archived map[msg:message of archived state:archived]
completed map[msg:message of completed state:completed]
aggregating map[msg:message of aggregating state:aggregating]
unheard of map[msg:message of unheard of state:unheard of]
later map[msg:message of later state:scheduled]
`
