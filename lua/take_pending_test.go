package lua

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
)

// take_pending takes the tasks that asynq's own dequeue would take next, returns the same when it is sent again, and takes
// nothing from a paused queue.
func TestTakePending(t *testing.T) {
	onQueues(t, TakePending, []string{"zrangebyscore", "hget", "exists", "rpoplpush", "zadd", "hset", "hdel"}, func(t *testing.T, q taskQueue) {
		for _, id := range []string{"first", "second", "third"} {
			q.add(id, "pending")
			q.do("HSET", q.prefix+"t:"+id, "pending_since", 1)
		}
		take := func(lease string, n int, want ...string) {
			t.Helper()
			got, err := q.run([]string{q.prefix, q.prefix + "moving"}, lease, n).StringSlice()
			for i, id := range want {
				want[i] = "message of " + id
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("under %s: %q, %v, want %q", lease, got, err, want)
			}
		}
		take("1800057660.123457", 2, "first", "second")
		take("1800057660.123457", 2, "first", "second")
		if fields := q.rdb.HGetAll(t.Context(), q.prefix+"t:first").Val(); len(fields) != 2 || fields["state"] != "active" {
			t.Errorf("a task that was taken is %v", fields)
		}
		q.do("SET", q.prefix+"paused", 1)
		take("1800057660.123458", 2)
		take("1800057660.123457", 2, "first", "second") // a reply that was lost before it was paused
		q.do("DEL", q.prefix+"paused")
		take("1800057660.123458", 2, "third")
		take("1800057660.123459", 2)
		if n := q.rdb.ZCard(t.Context(), q.prefix+"lease").Val(); n != 3 {
			t.Errorf("%d leases, want 3", n)
		}
	})
}

// put_back moves a task once, and only one that is active.
func TestPutBack(t *testing.T) {
	onQueues(t, PutBack, []string{"hget", "zscore", "zadd", "hset", "lrem", "zrem"}, func(t *testing.T, q taskQueue) {
		for _, id := range []string{"a", "b"} {
			q.add(id, "active")
			q.do("ZADD", q.prefix+"lease", "1800057660", id)
		}
		q.add("pending", "pending")
		keys := func(id string) []string {
			return []string{q.prefix + "t:" + id, q.prefix + "active", q.prefix + "lease", q.prefix + "retry"}
		}
		for _, test := range []struct{ id, want string }{{"a", ""}, {"a", "NOT FOUND"}, {"pending", "NOT FOUND"}, {"none", "NOT FOUND"}} {
			err := q.run(keys(test.id), test.id, "it waits", 1900000000, "retry").Err()
			if (err == nil) != (test.want == "") || err != nil && !redis.HasErrorPrefix(err, test.want) {
				t.Errorf("%s: %v, want %q", test.id, err, test.want)
			}
		}
		want := "pending [pending]\nactive [b]\nscheduled []\nretry [a]\narchived []\ncompleted []\nlease [b]\na map[msg:it waits state:retry]\n"
		if got := q.holds("a"); got != want {
			t.Errorf("the queue holds\n%swant\n%s", got, want)
		}
	}, "t:a", "t:pending", "t:none", "active", "lease", "retry")
}
