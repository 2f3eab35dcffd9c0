package lua

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// grants is the smallest set of commands that the scripts, and a client that
// loads and calls them, need.
var grants = []string{
	"evalsha", "eval", "script|load", "time", "get", "mget", "set", "setrange", "pttl", "pexpire", "zadd", "zrem", "zcard", "zcount", "zscore",
	"zrangebyscore", "zrevrangebyscore", "zremrangebyscore",
	"exists", "del", "unlink", "zrange", "zrank", "zrangebylex", "hget", "hset", "hdel", "hmget", "hgetall", "hscan", "hexists",
}

// Every variant of every script loads, on Redis and on miniredis, under the name
// that it is called by.
func TestLoad(t *testing.T) {
	t.Parallel()
	_, mini := redistest.Miniredis(t)
	for name, rdb := range map[string]redis.UniversalClient{"redis": redistest.Client(t), "miniredis": mini} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, s := range every() {
				for _, kinds := range subsets() {
					v := s.For(kinds)
					sha, err := rdb.ScriptLoad(context.Background(), v.Source()).Result()
					if err != nil || sha != v.SHA() {
						t.Errorf("%s for %s: loaded as %q, %v; want %q", s.Name, kinds, sha, err, v.SHA())
					}
				}
			}
		})
	}
}

// variant is one way to run a history: where, and with which form of the scripts.
type variant struct {
	name string
	rdb  redis.Scripter
	keys redis.UniversalClient // who may look at every key
	form func(s *Script, kinds string) string
}

func whole(s *Script, _ string) string     { return s.Source() }
func small(s *Script, kinds string) string { return s.For(kinds).Source() }

// general leaves the fast path of decide no call.
func general(s *Script, kinds string) string {
	return strings.Replace(s.For(kinds).Source(), "if passed == n then", "if passed < 0 then", 1)
}

func strict(s *Script, kinds string) string { return "#!lua\n" + s.For(kinds).Source() }

// Random histories of all scripts have the same answers and leave the same state
// whether the whole scripts run or those made for the call's kinds, on Redis and
// on miniredis, as a user who may touch the call's keys alone, and on a cluster
// that forbids every undeclared key.
func TestVariantsAgree(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Client(t), redistest.Cluster(t)
	_, mini := redistest.Miniredis(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	runs := 5
	if testing.Short() {
		runs = 2
	}
	for range runs {
		h := newHistory(random, "{"+redistest.Prefix(t)+"}")
		user := redistest.User(t, redistest.Literal(h.all()...), grants...)
		runs := []variant{
			{"redis, whole", server, server, whole},
			{"redis, the general way", server, server, general},
			{"redis, made for the call, as a user of its keys", user, server, small},
			{"cluster, no undeclared keys", cluster, cluster, strict},
			{"miniredis, whole", mini, mini, whole},
			{"miniredis, made for the call", mini, mini, small},
		}
		var first []string
		for i, v := range runs {
			got := h.play(t, v)
			if i == 0 {
				first = got
			} else if !reflect.DeepEqual(got, first) {
				at := 0
				for at < len(got)-1 && at < len(first)-1 && got[at] == first[at] {
					at++
				}
				t.Fatalf("seed %d: step %d: %s:\n%s\n%s:\n%s", seed, at, runs[0].name, first[at], v.name, got[at])
			}
		}
	}
}

// A fixed window that was charged ahead leaves the window before the last behind, which is over by the time that the last one begins.
// The fast path leaves the state that the general way does.
func TestFastPathDropsWhatIsOver(t *testing.T) {
	t.Parallel()
	const minute, limit, first = 60_000_000, 3, 1_800_057_600_000_000
	server := redistest.Client(t)
	for name, rule := range map[string][4]int64{"fixed": {limit, 0, minute, 0}, "on use": {limit, minute, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			h := &history{kinds: "S", rules: [][4]int64{rule}}
			prefix := "{" + redistest.Prefix(t) + "}"
			h.keys, h.due, h.meta, h.told = []string{prefix + ":r0"}, prefix+"!schedule", prefix+"!meta", prefix+"!upstream"
			decide := func(at, cost, ahead int) {
				h.calls = append(h.calls, randomCall{verb: 9, id: len(h.ids), cost: cost, now: first + at, ahead: ahead})
				h.ids = append(h.ids, fmt.Sprint(prefix, "@", len(h.ids)))
			}
			decide(0, 1, 0)
			decide(minute, limit, 0)         // the second window is full,
			decide(2*minute-1000, 1, minute) // and the third is opened before it begins
			decide(2*minute+1000, 1, 0)      // what is over goes with this start,
			decide(2*minute+1000_000, 1, 0)  // and is gone for the next
			decide(3*minute+minute/2, 1, 0)  // also after the last window
			fast, slow := h.play(t, variant{"fast", server, server, small}), h.play(t, variant{"general", server, server, general})
			for i := range fast {
				if fast[i] != slow[i] {
					t.Errorf("call %d:\n%q\nin general\n%q", i, fast[i], slow[i])
				}
			}
		})
	}
}

// history is a random list of calls over one set of rules.
type history struct {
	kinds string
	keys  []string
	rules [][4]int64
	calls []randomCall
	ids   []string
	due   string
	meta  string
	told  string
}

type randomCall struct {
	verb      int
	id        int
	cost, now int
	ahead     int
}

func newHistory(random *rand.Rand, prefix string) *history {
	h := &history{due: prefix + "!schedule", meta: prefix + "!meta", told: prefix + "!upstream"}
	const minute = 60_000_000
	kinds := ""
	for i := range 1 + random.IntN(5) {
		limit, per := 1+random.Int64N(300), minute*(1+random.Int64N(100))
		rule := [][4]int64{
			{limit, per, 1 + random.Int64N(20), random.Int64N(2) * 20_000},
			{limit, per, []int64{1, per / 128, 997}[random.IntN(3)], 0},
			{1 + random.Int64N(4), minute * (1 + random.Int64N(5)), 0, 0},
			{limit, per, random.Int64N(minute / 2), random.Int64N(3) * random.Int64N(limit)},
		}
		if random.IntN(2) == 0 {
			rule[1] = [4]int64{limit, 0, per, random.Int64N(per / 2)} // fixed windows
			if slack := rule[1][3]; limit%2 == 0 {
				rule[1] = [4]int64{limit, per + slack, 0, 2 * slack} // which open on use
			}
		}
		if random.IntN(20) == 0 {
			rule[1][0] = 0
		}
		kind := random.IntN(len(Kinds))
		kinds += Kinds[kind : kind+1]
		h.keys = append(h.keys, fmt.Sprintf("%s:r%d", prefix, i))
		h.rules = append(h.rules, rule[kind])
	}
	h.kinds = kinds
	for i := range 12 {
		h.ids = append(h.ids, fmt.Sprintf("%s@%d", prefix, i))
	}
	now := 1_800_057_600_000_000
	for range 80 {
		now += random.IntN(3) * random.IntN(40_000_000)
		if random.IntN(15) == 0 {
			now -= random.IntN(2 * minute)
		}
		h.calls = append(h.calls, randomCall{
			verb: random.IntN(10), id: random.IntN(len(h.ids)), cost: 1 + random.IntN(5)*random.IntN(20), now: now,
			ahead: random.IntN(2) * random.IntN(minute),
		})
	}
	return h
}

func (h *history) all() []string {
	settled := make([]string, len(h.ids))
	for i, id := range h.ids {
		settled[i] = id + "="
	}
	return slices.Concat(h.keys, h.runs(h.keys), h.ids, settled, []string{h.due, h.told, h.meta})
}

// runs are the keys of the run times of rules.
func (h *history) runs(rules []string) (keys []string) {
	for _, key := range rules {
		keys = append(keys, strings.Replace(key, ":r", "!runs:r", 1))
	}
	return keys
}

// play runs the history and returns each reply with the state that it left.
func (h *history) play(t *testing.T, v variant) []string {
	t.Helper()
	ctx := context.Background()
	if err := v.keys.Del(ctx, h.all()...).Err(); err != nil {
		t.Fatal(err)
	}
	present := ""
	for _, kind := range Kinds {
		if strings.ContainsRune(h.kinds, kind) {
			present += string(kind)
		}
	}
	places := map[int][]any{}
	var out []string
	for _, c := range h.calls {
		script, keys, args := h.call(c, places[c.id])
		reply, err := redis.NewScript(v.form(script, present)).Run(ctx, v.rdb, keys, args...).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatalf("%s: %s %v %v: %v", v.name, script.Name, keys, args, err)
		}
		if script == Decide {
			list := full(reply.([]any), len(h.keys))
			reply = list
			if list[0] == int64(1) {
				places[c.id] = nil
				for i := range h.keys {
					places[c.id] = append(places[c.id], list[9+5*i])
				}
			}
		}
		out = append(out, fmt.Sprintf("%s %v: %v %v", script.Name, c, reply, h.state(t, v)))
	}
	return out
}

// full writes out the short reply of decide.
func full(reply []any, rules int) []any {
	if len(reply) != 1+3*rules {
		return reply
	}
	out := []any{int64(1), int64(0), reply[0], int64(0), int64(0)}
	for i := range rules {
		out = append(out, int64(0), reply[1+3*i], int64(0), reply[2+3*i], reply[3+3*i])
	}
	return out
}

// call makes the arguments of one call.
func (h *history) call(c randomCall, places []any) (s *Script, keys []string, args []any) {
	var leases []any
	var held []string
	rules := func(first ...any) []any {
		for i, r := range h.rules {
			cost := c.cost
			if h.kinds[i] == 'C' {
				cost = 1
			}
			first = append(first, h.text(i, r, c), cost)
			if places != nil && s == Settle {
				first = append(first, places[i], 0, 0)
			}
		}
		return first
	}
	for i, r := range h.rules {
		if h.kinds[i] == 'C' {
			held, leases = append(held, h.keys[i]), append(leases, r[1])
		}
	}
	attempt := append(append([]string(nil), h.keys...), h.ids[c.id])
	scope := []string{"", "/a", "/a/x"}[c.id%3]
	switch {
	case c.verb == 0:
		return Decide, append(attempt, h.told), rules(c.now, "m", "?"+scope)
	case c.verb == 1 && places != nil:
		s = Settle
		return s, append(attempt, h.ids[c.id], h.ids[c.id]+"=", h.due, h.meta), rules(c.now, h.ids[c.id], "", c.now+1_000_000_000, 60_000, 0)
	case c.verb == 5 && len(held) < len(h.rules):
		return h.settle(c, places)
	case c.verb == 2 && held != nil:
		return Renew, held, append([]any{c.now, h.ids[c.id]}, leases...)
	case c.verb == 3 && held != nil:
		return Release, slices.Concat(held, h.runs(held), []string{h.due, h.meta}), []any{c.now, h.ids[c.id], 1000 * c.cost}
	case c.verb == 4 && c.cost < 20:
		return ReportUpstream, []string{h.told, h.due, h.meta}, append([]any{c.now}, tellings[c.cost%len(tellings)]...)
	}
	return Decide, append(attempt, h.told), rules(c.now, h.ids[c.id], fmt.Sprint(c.ahead, scope))
}

// tellings are words of tell, of the scopes of histories.
var tellings = [][]any{
	{"pause", "/a", 40_000_000, 0, 0, 0, 0}, {"pause", "/a/x", 90_000_000, 0, 0, 0, 0, "pause", "/b", 1_000_000_000, 0, 0, 0, 0},
	{"rest", "/a", 1_000_000, 60_000_000, 100_000, 0, 0}, {"rest", "", 1_000_000, 2_000_000, 0, 0, 0},
	{"lift", "", 0, 0, 0, 0, 0, "lift", "/a", 0, 0, 0, 0, 0}, {"lift", "/b", 0, 0, 0, 0, 0, "lift", "/a/x", 0, 0, 0, 0, 0},
	{"cut", ":r0", 700_000, 10_000_000, 3000, 100_000, 3_000_000, "cut", ":r1", 500_000, 1_000_000, 10_000, 100_000, 3_000_000}, {"adopt", ":r1", 3, 60_000_000, 300_000_000, 0, 0},
	{"adopt", ":r0", 40, 600_000_000, 300_000_000, 0, 0, "adopt", ":r2", 1, 60_000_000, 90_000_000, 0, 0}, {"adopt", ":r1", 0, 0, 0, 0, 0, "free", ":r0", 0, 0, 0, 0, 0},
	{"rise", ":r0", 3_000_000, 100_000, 90_000_000, 0, 0, "rise", ":r1", 3_000_000, 10_000, 30_000_000, 0, 0},
}

// settle makes the arguments of a settlement, now and then of one that was sent before.
func (h *history) settle(c randomCall, places []any) (s *Script, keys []string, args []any) {
	args = []any{c.now, h.ids[c.id], fmt.Sprint("call", c.cost%4), c.now + c.ahead, 60_000, 0}
	for i, r := range h.rules {
		if h.kinds[i] == 'C' {
			continue
		}
		keys = append(keys, h.keys[i])
		granted, place := 0, any(0)
		if places != nil {
			granted, place = 5, places[i]
		}
		args = append(args, h.text(i, r, c), granted, place, 0, c.cost)
	}
	return Settle, append(keys, h.ids[c.id], h.ids[c.id], h.ids[c.id]+"=", h.due, h.meta), args
}

// text describes a rule to a call. A calendar's periods are some of an even length,
// and now and then those of another time.
func (h *history) text(i int, r [4]int64, c randomCall) string {
	if h.kinds[i] != 'K' {
		return Rule(h.kinds[i], r, 3_000_000*int64(i%2))
	}
	limit, per, slack, rollover := r[0], r[1], r[2], r[3]
	from := int64(c.now) - int64(c.now)%per
	if c.cost == 5 {
		from -= per * int64(c.id%3-1)
	}
	return Rule('K', [4]int64{limit, from, from + per, from + 2*per}, slack, rollover, limit%2, from-per, from+3*per)
}

// state returns what the rules' keys hold.
func (h *history) state(t *testing.T, v variant) []string {
	t.Helper()
	ctx := context.Background()
	pipe := v.keys.Pipeline()
	for i, key := range h.keys {
		pipe.PTTL(ctx, key)
		if h.kinds[i] == 'C' {
			pipe.ZRangeWithScores(ctx, key, 0, -1)
		} else {
			pipe.Get(ctx, key)
		}
	}
	for _, id := range h.ids {
		pipe.HGetAll(ctx, id+"=")
	}
	replies, err := pipe.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	var out []string
	for i, reply := range replies {
		switch reply := reply.(type) {
		case *redis.DurationCmd:
			if reply.Val() == -1 {
				t.Fatalf("%s: %s has no TTL", v.name, h.keys[i/2])
			}
		case *redis.ZSliceCmd:
			out = append(out, fmt.Sprint(reply.Val()))
		case *redis.StringCmd:
			out = append(out, fmt.Sprintf("%q", reply.Val()))
		case *redis.MapStringStringCmd:
			if len(reply.Val()) > 0 {
				out = append(out, fmt.Sprintf("%q", reply.Val()))
			}
		}
	}
	return out
}
