package lua

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// path is some rules that an attempt meets.
type path struct {
	keys  []string
	rules []string
	scope string // after the provider's name
}

// asking is one attempt of a batch; without a record it is known with its batch alone.
type asking struct {
	path
	record, id string
	cost       int
	ticket     string
}

// alone makes the call of decide for an attempt.
func (a asking) alone(now, ahead int) (keys []string, args []any) {
	if a.record == "" {
		a.record, _, _ = strings.Cut(a.keys[0], ":")
		a.record += "@alone"
	}
	args = []any{now, a.id, fmt.Sprint(ahead, a.scope)}
	for _, r := range a.rules {
		args = append(args, r, a.cost)
	}
	return append(slices.Clone(a.keys), a.record, upstreamOf(a.record)), args
}

// upstreamOf is the key of what is told where a key stands.
func upstreamOf(key string) string {
	provider, _, _ := strings.Cut(key, "@")
	return provider + "!upstream"
}

// together makes the call of decide_many for attempts, as a batch with an id and a
// record.
func together(now int, id, record string, all []asking) (keys []string, args []any) {
	var calls []byte
	two := func(n int) { calls = append(calls, byte(n>>8), byte(n)) }
	key := func(k string) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
		two(slices.Index(keys, k) + 1)
	}
	provider := strings.TrimSuffix(upstreamOf(record), "!upstream")
	keys, args = []string{record, provider + "!upstream", provider + "!meta", provider + "!flight", provider + "!parked"}, []any{now, id, nil}
	text := func(s string) {
		if !slices.Contains(args, any(s)) {
			args = append(args, s)
		}
		two(slices.Index(args, any(s)) + 1)
	}
	for _, a := range all {
		calls = append(calls, byte(len(a.keys)), byte(len(a.id)))
		two(len(a.scope))
		two(len(a.ticket))
		text(strconv.Itoa(a.cost))
		if a.record != "" {
			key(a.record)
		} else {
			two(0)
		}
		for i := range a.keys {
			key(a.keys[i])
			text(a.rules[i])
		}
		calls = append(calls, a.id+a.scope+a.ticket...)
	}
	if len(all) > 0 {
		tickets := byte(0)
		if slices.ContainsFunc(all, func(a asking) bool { return a.ticket != "" }) {
			tickets = 1
		}
		calls = append([]byte{0, tickets}, calls...)
	}
	args[2] = calls
	return keys, args
}

// split takes the reply of decide_many apart: the start and the places of each
// attempt, nil for who is left to decide.
func split(t *testing.T, reply string, all []asking) (out [][]int64) {
	t.Helper()
	take := func() (n int64) {
		if len(reply) < 7 {
			t.Fatalf("the reply ends at attempt %d", len(out))
		}
		for i := range 7 {
			n = n<<8 | int64(reply[i])
		}
		reply = reply[7:]
		return n
	}
	now, start := take(), take()
	if now != start {
		t.Errorf("at %d it is decided for %d", now, start)
	}
	for _, a := range all {
		if len(reply) == 0 {
			t.Fatalf("the reply ends at attempt %d", len(out))
		}
		admitted := reply[0] == 1
		reply = reply[1:]
		if !admitted {
			out = append(out, nil)
			continue
		}
		one := []int64{start}
		for _, rule := range a.rules {
			if place := take(); rule[0] != 'C' {
				one = append(one, place)
			} else {
				one = append(one, 0) // and when the last lease ends
			}
			take()
		}
		out = append(out, one)
	}
	if len(reply) > 0 {
		t.Fatalf("%d bytes more than attempts", len(reply))
	}
	return out
}

// started is the same of the reply of decide to who starts now.
func started(reply []any, rules int) any {
	if len(reply) != 1+3*rules {
		return reply
	}
	one := []int64{reply[0].(int64)}
	for i := range rules {
		one = append(one, reply[3+3*i].(int64))
	}
	return one
}

// crowdOf draws paths over shared rules, as they are nested: every path begins
// with some of the same.
func crowdOf(random *rand.Rand, prefix string) []path {
	const minute = 60_000_000
	add := func(p *path, key string) {
		limit, per := []int64{8, 200, 200, 3000}[random.IntN(4)], minute*(1+random.Int64N(30))
		rule := Rule('S', [4]int64{limit, 0, per, random.Int64N(per / 2)})
		switch random.IntN(5) {
		case 4:
			slack := random.Int64N(per / 2)
			rule = Rule('S', [4]int64{limit, per + slack, 0, 2 * slack})
		case 0:
			rule = Rule('T', [4]int64{limit, per, limit, random.Int64N(2) * 20_000})
		case 1:
			rule = Rule('S', [4]int64{limit, per, []int64{1, 1 + per/128, 997}[random.IntN(3)]})
		case 2:
			key += ":held"
			rule = Rule('C', [4]int64{limit, per})
		}
		p.keys, p.rules = append(p.keys, key), append(p.rules, rule)
	}
	var shared path
	for i := range random.IntN(3) {
		add(&shared, fmt.Sprintf("%s:shared%d", prefix, i))
	}
	var paths []path
	for i := range 1 + random.IntN(4) {
		p := path{slices.Clone(shared.keys), slices.Clone(shared.rules), ""}
		for j := range 1 + random.IntN(2) {
			add(&p, fmt.Sprintf("%s:own%d.%d", prefix, i, j))
		}
		paths = append(paths, p)
	}
	return paths
}

// A batch is answered as its attempts are when they are decided one after the
// other, first those that it admits and then those that it leaves to decide, and
// it leaves the same states and records; sent again it admits none of them twice.
// On Redis and miniredis, as a user who may touch the call's keys alone, and on a
// cluster that forbids every undeclared key.
func TestManyIsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Client(t), redistest.Cluster(t)
	alone := redistest.NewServer(t).Client(t) // each way has the keys on a server of its own
	_, mini := redistest.Miniredis(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	admitted, left, shared := 0, 0, 0
	for crowd := 0; crowd < 4 || crowd < 40 && (admitted < 50 || shared < 10); crowd++ { // few may be admitted by chance
		prefix := "{" + redistest.Prefix(t) + "}"
		paths := crowdOf(random, prefix)
		var all []string
		for _, p := range paths {
			all = append(all, p.keys...)
		}
		for i := range 30 {
			all = append(all, fmt.Sprintf("%s@%d", prefix, i))
		}
		slices.Sort(all)
		all = slices.Compact(all)
		own := append(slices.Clone(all), prefix+"@batch", prefix+"@alone", prefix+"!upstream", prefix+"!meta", prefix+"!flight", prefix+"!parked")
		ways := []*manyWay{
			{name: "redis, alone", rdb: alone, keys: alone},
			{name: "redis, as a user of its keys", rdb: redistest.User(t, redistest.Literal(own...), grants...), keys: server, many: DecideMany.Source()},
			{name: "cluster, no undeclared keys", rdb: cluster, keys: cluster, many: "#!lua\n" + DecideMany.Source()},
			{name: "miniredis", rdb: mini, keys: mini, many: DecideMany.Source()},
		}
		now := 1_800_057_600_000_000
		batches, draws := random.Uint64(), 20
		for step := range draws {
			now += random.IntN(3) * random.IntN(480_000_000)
			if random.IntN(20) == 0 {
				now -= random.IntN(4_200_000_000)
			}
			var batch []asking
			next := max(0, step-random.IntN(2)) // a slot has one attempt at a time
			for range 1 + random.IntN(12) {
				i := random.IntN(30)
				one := asking{
					path: paths[random.IntN(len(paths))], record: fmt.Sprintf("%s@%d", prefix, i),
					id: fmt.Sprintf("%x-%d-%d", batches, i, next), cost: 1 + random.IntN(2)*random.IntN(3),
				}
				if random.IntN(2) == 0 {
					one.record, one.id = "", fmt.Sprintf("%x-%d.%d", batches, step, len(batch))
				}
				batch = append(batch, one)
			}
			var order []int // in which the others decided
			var want []string
			for _, w := range []int{1, 2, 3, 0} {
				got, took := ways[w].decide(t, now, fmt.Sprintf("%x.%d", batches, step), prefix+"@batch", batch, order, all)
				if order == nil {
					order = took
					for i := range batch {
						if slices.Index(took, i) < ways[w].admitted {
							admitted++
						}
					}
					left += len(batch) - ways[w].admitted
					if ways[w].admitted > 1 {
						shared++
					}
				}
				if want == nil {
					want = got
				} else if !reflect.DeepEqual(got, want) {
					at := 0
					for at < len(got)-1 && got[at] == want[at] {
						at++
					}
					t.Fatalf("seed %d: step %d, %d of %d together: %s:\n%s\n%s:\n%s", seed, step, ways[1].admitted, len(batch),
						ways[1].name, want[at], ways[w].name, got[at])
				}
				ways[w].lasting(t, own)
			}
		}
	}
	t.Logf("%d attempts were admitted together, %d left to decide", admitted, left)
	if admitted < 50 || left < 50 || shared < 10 {
		t.Errorf("too few to say anything: %d admitted, %d left, %d batches of several", admitted, left, shared)
	}
}

// manyWay is one way to decide a batch: with decide_many, or without it one after
// the other in a given order.
type manyWay struct {
	name     string
	rdb      redis.Scripter
	keys     redis.UniversalClient
	many     string
	admitted int // of the last batch, together
}

// decide returns the answers, in the order in which they came about, and what is
// left in the keys.
func (w *manyWay) decide(t *testing.T, now int, id, record string, batch []asking, order []int, all []string) (got []string, took []int) {
	t.Helper()
	ctx := context.Background()
	run := func(source string, keys []string, args []any) *redis.Cmd {
		reply := redis.NewScript(source).Run(ctx, w.rdb, keys, args...)
		if err := reply.Err(); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		return reply
	}
	alone := func(i int) {
		keys, args := batch[i].alone(now, 0)
		reply, _ := run(Decide.Source(), keys, args).Slice()
		got = append(got, fmt.Sprint(i, started(reply, len(batch[i].keys))))
	}
	if w.many == "" {
		for _, i := range order {
			alone(i)
		}
	} else {
		keys, args := together(now, id, record, batch)
		answer, _ := run(w.many, keys, args).Text()
		first := split(t, answer, batch)
		for i, reply := range first {
			if reply != nil {
				took, got = append(took, i), append(got, fmt.Sprint(i, reply))
			}
		}
		w.admitted = len(took)
		before := w.state(t, all)
		if again, _ := run(w.many, keys, args).Text(); again != answer {
			t.Fatalf("%s: sent again it is answered\n%q, after\n%q", w.name, again, answer)
		}
		if again := w.state(t, all); !reflect.DeepEqual(again, before) {
			t.Fatalf("%s: sent again it changes\n%s\nto\n%s", w.name, before, again)
		}
		for i, reply := range first {
			if reply == nil {
				took = append(took, i)
				alone(i)
			}
		}
	}
	return append(got, w.state(t, all)...), took
}

func (w *manyWay) state(t *testing.T, all []string) (out []string) {
	t.Helper()
	values, err := w.keys.MGet(context.Background(), all...).Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if v != nil {
			out = append(out, fmt.Sprintf("%s %q", all[i], v))
		}
		if strings.HasSuffix(all[i], ":held") {
			out = append(out, fmt.Sprint(all[i], w.keys.ZRangeWithScores(context.Background(), all[i], 0, -1).Val()))
		}
	}
	return out
}

// lasting looks at the TTLs of all keys, and starts them anew: they run by the server's
// clock, and a slow machine must not lose a key in one way alone.
func (w *manyWay) lasting(t *testing.T, all []string) {
	t.Helper()
	ctx := context.Background()
	ttls := make([]*redis.DurationCmd, len(all))
	if _, err := w.keys.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range all {
			ttls[i] = pipe.PTTL(ctx, key)
			pipe.PExpire(ctx, key, time.Minute)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, key := range all {
		switch ttl := ttls[i].Val(); {
		case ttl == -1:
			t.Errorf("%s: %s has no TTL", w.name, key)
		case strings.Contains(key, "@") && ttl > time.Minute:
			t.Errorf("%s: the record %s lasts %v", w.name, key, ttl)
		}
	}
}

// A batch is decided once: sent again it answers as it did, under whatever clock,
// and the time of the call with it. Once it is over nobody is admitted under its id,
// whether it had arrived before or not, and what it had been admitted to is told.
func TestManyIsDecidedOnce(t *testing.T) {
	t.Parallel()
	const now = 1_800_057_600_000_000
	clients := map[string]redis.UniversalClient{"redis": redistest.Client(t)}
	_, clients["miniredis"] = redistest.Miniredis(t)
	for name, rdb := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, prefix := context.Background(), "{"+redistest.Prefix(t)+"}"
			p := path{[]string{prefix + ":r"}, []string{Rule('T', [4]int64{1, 1_000_000, 100})}, ""}
			slot := prefix + "@slot"
			run := func(s *Script, keys []string, args []any) *redis.Cmd {
				reply := redis.NewScript(s.Source()).Run(ctx, rdb, keys, args...)
				if err := reply.Err(); err != nil {
					t.Fatal(err)
				}
				return reply
			}
			run(Decide, append(slices.Clone(p.keys), prefix+"@first", prefix+"!upstream"), []any{now, "first", 0, p.rules[0], 1})
			rdb.PExpire(ctx, p.keys[0], 44*time.Second)
			state, first, again := "", "", byte(0)
			ask := func(what string, at int, id string, costs []int, changes bool) string {
				t.Helper()
				var all []asking
				for _, cost := range costs {
					all = append(all, asking{path: p, cost: cost})
				}
				keys, args := together(at, id, slot, all)
				if calls := args[2].([]byte); len(calls) > 0 { //nolint:forcetypeassert // see together
					calls[0] = again
				}
				reply, _ := run(DecideMany, keys, args).Text()
				after := rdb.Get(ctx, p.keys[0]).Val()
				if changed := after != state; changed != changes {
					t.Errorf("%s: it changes the rule: %t", what, changed)
				}
				state = after
				if ttl := rdb.PTTL(ctx, p.keys[0]).Val(); ttl < 30*time.Second || ttl > 44*time.Second {
					t.Errorf("%s: the state lasts %v; its TTL was 44s", what, ttl)
				}
				return reply
			}
			first = ask("new", now, "one", []int{1, 2}, true)
			if ttl := rdb.PTTL(ctx, slot).Val(); ttl < 30*time.Second || ttl > 31*time.Second {
				t.Errorf("the record lasts %v", ttl)
			}
			if got := ask("sent again", now+5000, "one", []int{1, 2}, false); got == first || got[7:] != first[7:] {
				t.Errorf("sent again it is answered %q, after %q", got, first)
			}
			if got := ask("over", now+5000, "one", nil, false); got == first || got[7:] != first[7:] {
				t.Errorf("when it is over it has been answered %q, and was %q", got, first)
			}
			if got := ask("over before it comes", now+6000, "two", nil, false); len(got) != 7 {
				t.Errorf("nothing is known, but %q", got)
			}
			if ttl := rdb.PTTL(ctx, slot).Val(); ttl < 55*time.Second || ttl > time.Minute {
				t.Errorf("that it is over is known for %v", ttl)
			}
			if got := ask("late", now+7000, "two", []int{1, 1}, false); len(got) != 8 {
				t.Errorf("one that is over is answered %q", got)
			}
			if got := ask("denied", now+8000, "three", []int{200, 200}, false); len(got) != 16 || got[14:] != "\x00\x00" {
				t.Errorf("one that admits nobody is answered %q", got)
			}
			if got := rdb.Get(ctx, slot).Val(); !strings.HasSuffix(got, "two") {
				t.Errorf("one that admits nobody leaves %q", got)
			}
			again = 1
			ask("denied, and sent before", now+8000, "three", []int{200}, false)
			if ttl := rdb.PTTL(ctx, slot).Val(); ttl < 30*time.Second || ttl > 31*time.Second {
				t.Errorf("that it admits nobody is known for %v", ttl)
			}
			again = 0
			if got := ask("admitted if it had come first", now+8000, "three", []int{1}, false); len(got) != 15 || got[14] != 0 {
				t.Errorf("sent first and come last it is answered %q", got)
			}
			ask("the next in its slot", now+9000, "four", []int{1}, true)
		})
	}
}

// manyRuns is a history of decide_many: one attempt of three rules that is
// admitted, another, the same in another batch, and one that is left to decide; a
// batch that is sent again, and one that is over.
func manyRuns(prefix string) []run {
	const now = 1_800_057_600_000_000
	p := path{[]string{prefix + ":t", prefix + ":s", prefix + ":f"}, []string{
		Rule('T', [4]int64{1, 1_000_000, 10}), Rule('S', [4]int64{10, 60_000_000, 1}), Rule('S', [4]int64{10, 0, 60_000_000, 5000}),
	}, ""}
	alone := func(s *Script, id, batch string) run {
		a := asking{p, prefix + "@" + id, id, 1, ""}
		if s == Decide {
			keys, args := a.alone(now, 0)
			return run{s, keys, args}
		}
		keys, args := together(now, batch, prefix+"@slot", []asking{a})
		return run{s, keys, args}
	}
	over := run{DecideMany, []string{prefix + "@slot"}, []any{now, "over", ""}}
	return []run{
		alone(DecideMany, "a", "1"), alone(Decide, "a", ""), alone(DecideMany, "b", "2"), alone(DecideMany, "c", "3"), alone(DecideMany, "c", "4"),
		alone(DecideMany, "c", "3"), over,
	}
}
