package lua

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// waitFor lets tasks wait for the rules of histories, for those scripts that only
// say that something has become free.
func waitFor(t *testing.T, rdb redis.Cmdable, prefix string) {
	t.Helper()
	ctx := context.Background()
	if err := rdb.ZAdd(ctx, prefix+"!schedule", redis.Z{Score: 1e16, Member: "\x00"}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.HSet(ctx, prefix+"!meta", "n", "0 0 1 0 1\n 1048576 1 requests").Err(); err != nil {
		t.Fatal(err)
	}
}

// waitingRuns has the scripts of those who wait do all that they can, with four rules that
// four scopes meet.
func waitingRuns(prefix string) []run {
	const now, later = 1_800_057_700_000_000, 1_800_058_120_000_000
	rules := []string{
		Rule('T', [4]int64{1, 10_000_000, 3}), Rule('S', [4]int64{5, 60_000_000, 1}),
		Rule('S', [4]int64{9, 0, 60_000_000, 5000}), Rule('C', [4]int64{4, 60_000_000}),
	}
	names := func(prefix string) (state, shared []string) {
		for _, name := range []string{"schedule", "heap", "meta", "flight", "overdue", "upstream", "parked"} {
			shared = append(shared, prefix+"!"+name)
		}
		return []string{prefix + ":t", prefix + ":s", prefix + ":f", prefix + ":c"}, shared
	}
	ask := func(prefix, id string, scope, at int, again any) run {
		state, shared := names(prefix)
		args := []any{at, id, fmt.Sprintf("0 0 0 10000 /%d", scope), ":" + id, again, ""}
		for _, r := range rules {
			args = append(args, r, 1)
		}
		queue := fmt.Sprintf("%s/%d!queue", prefix, scope)
		return run{DecideQueued, slices.Concat(state, []string{prefix + "@" + id, queue}, shared), args}
	}
	queued := func(id string, scope, at int, again any) run { return ask(prefix, id, scope, at, again) }
	first := func(id string) run { return ask(prefix+"-first", id, 0, now, 0) }
	state, shared := names(prefix)
	var queues []string
	for i := range 4 {
		queues = append(queues, fmt.Sprintf("%s/%d!queue", prefix, i))
	}
	several := func(s *Script, keys []string, args []any, more ...any) run {
		args = append(args, 4)
		for _, r := range rules {
			args = append(args, r)
		}
		args = append(args, "1,2,3,4", "1,2,3,4", "1,2,3,4", "1,2,3,4")
		return run{s, slices.Concat(keys, queues), append(args, more...)}
	}
	call := 0
	dispatch := func(at int, news ...any) run {
		call++
		args := []any{at, fmt.Sprintf("dispatcher%d", call), 10_000, 80_000, 100, 1, 1, 0, "", 32}
		return several(Dispatch, slices.Concat(state, shared), args, news...)
	}
	join := func(at int, tasks ...any) run {
		call++
		return several(Join, slices.Concat(state, shared), []any{at, fmt.Sprintf("dispatcher%d", call), 10_000, 150_000, 16}, tasks...)
	}
	tasks := []any{1, ":l1", 0, 2, ":l2", 5, 3, ":l3", "0:6:low", 4, ":l4", 0}
	others := []any{1, ":m1", 0, 2, ":m2", 5, 3, ":m3", 0, 4, ":m4", 0}
	inspect := func(tickets ...any) run {
		args := []any{now, 4, "/", "", 2}
		for _, r := range rules {
			args = append(args, r)
		}
		args = append(args, "1,2,3,4", "1,2,3,4", "4", "-")
		return run{Inspect, slices.Concat(state, []string{shared[1], shared[2], shared[3], shared[5]}, queues), append(args, tickets...)}
	}
	nothing := []any{"f", "", ":x", "a", "/1", ":y", "c", "/2", ":z", "u", "/3", ":v"}
	return []run{
		first("a"), first("b"), first("c"), first("d"),
		dispatch(now, nothing...), join(now, tasks...), join(now, tasks...),
		queued("ta", 0, now, 0), queued("ta", 0, now, 0), queued("tb", 0, now, 0), queued("tc", 0, now, 0),
		queued("td", 0, now, 0), queued("te", 1, now, 0), queued("td", 0, now, 0), queued("tf", 0, now, 2),
		join(now, others...), join(now, others...),
		inspect("", "", "", ""), inspect(":td", ":l1", ":gone", ":l3"),
		dispatch(now, nothing...), dispatch(now+20_000_000, nothing...), queued("m2", 1, now+20_000_000, 0), queued("tg", 0, now+20_000_000, 0),
		queued("tf", 0, now+20_000_000, 0),
		dispatch(now+20_000_000, "f", "/0", ":ta", "a", "/1", ":te", "c", "/1", ":l2", "f", "/3", ":v"),
		inspect("", "", "", ""), dispatch(now+40_000_000, nothing...), dispatch(now+50_000_000, "u", "/0", ":tb", "u", "/1", ":te", "s", "", "-low/", "m", "", "-high/"),
		join(now+60_000_000, 1, ":-low/n1", 0, 1, ":-low/n2", 0, 1, ":-low/n3", 0, 2, ":-low/n", 0),
		dispatch(now+120_000_000, "s", "", "-low/"), dispatch(now+180_000_000, "s", "", "-low/"), dispatch(now+240_000_000, "s", "", "-low/"),
		dispatch(now+300_000_000, "s", "", "-low/"), dispatch(now+360_000_000, "s", "", "-low/"), join(later, others...),
		queued("-low/n1", 0, later, 0), dispatch(later, "b", "/0", ":-low/n2", "f", "/0", ":-low/n3"),
		{Decide, []string{prefix + ":c", prefix + "@tz", prefix + "!upstream"}, []any{later, "tz", "0", rules[3], 1}},
		{ReportUpstream, []string{prefix + "!upstream", prefix + "!schedule", prefix + "!meta"}, []any{later, "pause", "", 60_000_000, 0, 0, 0, 0}},
		{ReportUpstream, []string{prefix + "!upstream", prefix + "!schedule", prefix + "!meta"}, []any{later, "look", ":t", 0, 0, 0, 0, 0}},
		join(later, 1, ":o1", 0, 2, ":o2", 0, 3, ":o3", 0, 3, ":o4", 0),
		dispatch(now-7_000_000_000, nothing...), // the clock has stepped back
	}
}

// repairRuns is a history of repair: n queues and all that a provider keeps beside them are
// damaged, each in a way of its own.
func repairRuns(t *testing.T, rdb redis.UniversalClient, prefix string, n int) []run {
	t.Helper()
	var keys []string
	for _, name := range []string{"schedule", "heap", "meta", "flight", "overdue", "parked"} {
		keys = append(keys, prefix+"!"+name)
	}
	_, err := rdb.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.Set(context.Background(), keys[0], "text", 0)
		pipe.ZAdd(context.Background(), keys[1], redis.Z{Member: "no node"})
		pipe.HSet(context.Background(), keys[2], "n", "no node")
		pipe.HSet(context.Background(), keys[3], "no place", "", "/0\x00:b", "1 2 3 id")
		pipe.ZAdd(context.Background(), keys[5], redis.Z{Member: "no place"})
		for i := range n {
			key := fmt.Sprintf("%s/%d!queue", prefix, i)
			pipe.ZAdd(context.Background(), key, redis.Z{Member: "no ticket"}, redis.Z{Member: ":a"})
			keys = append(keys, key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	args := func(first int) []any {
		args := []any{1_800_057_700_000_000, first, n}
		for range n {
			args = append(args, Rule('T', [4]int64{1, 10_000_000, 3}))
		}
		for range n {
			args = append(args, "1,2,3,4")
		}
		return args
	}
	return []run{{Repair, keys, args(1)}, {Repair, keys, args(0)}}
}

// A task that claims what it was granted is answered as one that is granted now.
func TestClaimIsAnsweredAsAGrant(t *testing.T) {
	t.Parallel()
	rdb, ctx := redistest.Client(t), context.Background()
	claimed := false
	for _, r := range waitingRuns(redistest.Prefix(t)) {
		reply, err := rdb.Eval(ctx, r.script.Source(), r.keys, r.args...).Slice()
		if err != nil {
			t.Fatal(err)
		}
		if r.script == DecideQueued && r.args[1] == "m2" {
			claimed = true
			if form := headerOf(t, DecideQueued).returns[1]; len(reply) != form.values+4*form.each || reply[0] != int64(1) || reply[3] != int64(0) {
				t.Errorf("m2 was granted its start, and is told %v", reply)
			}
		}
	}
	if !claimed {
		t.Error("nobody has claimed anything")
	}
}
