package reference

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/planted"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// fault is a change in the text of the scripts.
type fault struct{ what, from, to string }

// plants are faults of the general part of decide, refund and renew, which the histories must find.
var plants = []fault{
	{"bucket: one unit more than the burst", "(r.cost - r.cap) * r.q", "(r.cost - r.cap - 1) * r.q"},
	{"bucket: a wait that is rounded down", "t + ceil(over / r.p)", "t + floor(over / r.p)"},
	{"bucket: a start ahead that does not count at its start", "max(level(r, now), (start - now) * p)", "max(level(r, now), 0)"},
	{"bucket: a level below empty", "max(level(r, now), (start - now) * p)", "level(r, now)"},
	{"bucket: giving back without low", "back = min(back, max(r.low, left_by(r, r.at)))", "back = back"},
	{"bucket: giving back twice what low allows", "r.low = max(0, r.low - back)", "r.low = r.low"},
	{"bucket: giving back what has been refilled", "back = min(back, r.low, left_by(r, r.since))", "back = back"},
	{"bucket: low that does not see the least", "elseif at_start < r.low then", "elseif at_start > r.low then"},
	{"bucket: a margin that is forgotten", "local over = level(r, t) + r.slack * r.p", "local over = level(r, t)"},
	{"bucket: more left than there is", "max(0, floor((r.cap * r.q", "max(0, ceil((r.cap * r.q"},
	{"bucket: a grant that can't be given back", "mark > r.at then", "mark >= r.at then"},
	{"bucket: parts of another rule's unit", "return min(MOST_PARTS, (x - rest)", "return min(MOST_PARTS, x) or min(MOST_PARTS, (x - rest)"},
	{"bucket: a state from the future that stays", "    if back > 0 then\n      r.at", "    if false then\n      r.at"},

	{"sliding: one unit more than the limit", "local need = held(r, t) + r.cost - r.cap", "local need = held(r, t) + r.cost - r.cap - 1"},
	{"sliding: a unit that leaves a µs early", "return at * r.grain + r.per\n", "return at * r.grain + r.per - 1\n"},
	{"sliding: a unit that leaves late", "if r.tail <= gone then", "if r.tail < gone then"},
	{"sliding: a log that keeps what has left", "        if cell > gone then", "        if cell >= gone then"},
	{"sliding: a cell that begins where it should end", "r.per > 0 and ceil(t / r.grain)", "r.per > 0 and floor(t / r.grain)"},
	{"sliding: a log out of order", "elseif r.log == '' or cell > r.last then", "elseif true then"},
	{"sliding: an early start put where the last one is", "    if cell > r.tail then\n      append(", "    if cell < r.tail then\n      cell = r.tail\n    end\n    if cell > r.tail then\n      append("},
	{"sliding: a count that is not taken out", "        units = units - back\n", ""},
	{"sliding: giving back at another place", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"sliding: cells of another rule's grain", "or unpack7(v, 9) ~= width then", "then"},
	{"sliding: more left than there is", "return max(0, r.cap - held(r, now))", "return max(0, r.cap - held(r, now) + 1)"},
	{"sliding: a state from the future that stays", "    if back > 0 then\n      step_back", "    if false then\n      step_back"},

	{"fixed: one unit more than the limit", "    local need = held(r, t) + r.cost - r.cap", "    local need = held(r, t) + r.cost - r.cap - 1"},
	{"fixed: one unit less", "      return r.count\n", "      return r.count + min(r.count, 1)\n"},
	{"fixed: a window before that is forgotten", "(at == cell and had or 0)", "0"},
	{"fixed: the window before forgotten by a clock that steps back", "window = per > 0 and per or opens or grain", "window = per"},
	{"fixed: a window that begins late", "or floor(t / r.grain) + 1", "or ceil(t / r.grain)"},
	{"fixed: a margin that is forgotten", "<= r.slack do", "<= 0 do"},
	{"fixed: a margin that is forgotten in the next window", "while need > 0 or ends - t <= r.slack do", "while need > 0 do"},
	{"fixed: giving back in the wrong window", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"on use: one unit more than the limit", "    local need = held(r, t) + r.cost - r.cap", "    local need = held(r, t) + r.cost - r.cap - 1"},
	{"on use: a window that each start opens anew", "    return begins < t + r.opens and begins or t\n", "    return t\n"},
	{"on use: a window that opens before one ahead is over", "    return max(t, ends - r.window)\n", "    return t\n"},
	{"on use: a start that opens a window where one ahead begins too soon", "    return begins < t + r.opens and begins or t\n", "    return begins <= t and begins or t\n"},
	{"on use: a start that waits for a window far ahead", "    return begins < t + r.opens and begins or t\n", "    return begins\n"},
	{"on use: a window that ends a µs early", "r.tail + r.opens > t and", "r.tail + r.opens > t + 1 and"},
	{"on use: a window before the last that is forgotten", "      if at + r.opens > t then", "      if false then"},
	{"on use: what may be late", "<= r.slack do", "<= 0 do"},
	{"on use: giving back in the wrong window", "      if cell == ceil(less) then", "      if cell == before.tail then"},
	{"on use: giving back leaves a window that nothing is in", "      if units > 0 then\n        put(r, cell, units)", "      if units >= 0 then\n        put(r, cell, units)"},

	{"calendar: one unit more than the limit", "r.b1 - r.slack and room(r) >= r.cost then", "r.b1 - r.slack and room(r) + 1 >= r.cost then"},
	{"calendar: one unit more in the next period", "      if left >= r.cost then", "      if left + 1 >= r.cost then"},
	{"calendar: a margin that is forgotten", "if at < r.b1 - r.slack and", "if at < r.b1 and"},
	{"calendar: a margin that is forgotten in the next period", "if at < r.b2 - r.slack then", "if at < r.b2 then"},
	{"calendar: units put into the next period", "if here and r.ahead then", "if false then"},
	{"calendar: a start ahead that hides the period at hand", "return r.ahead and r.before or r.count", "return r.count"},
	{"calendar: giving back in the wrong period", "elseif place >= r.from and place <= r.last then", "elseif true then"},
	{"calendar: more rolled over than the cap", "return min(r.rollover, max(0, r.cap +", "return min(2 * r.rollover, max(0, r.cap +"},
	{"calendar: what was rolled over and does not roll on", "max(0, r.cap + min(r.carry, r.rollover) - r.before)", "max(0, r.cap - r.before)"},
	{"calendar: rolled over before the period has begun", "    return r.cap - used_next(r)\n", "    return r.cap + min(r.rollover, max(0, room(r))) - used_next(r)\n"},
	{"calendar: a period that passed unused and is not seen", "r.gap = r.last < before", "r.gap = false"},
	{"calendar: a period that begins with what was left of its own", "r.last, r.from, r.count, r.next, r.was = from, from, 0, 0, 0", "r.last, r.from, r.next, r.was = from, from, 0, 0"},
	{"calendar: a pace that is rounded down", "over = ceil(over / of)", "over = floor(over / of)"},
	{"calendar: a pace that giving back ends", "r.next = place == r.last and r.was or r.next", "r.next = 0"},
	{"calendar: units that new boundaries hide", "r.count + (r.prior >= r.b0 and r.before or 0)\n  end", "r.count\n  end"},
	{"all: a calendar's units lost when the algorithm changes", "unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }", "unpack7(v, 37), unpack7(v, 9), 0 }"},
	{"calendar: a state from the future that stays", "if r.last - now > 2 * FAR_AHEAD then\n      r.count", "if false then\n      r.count"},
	{"calendar: a state that ends with its period", "    return r.b3 + (r.ahead", "    return r.b1 + (r.ahead"},

	{"concurrency: one run more", "if r.held < r.cap or r.mine then", "if r.held <= r.cap or r.mine then"},
	{"concurrency: a lease that ends a µs late", "return '(' .. whole(now)", "return whole(now)"},
	{"concurrency: leases that never end", "redis.call('ZCOUNT', key, from, to)", "redis.call('ZCOUNT', key, '-inf', to)"},
	{"concurrency: the first lease where the limit was lowered", "from, to, r.held - r.cap)", "from, to, 0)"},
	{"concurrency: a TTL that a shorter stay cuts", "if redis.call('PTTL', key) < tonumber(ttl) then", "if true then"},

	{"all: a rule that is not charged", "for i = 1, n do\n    local r = rules[i]\n    algorithms[r.kind].save", "for i = 2, n do\n    local r = rules[i]\n    algorithms[r.kind].save"},
	{"all: rules that do not agree on a start", "start, binding, agree = t, i, 1", "start, binding = t, i"},
	{"all: a wait that is a µs short", "return t and t - now or -1", "return t and max(0, t - now - 1) or -1"},
	{"all: a grant further ahead than asked", "start - now <= ahead", "start - now <= ahead + 1000000"},

	{"all: an attempt that is charged twice", "if before and #before == 7 * (n + 1) + #member then", "before = nil\nif before then"},
	{"all: an attempt that is not known again", "if before and #before == 7 * (n + 1) + #member then", "if false then"},
	{"all: an attempt that is kept too long", "'PX', '30000'", "'PX', '300000'"},
	{"all: an attempt that starts at once when sent again", "local left = unpack7(record, 1) - now", "local left = 0"},
	{"all: a denial that leaves a record", "mend(rules)\nreturn", "redis.call('SET', attempt, 'D', 'PX', 1000)\nmend(rules)\nreturn"},
	{"all: a denial that moves a state", "      if r.healed or redis.call('PTTL'", "      if r.x then r.at = r.at + 1 end\n      if true or redis.call('PTTL'"},
	{"all: giving back twice", "redis.call('GET', mark) == taken_back then", "false then"},
	{"all: a TTL that is too short", "whole(ceil(us / 1000) + 1000)", "whole(max(1, ceil(us / 1000) - 1000))"},
	{"all: a TTL of seconds", "whole(ceil(us / 1000) + 1000)", "whole(ceil(us / 1000) + 60000)"},
	{"all: a longer window that loses its key", "      if r.healed or redis.call('PTTL', r.key) < ceil(algorithm.lasts(r, now) / 1000) then", "      if r.healed then"},
	{"all: a bucket's level lost when the algorithm changes", "ceil(unpack7(v, 16) / unpack7(v, 23))", "0"},
	{"all: the last cell of a window lost when the algorithm changes", "  add(tail, unpack7(v, 44))", "  add(tail, 0)"},
}

// fastPathPlants are faults of the fast path of decide.
var fastPathPlants = []fault{
	{"bucket: one unit more than the burst", "(cost - cap) * q > 0", "(cost - cap - 1) * q > 0"},
	{"bucket: a margin that is forgotten", "level + slack * p + (cost", "level + (cost"},
	{"bucket: a level below empty", "    if level < 0 then\n      level = 0\n    end\n", ""},
	// That what was charged before is forgotten, TestVariantsAgree finds at once, and
	// these hardly.
	{"bucket: low that does not see the least", "elseif level < low then\n      low = level", "elseif level > low then\n      low = level"},
	{"bucket: parts of another rule's unit", "if parts ~= q or p == 0", "if p == 0"},
	{"bucket: more left than there is", "remaining, reset = floor((cap * q", "remaining, reset = ceil((cap * q"},

	{"sliding: one unit more than the limit", "if holds > cap and", "if holds > cap + 1 and"},
	{"sliding: a log that keeps what has left", "while head <= gone", "while head < gone"},
	{"sliding: a unit that leaves early", "local cell, gone = ceil(now / grain), floor((now - per) / grain)", "local cell, gone = ceil(now / grain), floor((now - per) / grain) + 1"},
	{"sliding: a cell that begins where it should end", "local cell, gone = ceil(", "local cell, gone = floor("},
	{"sliding: a last cell that is not counted on", "log, count = sub(v, from), count + cost", "log, count = sub(v, from), count"},
	{"sliding: a cell put beside its place", "local steps = tail - before", "local steps = cell - before"},
	{"sliding: cells of another rule's grain", "if width ~= grain or cost > cap", "if cost > cap"},
	{"sliding: a start ahead that is put before", "tail > cell or", ""},

	{"fixed: one unit more than the limit", "or count + cost > cap then", "or count + cost > cap + 1 then"},
	{"fixed: a margin that is forgotten", "or rest <= slack or", "or"},
	{"fixed: a window that has ended", "or rest <= slack or", "or rest == slack or"},
	{"fixed: a window ahead", "or rest > two + three or", "or"},

	{"on use: one unit more than the limit", "or count + cost > cap then", "or count + cost > cap + 1 then"},
	{"on use: what may be late", "or rest <= slack or", "or rest <= 0 or"},
	{"on use: a window that has ended", "or rest <= slack or", "or rest == slack or"},
	{"on use: a window ahead", "or rest > two + three or", "or"},
	{"on use: a window that is longer", "local rest = place + opens - now", "local rest = place + opens + 1 - now"},

	{"concurrency: one run more", "if held >= cap then", "if held > cap then"},
	{"concurrency: a lease that has ended", "call('ZADD', KEYS[i], states[i], member)", "call('ZADD', KEYS[i], format('%.0f', now), member)"},

	{"all: an attempt that is charged twice", "if not before or sub(before, -#member) ~= member then", "if true then"},
	{"all: an attempt that is forgotten when asked again", "  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')\n", ""},
	{"all: a key that ends before its meaning", "if spare < LEAST or", "if"},
	{"all: a rule that is not charged", "call('SET', KEYS[i], states[i], 'KEEPTTL')", "call('SET', KEYS[n], states[n], 'KEEPTTL')"},
}

// kindsFor are histories that have much of what a fault is in.
func kindsFor(what string) []kind {
	rules := map[string]func(*history) policy.Rule{
		"bucket": bucketRule, "sliding": slidingRule, "fixed": fixedRule, "on use": openingRule, "concurrency": concurrencyRule, "calendar": calendarRule,
	}
	name, _, _ := strings.Cut(what, ":")
	rule := rules[name]
	if rule == nil {
		return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.rules != nil })
	}
	several := func(h *history) []policy.Rule { return []policy.Rule{rule(h), rule(h), bucketRule(h)} }
	list := []kind{
		{name: name, rules: only(rule)},
		{name: name + " ahead", rules: only(rule), ahead: true, refunds: true},
		{name: name + " path", rules: several, ahead: true, refunds: true},
		{name: name + " expires", rules: several, ahead: true, refunds: true, expires: true},
	}
	if name != "concurrency" {
		list = append(list, kind{name: name + " steps", rules: only(func(h *history) policy.Rule { return short(h, rule(h)) }), steps: true})
	}
	return list
}

// findFault returns what scenes and histories find wrong on a server that has a fault.
func findFault(t *testing.T, hook redis.Hook, root string, f fault) string {
	t.Helper()
	rdb := redistest.Client(t)
	rdb.AddHook(hook)
	if err := playChanges(t.Context(), rdb, root, hook); err != nil {
		return err.Error()
	}
	for n := range mostHistories {
		for i, k := range kindsFor(f.what) {
			rdb := redistest.Client(t)
			rdb.AddHook(hook)
			h, err := newHistory(t.Context(), rdb, fmt.Sprintf("%s_%d_%d", root, i, n), uint64(n+1), k)
			if err != nil {
				t.Fatal(err)
			}
			if h.run(k, 120); len(h.objections) > 0 {
				return fmt.Sprintf("history %d of %s: %v", n, k.name, h.objections[0])
			}
		}
	}
	return ""
}

// mostHistories is how many of each kind a planted fault may hide from.
const mostHistories = 40

// Every planted fault is found, and a change that is none is not.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	planted.Sought(t)
	for i, f := range slices.Concat(plants, fastPathPlants) {
		general, what := i < len(plants), f.what
		if !general {
			what = "fast path, " + what
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if !planted.Drawn(t) {
				return
			}
			found := findFault(t, planted.New(f.from, f.to, general), redistest.Prefix(t), f)
			if found == "" {
				t.Error("not found")
			}
			t.Log(found)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		hook := planted.New("local start, binding, sure", "local fine\nlocal start, binding, sure", true)
		if found := findFault(t, hook, redistest.Prefix(t), fault{what: "all"}); found != "" {
			t.Error(found)
		}
	})
}

// A script that was changed takes the faults that were planted in it along.
func TestPlantsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for _, f := range slices.Concat(plants, fastPathPlants) {
		planted.HasPlaces(t, f.from)
	}
}
