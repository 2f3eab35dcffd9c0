package throttle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// plants are faults that somebody might make, each a change in the scripts' text.
// The histories must find every one of them; in is the flavour in which that does
// not take long.
var plants = []plantedFault{
	{"bucket: one unit more than the burst", "plain", "(r.cost - r.cap) * r.q", "(r.cost - r.cap - 1) * r.q"},
	{"bucket: a wait that is rounded down", "plain", "t + ceil(over / r.p)", "t + floor(over / r.p)"},
	{"bucket: a start ahead that does not count at its start", "one bucket, ahead", "max(level(r, now), (start - now) * p)", "max(level(r, now), 0)"},
	{"bucket: a level below empty", "plain", "max(level(r, now), (start - now) * p)", "level(r, now)"},
	{"bucket: giving back without low", "one bucket, ahead", "back = min(back, max(r.low, left_by(r, r.at)))", "back = back"},
	{"bucket: giving back twice what low allows", "one bucket, ahead", "r.low = max(0, r.low - back)", "r.low = r.low"},
	{"bucket: giving back what has been refilled", "one bucket", "back = min(back, r.low, left_by(r, r.since))", "back = back"},
	{"bucket: low that does not see the least", "one bucket, ahead", "elseif at_start < r.low then", "elseif at_start > r.low then"},
	{"bucket: a margin that is forgotten", "plain", "local over = level(r, t) + r.slack * r.p", "local over = level(r, t)"},
	{"bucket: more left than there is", "plain", "max(0, floor((r.cap * r.q", "max(0, ceil((r.cap * r.q"},
	{"bucket: a grant that can't be given back", "one bucket", "mark > r.at then", "mark >= r.at then"},
	{"bucket: parts of another rule's unit", "limit changes", "return min(MOST_PARTS, (x - rest)", "return min(MOST_PARTS, x) or min(MOST_PARTS, (x - rest)"},
	{"bucket: a state from the future that stays", "clock steps, none ahead", "    if back > 0 then\n      r.at", "    if false then\n      r.at"},

	{"sliding: one unit more than the limit", "plain", "local need = held(r, t) + r.cost - r.cap", "local need = held(r, t) + r.cost - r.cap - 1"},
	{"sliding: a unit that leaves a µs early", "plain", "return at * r.grain + r.per\n", "return at * r.grain + r.per - 1\n"},
	{"sliding: a unit that leaves late", "plain", "if r.tail <= gone then", "if r.tail < gone then"},
	{"sliding: a log that keeps what has left", "plain", "        if cell > gone then", "        if cell >= gone then"},
	{"sliding: a cell that begins where it should end", "plain", "r.per > 0 and ceil(t / r.grain)", "r.per > 0 and floor(t / r.grain)"},
	{"sliding: a log out of order", "ahead", "elseif r.log == '' or cell > r.last then", "elseif true then"},
	{"sliding: an early start put where the last one is", "ahead", "    if cell > r.tail then\n      append(", "    if cell < r.tail then\n      cell = r.tail\n    end\n    if cell > r.tail then\n      append("},
	{"sliding: a count that is not taken out", "plain, twinned", "        units = units - back\n", ""},
	{"sliding: giving back at another place", "ahead, twinned", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"sliding: cells of another rule's grain", "limit changes", "or unpack7(v, 9) ~= width then", "then"},
	{"sliding: more left than there is", "plain", "return max(0, r.cap - held(r, now))", "return max(0, r.cap - held(r, now) + 1)"},
	{"sliding: a state from the future that stays", "clock steps, none ahead", "    if back > 0 then\n      step_back", "    if false then\n      step_back"},

	{"fixed: one unit more than the limit", "plain", "    local need = held(r, t) + r.cost - r.cap", "    local need = held(r, t) + r.cost - r.cap - 1"},
	{"fixed: one unit less", "plain", "      return r.count\n", "      return r.count + min(r.count, 1)\n"},
	{"fixed: a window before that is forgotten", "ahead", "(at == cell and had or 0)", "0"},
	{"fixed: the window before forgotten by a clock that steps back", "clock steps", "window = per > 0 and per or opens or grain", "window = per"},
	{"fixed: a window that begins late", "plain", "or floor(t / r.grain) + 1", "or ceil(t / r.grain)"},
	{"fixed: a margin that is forgotten", "plain", "<= r.slack do", "<= 0 do"},
	{"fixed: a margin that is forgotten in the next window", "ahead", "while need > 0 or ends - t <= r.slack do", "while need > 0 do"},
	{"fixed: giving back in the wrong window", "ahead, twinned", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"on use: one unit more than the limit", "plain", "    local need = held(r, t) + r.cost - r.cap", "    local need = held(r, t) + r.cost - r.cap - 1"},
	{"on use: a window that each start opens anew", "plain", "    return begins < t + r.opens and begins or t\n", "    return t\n"},
	{"on use: a window that opens before one ahead is over", "ahead", "    return max(t, ends - r.window)\n", "    return t\n"},
	{"on use: a start that opens a window where one ahead begins too soon", "ahead", "    return begins < t + r.opens and begins or t\n", "    return begins <= t and begins or t\n"},
	{"on use: a start that waits for a window far ahead", "ahead", "    return begins < t + r.opens and begins or t\n", "    return begins\n"},
	{"on use: a window that ends a µs early", "plain", "r.tail + r.opens > t and", "r.tail + r.opens > t + 1 and"},
	{"on use: a window before the last that is forgotten", "ahead", "      if at + r.opens > t then", "      if false then"},
	{"on use: what may be late", "plain", "<= r.slack do", "<= 0 do"},
	{"on use: giving back in the wrong window", "ahead", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"on use: giving back leaves a window that nothing is in", "ahead", "      if units > 0 then\n        put(r, cell, units)", "      if units >= 0 then\n        put(r, cell, units)"},
	{"on use: a state from the future that stays", "clock steps, none ahead", "    if back > 0 then\n      step_back", "    if false then\n      step_back"},
	{"on use: units that count in the window at hand once the clock has stepped", "clock steps", "if r.per == 0 and not r.opens then", "if r.per == 0 then"},
	{"fixed: a state from the future that stays", "clock steps, none ahead", "    if back > 0 then\n      step_back", "    if false then\n      step_back"},

	{"calendar: one unit more than the limit", "plain", "r.b1 - r.slack and room(r) >= r.cost then", "r.b1 - r.slack and room(r) + 1 >= r.cost then"},
	{"calendar: one unit more in the next period", "ahead", "      if left >= r.cost then", "      if left + 1 >= r.cost then"},
	{"calendar: a margin that is forgotten", "plain", "if at < r.b1 - r.slack and", "if at < r.b1 and"},
	{"calendar: a margin that is forgotten in the next period", "ahead", "if at < r.b2 - r.slack then", "if at < r.b2 then"},
	{"calendar: units put into the next period", "ahead", "if here and r.ahead then", "if false then"},
	{"calendar: a start ahead that hides the period at hand", "ahead", "return r.ahead and r.before or r.count", "return r.count"},
	{"calendar: giving back in the wrong period", "ahead, twinned", "elseif place >= r.from and place <= r.last then", "elseif true then"},
	{"calendar: more rolled over than the cap", "plain", "return min(r.rollover, max(0, r.cap +", "return min(2 * r.rollover, max(0, r.cap +"},
	{"calendar: what was rolled over and does not roll on", "plain", "max(0, r.cap + min(r.carry, r.rollover) - r.before)", "max(0, r.cap - r.before)"},
	{"calendar: rolled over before the period has begun", "ahead", "    return r.cap - used_next(r)\n", "    return r.cap + min(r.rollover, max(0, room(r))) - used_next(r)\n"},
	{"calendar: a period that passed unused and is not seen", "plain", "r.gap = r.last < before", "r.gap = false"},
	{"calendar: a period that begins with what was left of its own", "plain", "r.last, r.from, r.count, r.next, r.was = from, from, 0, 0, 0", "r.last, r.from, r.next, r.was = from, from, 0, 0"},
	{"calendar: a pace that is rounded down", "plain", "over = ceil(over / of)", "over = floor(over / of)"},
	{"calendar: a pace that giving back ends", "plain, twinned", "r.next = place == r.last and r.was or r.next", "r.next = 0"},
	{"calendar: units that new boundaries hide", "limit changes", "r.count + (r.prior >= r.b0 and r.before or 0)\n  end", "r.count\n  end"},
	{"all: a calendar's units lost when the algorithm changes", "limit changes", "unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }", "unpack7(v, 37), unpack7(v, 9), 0 }"},
	{"calendar: a state from the future that stays", "clock steps, none ahead", "if r.last - now > 2 * FAR_AHEAD then\n      r.count", "if false then\n      r.count"},
	{"calendar: a state that ends with its period", "plain", "    return r.b3 + (r.ahead", "    return r.b1 + (r.ahead"},

	{"concurrency: one run more", "plain", "if r.held < r.cap or r.mine then", "if r.held <= r.cap or r.mine then"},
	{"concurrency: a lease that ends a µs late", "plain", "return '(' .. whole(now)", "return whole(now)"},
	{"concurrency: leases that never end", "plain", "redis.call('ZCOUNT', key, from, to)", "redis.call('ZCOUNT', key, '-inf', to)"},
	{"concurrency: the first lease where the limit was lowered", "limit changes", "from, to, r.held - r.cap)", "from, to, 0)"},
	{"concurrency: a TTL that a shorter stay cuts", "limit changes", "if redis.call('PTTL', key) < tonumber(ttl) then", "if true then"},
	{"concurrency: a lost place that is renewed", "plain", "tonumber(score) <= now", "tonumber(score) < 0"},

	{"all: a rule that is not charged", "plain", "for i = 1, n do\n    local r = rules[i]\n    algorithms[r.kind].save", "for i = 2, n do\n    local r = rules[i]\n    algorithms[r.kind].save"},
	{"all: rules that do not agree on a start", "ahead", "start, binding, agree = t, i, 1", "start, binding = t, i"},
	{"all: a wait that is a µs short", "plain", "return t and t - now or -1", "return t and max(0, t - now - 1) or -1"},
	{"all: a grant further ahead than asked", "ahead", "start - now <= ahead", "start - now <= ahead + 1000000"},
	{"sliding: a late start that counts at its first moment", "late", "and start + leeway or start", "and start or start"},
	{"bucket: a late start that counts at its first moment", "late", "and start + leeway or start", "and start or start"},

	{"all: an attempt that is charged twice", "plain", "if before and #before == 7 * (n + 1) + #member then", "before = nil\nif before then"},
	{"all: an attempt that is not known again", "plain", "if before and #before == 7 * (n + 1) + #member then", "if false then"},
	{"all: an attempt that is kept too long", "plain", "'PX', '30000'", "'PX', '300000'"},
	{"all: an attempt that starts at once when sent again", "ahead", "local left = unpack7(record, 1) - now", "local left = 0"},
	{"all: a denial that leaves a record", "plain", "mend(rules)\nreturn", "redis.call('SET', attempt, 'D', 'PX', 1000)\nmend(rules)\nreturn"},
	{"all: a denial that moves a state", "plain", "      if r.healed or redis.call('PTTL'", "      if r.x then r.at = r.at + 1 end\n      if true or redis.call('PTTL'"},
	{"all: giving back twice", "plain", "redis.call('GET', mark) == taken_back then", "false then"},
	{"all: a TTL that is too short", "plain", "whole(ceil(us / 1000) + 1000)", "whole(max(1, ceil(us / 1000) - 1000))"},
	{"all: a TTL of seconds", "plain", "whole(ceil(us / 1000) + 1000)", "whole(ceil(us / 1000) + 60000)"},
	{"all: a longer window that loses its key", "limit changes", "      if r.healed or redis.call('PTTL', r.key) < ceil(algorithm.lasts(r, now) / 1000) then", "      if r.healed then"},
	{"all: a bucket's level lost when the algorithm changes", "limit changes", "ceil(unpack7(v, 16) / unpack7(v, 23))", "0"},
	{"all: the last cell of a window lost when the algorithm changes", "limit changes", "  add(tail, unpack7(v, 44))", "  add(tail, 0)"},
}

// fastPathPlants are faults in the fast path of decide alone.
var fastPathPlants = []plantedFault{
	{"bucket: one unit more than the burst", "plain", "(cost - cap) * q > 0", "(cost - cap - 1) * q > 0"},
	{"bucket: a margin that is forgotten", "plain", "level + slack * p + (cost", "level + (cost"},
	{"bucket: a level below empty", "plain", "    if level < 0 then\n      level = 0\n    end\n", ""},
	// That what was charged before is forgotten, TestVariantsAgree finds at once, and
	// these hardly.
	{"bucket: low that does not see the least", "one quick bucket", "elseif level < low then\n      low = level", "elseif level > low then\n      low = level"},
	{"bucket: parts of another rule's unit", "limit changes", "if parts ~= q or p == 0", "if p == 0"},
	{"bucket: more left than there is", "plain", "remaining, reset = floor((cap * q", "remaining, reset = ceil((cap * q"},

	{"sliding: one unit more than the limit", "plain", "if holds > cap and", "if holds > cap + 1 and"},
	{"sliding: a log that keeps what has left", "plain", "while head <= gone", "while head < gone"},
	{"sliding: a unit that leaves early", "plain", "local cell, gone = ceil(now / grain), floor((now - per) / grain)", "local cell, gone = ceil(now / grain), floor((now - per) / grain) + 1"},
	{"sliding: a cell that begins where it should end", "plain", "local cell, gone = ceil(", "local cell, gone = floor("},
	{"sliding: a last cell that is not counted on", "plain", "log, count = sub(v, from), count + cost", "log, count = sub(v, from), count"},
	{"sliding: a cell put beside its place", "plain", "local steps = tail - before", "local steps = cell - before"},
	{"sliding: cells of another rule's grain", "limit changes", "if width ~= grain or cost > cap", "if cost > cap"},
	{"sliding: a start ahead that is put before", "ahead", "tail > cell or", ""},

	{"fixed: one unit more than the limit", "plain", "or count + cost > cap then", "or count + cost > cap + 1 then"},
	{"fixed: a margin that is forgotten", "plain", "or rest <= slack or", "or"},
	{"fixed: a window that has ended", "plain", "or rest <= slack or", "or rest == slack or"},
	{"fixed: a window ahead", "ahead", "or rest > two + three or", "or"},

	{"on use: one unit more than the limit", "plain", "or count + cost > cap then", "or count + cost > cap + 1 then"},
	{"on use: what may be late", "plain", "or rest <= slack or", "or rest <= 0 or"},
	{"on use: a window that has ended", "plain", "or rest <= slack or", "or rest == slack or"},
	{"on use: a window ahead", "ahead", "or rest > two + three or", "or"},
	{"on use: a window that is longer", "plain", "local rest = place + opens - now", "local rest = place + opens + 1 - now"},

	{"concurrency: one run more", "plain", "if held >= cap then", "if held > cap then"},
	{"concurrency: a lease that has ended", "plain", "call('ZADD', KEYS[i], states[i], member)", "call('ZADD', KEYS[i], format('%.0f', now), member)"},

	{"all: an attempt that is charged twice", "plain", "if not before or sub(before, -#member) ~= member then", "if true then"},
	{"all: an attempt that is forgotten when asked again", "plain", "  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')\n", ""},
	{"all: a key that ends before its meaning", "plain", "if spare < LEAST or", "if"},
	{"all: a rule that is not charged", "plain", "call('SET', KEYS[i], states[i], 'KEEPTTL')", "call('SET', KEYS[n], states[n], 'KEEPTTL')"},
}

type plantedFault struct{ what, in, from, to string }

// history draws a history that has much of what the fault is in.
func (f plantedFault) history(in flavour, seed uint64) *randomHistory {
	kind, _, _ := strings.Cut(f.what, ":")
	in.onUse = kind == "on use"
	in.only = map[string]policy.Algorithm{"sliding": policy.SlidingWindow, "fixed": policy.FixedWindow, "on use": policy.FixedWindow, "concurrency": policy.Concurrency, "calendar": policy.Calendar}[kind]
	return in.history(seed, 100)
}

// planted is a client's hook that puts a fault into every script that has its place.
type planted struct {
	texts, shas map[string]string
}

// The fast path is closed where the fault is in the general one.
func plant(from, to string, fastPath bool) planted {
	p := planted{texts: map[string]string{}, shas: map[string]string{}}
	for _, whole := range lua.All() {
		for set := range 1 << len(lua.Kinds) {
			kinds := ""
			for i := range len(lua.Kinds) {
				if set&(1<<i) != 0 {
					kinds += lua.Kinds[i : i+1]
				}
			}
			s := whole.For(kinds)
			text := strings.ReplaceAll(s.Source(), from, to)
			if text == s.Source() {
				continue
			}
			if !fastPath {
				text = strings.Replace(text, "if passed == n then", "if passed < 0 then", 1)
			}
			p.texts[s.Source()], p.shas[s.SHA()] = text, redis.NewScript(text).Hash()
		}
	}
	return p
}

// Every planted fault still has its place in the scripts. The tests that plant them
// take minutes; this one tells in a moment that a script was changed and they were not.
func TestPlantsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	var scripts strings.Builder
	for _, whole := range lua.All() {
		scripts.WriteString(whole.For(lua.Kinds).Source())
		for i := range len(lua.Kinds) {
			scripts.WriteString(whole.For(lua.Kinds[i : i+1]).Source())
		}
	}
	look := func(what, from string) {
		if !strings.Contains(scripts.String(), from) {
			t.Errorf("%s: no script holds %q any more", what, from)
		}
	}
	for _, f := range append(slices.Clone(plants), fastPathPlants...) {
		look(f.what, f.from)
	}
	for _, f := range settlePlants {
		look(f.what, f.from)
	}
}

func (p planted) change(cmd redis.Cmder) {
	args := cmd.Args() // eval TEXT, evalsha SHA, script load TEXT
	for i := 1; i < min(len(args), 3); i++ {
		text, _ := args[i].(string)
		for _, of := range []map[string]string{p.texts, p.shas} {
			if to, ok := of[text]; ok {
				args[i] = to
			}
		}
	}
}

func (p planted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p planted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.change(cmd)
		return next(ctx, cmd)
	}
}

func (p planted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			p.change(cmd)
		}
		return next(ctx, cmds)
	}
}

// What is planted and is no fault is not found.
func TestHistoriesFindNothingElse(t *testing.T) {
	forHistories(t)
	t.Parallel()
	rdb := redistest.Client(t)
	rdb.AddHook(plant("local start, binding, sure", "local fine\nlocal start, binding, sure", true))
	histories(t, rdb, historySeed(t), 1000, 100)
}

// Every planted fault is found by the histories, soon: always the same ones, since
// what is sought here is not in the scripts.
func TestHistoriesFindPlantedFaults(t *testing.T) {
	forHistories(t)
	t.Parallel()
	const seed = 1
	var most atomic.Int64
	for i, f := range append(slices.Clone(plants), fastPathPlants...) {
		fastPath := i >= len(plants)
		what := f.what
		if fastPath {
			what = "fast path, " + what
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := plant(f.from, f.to, fastPath)
			in := slices.IndexFunc(flavours, func(one flavour) bool { return one.name == f.in })
			if len(p.texts) == 0 || in < 0 {
				t.Fatalf("no script holds %q any more, or %q is no flavour", f.from, f.in)
			}
			if !drawn(t) {
				return
			}
			sound, rdb := redistest.Client(t), redistest.Client(t)
			rdb.AddHook(p)
			prefix := fmt.Sprintf("%s_%d", redistest.Prefix(t), i)
			for n := range int64(400) {
				h := f.history(flavours[in], uint64(seed+n))
				if found := h.run(rdb, prefix); found != "" {
					if without := h.run(sound, prefix+"s"); without != "" {
						t.Errorf("history %d finds %q with the fault, and %q without: the model is wrong", n, found, without)
					}
					if n > 40 {
						t.Logf("%s: found by history %d", f.what, n)
					}
					most.Store(max(most.Load(), n))
					return
				}
			}
			t.Errorf("not found in 400 histories")
		})
	}
	t.Cleanup(func() { t.Logf("the one that hid longest was found by history %d", most.Load()) })
}
