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
	caller redis.Scripter // who runs the script
	source string
}

func newQueue(t *testing.T, rdb redis.UniversalClient, script *Script) taskQueue {
	t.Helper()
	return taskQueue{t, rdb, "asynq:{" + redistest.Prefix(t) + "}:", rdb, script.Source()}
}

// onQueues tests a script on Redis, as a user who has the given commands and the queue's keys alone, or those of them that are
// named; on a cluster that forbids keys of other slots; and on miniredis.
func onQueues(t *testing.T, script *Script, commands []string, test func(t *testing.T, q taskQueue), keys ...string) {
	t.Helper()
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": redistest.Client(t), "cluster": redistest.Cluster(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, rdb, script)
			switch name {
			case "redis":
				var may []string
				for _, key := range keys {
					may = append(may, redistest.Literal(q.prefix+key)...)
				}
				if may == nil {
					may = []string{q.prefix + "*"}
				}
				q.caller = redistest.User(t, may, append(commands, "eval", "evalsha")...)
			case "cluster":
				q.source = "#!lua\n" + q.source
			}
			test(t, q)
		})
	}
}

func (q taskQueue) run(keys []string, args ...any) *redis.Cmd {
	return redis.NewScript(q.source).Run(context.Background(), q.caller, keys, args...)
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

// everyState lays a task of each state down, named after it, another that waits, one that is in no set, and one without a message.
func (q taskQueue) everyState() (states []string) {
	q.t.Helper()
	states = []string{"scheduled", "retry", "active", "pending", "archived", "completed", "aggregating", "unheard of"}
	for _, state := range states {
		q.add(state, state)
	}
	q.add("later", "scheduled")
	q.add("lost", "retry")
	q.do("ZREM", q.prefix+"retry", "lost")
	q.do("HSET", q.prefix+"t:no message", "state", "scheduled")
	return states
}

// move returns the keys and arguments of a call of move_tasks.
func (q taskQueue) move(verb, score string, ids ...string) (keys []string, args []any) {
	args = []any{verb, score, "1800057600123456789"}
	for _, id := range ids {
		args = append(args, id)
	}
	return []string{q.prefix, q.prefix + "moving"}, args
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

// Releasing moves what waits, in order and to the front, says of all else where it is, and touches none of it; on Redis, as a user
// who may touch the queue's keys alone, on a cluster that forbids keys of other slots, and on miniredis.
func TestReleaseTasks(t *testing.T) {
	onQueues(t, MoveTasks, []string{"hmget", "exists", "rpush", "zrem", "zmscore", "hset", "lrem"}, func(t *testing.T, q taskQueue) {
		states := q.everyState()
		q.do("HSET", q.prefix+"t:result only", "result", "x")
		q.do("ZADD", q.prefix+"scheduled", 1, "no message")
		ids := append([]string{"retry", "none", "lost", "result only", "no message", "scheduled", "retry"}, states[2:]...)
		keys, args := q.move("release", "", ids...)
		want := []int64{1, 0, -4, -4, -4, 1, -4, -1, -2, -3, -3, -3, -4}
		for round := range 2 {
			got, err := q.run(keys, args...).Int64Slice()
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

// retry was given twice: it stands at its first place, once.
const releasedQueue = `pending [pending scheduled retry]
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

const aLease = "1800057630.123457"

// outcomesOf reads a reply of move_tasks: the id of a task whose message it has, or a number.
func outcomesOf(reply []any) (out []string) {
	for _, one := range reply {
		out = append(out, strings.TrimPrefix(fmt.Sprint(one), "message of "))
	}
	return out
}

// Taking takes what waits, says of all else what it is, and answers the same when it is sent again. Released, the tasks go into
// pending, in the order of the call, as long as the lease is still that of the caller.
func TestTakeTasks(t *testing.T) {
	onQueues(t, MoveTasks, []string{"hmget", "exists", "lpush", "zadd", "zrem", "zscore", "zmscore", "hset"}, func(t *testing.T, q taskQueue) {
		states := q.everyState()
		q.do("ZADD", q.prefix+"lease", 1_800_057_600, "active")
		ids := append([]string{"retry", "none", "lost", "no message", "scheduled"}, states[2:]...)
		keys, args := q.move("take", aLease, ids...)
		want := []string{"retry", "0", "-4", "-4", "scheduled", "-1", "-2", "-3", "-3", "-3", "-4"}
		for round := range 2 {
			got, err := q.run(keys, args...).Slice()
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
			if n := q.rdb.LLen(t.Context(), q.prefix+"active").Val(); n != 3 {
				t.Fatalf("round %d: %d tasks are active, want 3", round, n)
			}
		}

		q.do("ZADD", q.prefix+"lease", 1_800_057_660, "scheduled") // asynq has renewed it: it runs
		q.caller = q.rdb
		keys, args = q.move("release", aLease, "retry", "scheduled", "active", "later")
		back, err := q.run(keys, args...).Int64Slice()
		if want := []int64{1, -1, -1, 1}; err != nil || !slices.Equal(back, want) {
			t.Fatalf("given back: %d, %v; want %d", back, err, want)
		}
		if held := q.holds("retry"); !strings.Contains(held, "pending [pending later retry]\n") ||
			!strings.Contains(held, "lease [active scheduled]\n") || !strings.Contains(held, "state:pending") {
			t.Errorf("given back, the queue holds\n%s", held)
		}
		if n := q.rdb.LLen(t.Context(), q.prefix+"active").Val(); n != 2 {
			t.Errorf("%d tasks are active, want 2", n)
		}
	})
}

// A queue that is paused keeps its tasks, and takes those back that were taken before.
func TestTakeTasksPaused(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Client(t), MoveTasks)
	moves := func(verb, lease, id, want string) {
		t.Helper()
		keys, args := q.move(verb, lease, id)
		if got, err := q.run(keys, args...).Slice(); err != nil || outcomesOf(got)[0] != want {
			t.Errorf("%s %s: %v, %v, want %s", verb, id, got, err, want)
		}
	}
	q.add("a", "scheduled")
	q.add("b", "retry")
	moves("take", aLease, "a", "a")
	q.do("SET", q.prefix+"paused", 1)
	moves("take", "1800057631.5", "b", "-5")
	moves("release", aLease, "a", "1")
}

// "a server that refuses a command half-way leaves no task in neither"
func TestTasksRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	for name, test := range map[string]struct {
		script   *Script
		from     string
		call     func(taskQueue) ([]string, []any)
		commands []string // one is refused, or all of them would be done
		besides  []string
	}{
		"take": {MoveTasks, "scheduled", func(q taskQueue) ([]string, []any) { return q.move("take", aLease, "a") },
			[]string{"hmget", "zmscore", "zadd", "lpush", "hset", "zrem"}, []string{"exists", "zscore"}},
		"release": {MoveTasks, "retry", func(q taskQueue) ([]string, []any) { return q.move("release", "", "a") },
			[]string{"hmget", "zmscore", "rpush", "zrem", "hset"}, []string{"exists", "lrem"}},
		"put back": {PutBack, "active", func(q taskQueue) ([]string, []any) {
			q.do("ZADD", q.prefix+"lease", 1, "a")
			return []string{q.prefix + "t:a", q.prefix + "active", q.prefix + "lease", q.prefix + "retry"}, []any{"a", "it waits", 1900000000, "retry"}
		}, []string{"hget", "zscore", "zadd", "hset", "lrem", "zrem"}, nil},
		"defer": {MoveTasks, "pending", func(q taskQueue) ([]string, []any) { return q.move("defer", "1900000000.123457", "a") },
			[]string{"hmget", "zadd", "lrem", "hset", "hdel"}, []string{"zrem", "exists"}},
	} {
		for i, missing := range test.commands {
			t.Run(name+" "+missing, func(t *testing.T) {
				t.Parallel()
				q := newQueue(t, rdb, test.script)
				q.add("a", test.from)
				keys, args := test.call(q)
				allowed := slices.Concat(slices.Delete(slices.Clone(test.commands), i, i+1), test.besides, []string{"eval", "evalsha"})
				q.caller = redistest.User(t, []string{q.prefix + "*"}, allowed...)
				if q.run(keys, args...).Err() == nil {
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

// Deferring moves what is in pending and touches nothing else.
func TestDeferTasks(t *testing.T) {
	onQueues(t, MoveTasks, []string{"exists", "hmget", "zadd", "zrem", "zscore", "hset", "hdel", "lrem"}, func(t *testing.T, q taskQueue) {
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
		keys, args := q.move("defer", "1900000000.123457", ids...)
		want := []int64{1, 0, 0, 0, 0, 0, 1, 1}
		for round := range 2 {
			got, err := q.run(keys, args...).Int64Slice()
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("round %d: outcomes %d, %v; want %d for %q", round, got, err, want, ids)
			}
			if got := q.holds(append(ids, "third")...); got != parkedQueue {
				t.Fatalf("round %d: the queue holds\n%swant\n%s", round, got, parkedQueue)
			}
		}
		args[1] = "1900000000.123458"
		if got, err := q.run(keys, args...).Int64Slice(); err != nil || slices.Max(got) != 0 {
			t.Errorf("another call claims what is claimed: %d, %v", got, err)
		}
		if at := q.rdb.ZScore(t.Context(), q.prefix+"scheduled", "first").Val(); at != 1_900_000_000.123457 {
			t.Errorf("first is parked until %f", at)
		}
	})
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
