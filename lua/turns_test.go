package lua

import (
	"context"
	"fmt"
	"reflect"
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

// releaseTwo has two tasks released of those that the last two of turnRuns ask for.
func releaseTwo(t *testing.T, rdb redis.Cmdable, prefix string) {
	t.Helper()
	if err := rdb.HSet(context.Background(), prefix+"-late!out", "/0\x00:y", "", "/0\x00:z", "").Err(); err != nil {
		t.Fatal(err)
	}
}

// turnRuns has the scripts of turns do all that they can, with four rules that
// four scopes meet.
func turnRuns(prefix string) []run {
	const now = 1_800_057_700_000_000
	rules := []string{
		Rule('T', [4]int64{1, 10_000_000, 3}), Rule('S', [4]int64{5, 60_000_000, 1}),
		Rule('F', [4]int64{9, 60_000_000, 5000}), Rule('C', [4]int64{4, 60_000_000}),
	}
	names := func(prefix string) (state, shared []string) {
		return []string{prefix + ":t", prefix + ":s", prefix + ":f", prefix + ":c"},
			[]string{prefix + "!due", prefix + "!round", prefix + "!out", prefix + "!at", prefix + "!told"}
	}
	ask := func(prefix, id string, scope, at, again int) run {
		state, shared := names(prefix)
		args := []any{at, id, "0 0 0 10000 0", ":" + id, again, ""}
		for _, r := range rules {
			args = append(args, r, 1)
		}
		line := fmt.Sprintf("%s/%d!line", prefix, scope)
		return run{Turn, slices.Concat(state, []string{prefix + "@" + id, line}, shared, []string{prefix + "!parked"}), args}
	}
	turn := func(id string, scope, at, again int) run { return ask(prefix, id, scope, at, again) }
	first := func(id string) run { return ask(prefix+"-first", id, 0, now, 0) }
	late := func(id string) run { // under windows alone, which admit it now
		r := ask(prefix+"-late", id, 0, now, 0)
		return run{Turn, append(slices.Clone(r.keys[1:3]), r.keys[4:]...), append(slices.Clone(r.args[:6]), r.args[8:12]...)}
	}
	state, shared := names(prefix)
	var lines []string
	for i := range 4 {
		lines = append(lines, fmt.Sprintf("%s/%d!line", prefix, i))
	}
	several := func(s *Script, args []any, news ...any) run {
		args = append(args, 4)
		for _, r := range rules {
			args = append(args, r)
		}
		args = append(args, "1,2,3,4", "1,2,3,4", "1,2,3,4", "1,2,3,4")
		return run{s, slices.Concat(state, shared, lines, []string{prefix + "!parked"}), append(args, news...)}
	}
	wake := func(at int, news ...any) run {
		return several(Wake, []any{at, "w", 10_000, 80_000, 100, 1, 1, 16}, news...)
	}
	tasks := []any{1, ":l1", 0, 2, ":l2", 5, 3, ":l3", 0, 4, ":l4", 0}
	others := []any{1, ":m1", 0, 2, ":m2", 5, 3, ":m3", 0, 4, ":m4", 0}
	inspect := func(tickets ...any) run {
		args := []any{now, 4, "/", "", 2}
		for _, r := range rules {
			args = append(args, r)
		}
		args = append(args, "1,2,3,4", "1,2,3,4", "4", "-")
		return run{Inspect, slices.Concat(state, shared[1:], lines), append(args, tickets...)}
	}
	nothing := []any{"f", "", ":x", "a", "/1", ":y", "r", "/2", ":z", "f", "/3", ":v"}
	return []run{
		first("a"), first("b"), first("c"), first("d"),
		wake(now, nothing...), several(LineUp, []any{now, 10_000, 150_000}, tasks...),
		turn("ta", 0, now, 0), turn("ta", 0, now, 0), turn("tb", 0, now, 0), turn("tc", 0, now, 0),
		turn("td", 0, now, 0), turn("te", 1, now, 0), turn("td", 0, now, 0), turn("tf", 0, now, 2),
		several(LineUp, []any{now, 10_000, 150_000}, others...),
		several(LineUp, []any{now, 10_000, 150_000}, others...),
		inspect("", "", "", ""), inspect(":td", ":l1", ":gone", ":l3"),
		wake(now, nothing...), wake(now+20_000_000, nothing...), turn("tg", 0, now+20_000_000, 0),
		turn("tf", 0, now+20_000_000, 0),
		wake(now+20_000_000, "f", "/0", ":td", "a", "/1", ":te", "r", "/1", ":l2", "f", "/3", ":v"),
		inspect("", "", "", ""), wake(now+40_000_000, nothing...),
		several(LineUp, []any{now + 40_000_000, 10_000, 150_000}, 1, ":-low/n1", 0, 1, ":-low/n2", 0, 1, ":-low/n3", 0, 2, ":-low/n", 0),
		wake(now+120_000_000, "s", "", "-low/"), several(LineUp, []any{now + 120_000_000, 10_000, 150_000}, others...),
		turn("-low/n1", 0, now+120_000_000, 0), wake(now+120_000_000, "b", "/0", ":-low/n2", "f", "/0", ":-low/n3"),
		{Decide, []string{prefix + ":c", prefix + "@tz", prefix + "!told"}, []any{now + 120_000_000, "tz", "0", rules[3], 1}},
		{Tell, []string{prefix + "!told", prefix + "!schedule", prefix + "!meta"}, []any{now + 120_000_000, "pause", "", 60_000_000, 0, 0, 0, 0}},
		wake(now-7_000_000_000, nothing...), // the clock has stepped back
		late("y"), late("z"),
	}
}

// A task whose turn has come goes the express way while others may wait, and is
// answered and charged as by the general one.
func TestReleasedTakesTheExpressWay(t *testing.T) {
	t.Parallel()
	rdb, ctx := redistest.Client(t), context.Background()
	var replies [][]int64
	var states [][]any
	for i, form := range []func(*Script, string) string{whole, general} {
		prefix := fmt.Sprintf("%s-%d", redistest.Prefix(t), i)
		releaseTwo(t, rdb, prefix)
		runs := turnRuns(prefix)
		var reply []int64
		for _, r := range runs[len(runs)-2:] {
			var err error
			if reply, err = rdb.Eval(ctx, form(r.script, "SF"), r.keys, r.args...).Int64Slice(); err != nil {
				t.Fatal(err)
			}
		}
		replies = append(replies, reply)
		states = append(states, rdb.MGet(ctx, prefix+"-late:s", prefix+"-late:f", prefix+"-late@z").Val())
	}
	short, long := replies[0], replies[1]
	if len(short) != 8 || len(long) != 18 {
		t.Fatalf("the replies are %v and %v", short, long)
	}
	want := []int64{long[2], long[6], long[8], long[9], long[11], long[13], long[14], long[17]}
	if !slices.Equal(short, want) {
		t.Errorf("%v by the express way, %v by the general one", short, want)
	}
	if !reflect.DeepEqual(states[0], states[1]) || states[0][2] == nil {
		t.Errorf("%q by the express way, %q by the general one", states[0], states[1])
	}
}
