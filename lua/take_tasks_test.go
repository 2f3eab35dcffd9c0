package lua

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

const aLease = "1800057630.123457"

// take makes the arguments of a call.
func (q taskQueue) take(lease string, ids ...string) (keys []string, args []any) {
	args = []any{lease}
	for _, id := range ids {
		keys, args = append(keys, q.prefix+"t:"+id), append(args, id)
	}
	for _, name := range []string{"active", "lease", "scheduled", "retry", "paused"} {
		keys = append(keys, q.prefix+name)
	}
	return keys, args
}

// outcomesOf reads a reply of take_tasks: the id of a task whose message it has, or a number.
func outcomesOf(reply []any) (out []string) {
	for _, one := range reply {
		out = append(out, strings.TrimPrefix(fmt.Sprint(one), "message of "))
	}
	return out
}

// take_tasks takes what waits, says of all else what it is, and answers the same when it is sent again: on Redis, as a
// user who may touch the call's keys alone, on a cluster that forbids undeclared keys, and on miniredis. By release_tasks
// the tasks go into pending, in the order of the call, as long as the lease is still that of the caller.
func TestTakeTasks(t *testing.T) {
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
			q.do("ZADD", q.prefix+"lease", 1_800_057_600, "active")
			q.add("later", "scheduled")
			q.add("lost", "retry")
			q.do("ZREM", q.prefix+"retry", "lost")
			q.do("HSET", q.prefix+"t:no message", "state", "scheduled")
			ids := append([]string{"retry", "none", "lost", "no message", "scheduled"}, states[2:]...)
			keys, args := q.take(aLease, ids...)
			caller, source := redis.Scripter(rdb), TakeTasks.Source()
			switch name {
			case "redis":
				caller = redistest.User(t, redistest.Literal(keys...),
					"eval", "evalsha", "hmget", "exists", "lpush", "zadd", "zrem", "zscore", "zmscore", "hset")
			case "cluster":
				source = "#!lua\n" + source
			}
			want := []string{"retry", "0", "-4", "-4", "scheduled", "-1", "-2", "-3", "-3", "-3", "-4"}
			for round := range 2 {
				got, err := redis.NewScript(source).Run(t.Context(), caller, keys, args...).Slice()
				if err != nil || !slices.Equal(outcomesOf(got), want) {
					t.Fatalf("round %d: %q, %v; want %q for %q", round, outcomesOf(got), err, want, ids)
				}
				held := q.holds("retry", "scheduled")
				for _, line := range []string{
					"pending [pending]\n", "scheduled [later]\n", "retry []\n", "lease [active retry scheduled]\n",
					"retry map[msg:message of retry state:active]\n", "scheduled map[msg:message of scheduled state:active]\n",
				} {
					if !strings.Contains(held, line) {
						t.Fatalf("round %d: the queue holds\n%sand not %q", round, held, line)
					}
				}
				if n := rdb.LLen(t.Context(), q.prefix+"active").Val(); n != 3 {
					t.Fatalf("round %d: %d tasks are active, want 3", round, n)
				}
			}

			q.do("ZADD", q.prefix+"lease", 1_800_057_660, "scheduled") // asynq has renewed it: it runs
			keys, args = q.releaseTaken(aLease, "retry", "scheduled", "active", "later")
			back, err := redis.NewScript(ReleaseTasks.Source()).Run(t.Context(), rdb, keys, args...).Int64Slice()
			if want := []int64{1, -1, -1, 1}; err != nil || !slices.Equal(back, want) {
				t.Fatalf("given back: %d, %v; want %d", back, err, want)
			}
			if held := q.holds("retry"); !strings.Contains(held, "pending [pending later retry]\n") ||
				!strings.Contains(held, "lease [active scheduled]\n") || !strings.Contains(held, "state:pending") {
				t.Errorf("given back, the queue holds\n%s", held)
			}
			if n := rdb.LLen(t.Context(), q.prefix+"active").Val(); n != 2 {
				t.Errorf("%d tasks are active, want 2", n)
			}
		})
	}
}

// A queue that is paused keeps its tasks, and takes those back that were taken before.
func TestTakeTasksPaused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	q := taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + "}:"}
	q.add("a", "scheduled")
	q.add("b", "retry")
	keys, args := q.take(aLease, "a")
	if got, err := redis.NewScript(TakeTasks.Source()).Run(t.Context(), rdb, keys, args...).Slice(); err != nil || outcomesOf(got)[0] != "a" {
		t.Fatalf("%v, %v", got, err)
	}
	q.do("SET", q.prefix+"paused", 1)
	keys, args = q.take("1800057631.5", "b")
	if got, err := redis.NewScript(TakeTasks.Source()).Run(t.Context(), rdb, keys, args...).Slice(); err != nil || outcomesOf(got)[0] != "-5" {
		t.Errorf("of a paused queue: %v, %v", got, err)
	}
	keys, args = q.releaseTaken(aLease, "a")
	if got, err := redis.NewScript(ReleaseTasks.Source()).Run(t.Context(), rdb, keys, args...).Int64Slice(); err != nil || got[0] != 1 {
		t.Errorf("given back to a paused queue: %v, %v", got, err)
	}
}

// "a server that refuses a command half-way leaves no task in neither"
func TestTasksRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	scripts := map[*Script]struct {
		from     string
		call     func(taskQueue) ([]string, []any)
		commands []string // one is refused, or all of them would be done
		besides  []string
	}{
		TakeTasks: {"scheduled", func(q taskQueue) ([]string, []any) { return q.take(aLease, "a") },
			[]string{"hmget", "zmscore", "zadd", "lpush", "hset", "zrem"}, []string{"exists", "zscore"}},
		ReleaseTasks: {"retry", func(q taskQueue) ([]string, []any) { return q.release("a") }, []string{"hmget", "rpush", "zrem", "hset"}, []string{"exists", "lrem"}},
		PutBack: {"active", func(q taskQueue) ([]string, []any) {
			q.do("ZADD", q.prefix+"lease", 1, "a")
			return []string{q.prefix + "t:a", q.prefix + "active", q.prefix + "lease", q.prefix + "retry"}, []any{"a", "it waits", 1900000000, "retry"}
		}, []string{"hget", "zscore", "zadd", "hset", "lrem", "zrem"}, nil},
		DeferTasks: {"pending", func(q taskQueue) ([]string, []any) { return q.park("a") }, []string{"hmget", "zadd", "lrem", "hset", "hdel"}, []string{"zrem"}},
	}
	for script, test := range scripts {
		for i, missing := range test.commands {
			t.Run(script.Name+" "+missing, func(t *testing.T) {
				t.Parallel()
				q := taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + "}:"}
				q.add("a", test.from)
				keys, args := test.call(q)
				allowed := slices.Concat(slices.Delete(slices.Clone(test.commands), i, i+1), test.besides, []string{"eval", "evalsha"})
				user := redistest.User(t, redistest.Literal(keys...), allowed...)
				if err := redis.NewScript(script.Source()).Run(t.Context(), user, keys, args...).Err(); err == nil {
					t.Fatal("it was not refused")
				}
				in := func(set string) bool { return rdb.ZScore(t.Context(), q.prefix+set, "a").Err() == nil }
				listed := func(list string) bool {
					_, err := rdb.LPos(t.Context(), q.prefix+list, "a", redis.LPosArgs{}).Result()
					return err == nil
				}
				if !in("scheduled") && !in("retry") && !listed("pending") && (!listed("active") || !in("lease")) {
					t.Error("it is nowhere")
				}
			})
		}
	}
}
