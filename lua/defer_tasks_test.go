package lua

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// park makes the arguments of a call.
func (q taskQueue) park(ids ...string) (keys []string, args []any) {
	args = append(args, "1900000000.123457")
	for _, id := range ids {
		keys, args = append(keys, q.prefix+"t:"+id), append(args, id)
	}
	return append(keys, q.prefix+"pending", q.prefix+"scheduled"), args
}

// defer_tasks moves what is in pending and touches nothing else; on Redis, as a user who
// may touch the call's keys alone, on a cluster that forbids undeclared keys, and on
// miniredis.
func TestDeferTasks(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Client(t), redistest.Cluster(t)
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": server, "cluster": cluster, "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + "}:"}
			for _, id := range []string{"first", "second", "third"} {
				q.add(id, "pending")
				q.do("HSET", q.prefix+"t:"+id, "pending_since", 1)
			}
			for _, state := range []string{"active", "retry", "unheard of"} {
				q.add(state, state)
			}
			q.add("lost", "pending")
			q.do("LREM", q.prefix+"pending", 1, "lost")
			ids := []string{"second", "none", "active", "lost", "retry", "unheard of", "first", "second"}
			keys, args := q.park(ids...)
			caller, source := redis.Scripter(rdb), DeferTasks.Source()
			switch name {
			case "redis":
				caller = redistest.User(t, redistest.Literal(keys...), "eval", "evalsha", "hmget", "zadd", "zrem", "zscore", "hset", "hdel", "lrem")
			case "cluster":
				source = "#!lua\n" + source
			}
			want := []int64{1, 0, 0, 0, 0, 0, 1, 1}
			for round := range 2 {
				got, err := redis.NewScript(source).Run(t.Context(), caller, keys, args...).Int64Slice()
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("round %d: outcomes %d, %v; want %d for %q", round, got, err, want, ids)
				}
				if got := q.holds(append(ids, "third")...); got != parkedQueue {
					t.Fatalf("round %d: the queue holds\n%swant\n%s", round, got, parkedQueue)
				}
			}
			args[0] = "1900000000.123458"
			if got, err := redis.NewScript(source).Run(t.Context(), caller, keys, args...).Int64Slice(); err != nil || slices.Max(got) != 0 {
				t.Errorf("another call claims what is claimed: %d, %v", got, err)
			}
			if at := rdb.ZScore(t.Context(), q.prefix+"scheduled", "first").Val(); at != 1_900_000_000.123457 {
				t.Errorf("first is parked until %f", at)
			}
		})
	}
}

const parkedQueue = `pending [third]
active [active]
scheduled [first second]
retry [retry]
archived []
completed []
lease []
second map[msg:message of second state:scheduled]
none map[]
active map[msg:message of active state:active]
lost map[msg:message of lost state:pending]
retry map[msg:message of retry state:retry]
unheard of map[msg:message of unheard of state:unheard of]
first map[msg:message of first state:scheduled]
second map[msg:message of second state:scheduled]
third map[msg:message of third pending_since:1 state:pending]
`
