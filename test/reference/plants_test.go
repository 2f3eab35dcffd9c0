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

// plants are faults of decide and settle, which the histories must find.
var plants = []fault{
	{"bucket: one unit more than the burst", "* p + (c - r.cap) * r.q", "* p + (c - r.cap - 1) * r.q"},
	{"bucket: a wait that is rounded down", "return over <= 0 and t or t + ceil(over / p)", "return over <= 0 and t or t + floor(over / p)"},
	{"bucket: a start ahead that does not count at its start", "max(x - (now - at) * p, (start - now) * p)", "max(x - (now - at) * p, 0)"},
	{"bucket: a level below empty", "max(x - (now - at) * p, (start - now) * p)", "x - (now - at) * p"},
	{"bucket: a refund without low", "mark < r.at and r.low or UNTOUCHED", "UNTOUCHED"},
	{"bucket: a refund of twice what low allows", "r.low = max(0, r.low - back)", "r.low = r.low"},
	{"bucket: a refund from before since", "local held = not known and 0 or", "local held ="},
	{"bucket: low that does not see the least", "r.low = min(r.low, met) end", "r.low = max(r.low, met) end"},
	{"bucket: low that charges of one moment move", "elseif start > at then r.low", "else r.low"},
	{"bucket: a margin that is forgotten", "r.x - (t - r.at - r.slack) * p", "r.x - (t - r.at) * p"},
	{"bucket: more left than there is", "max(0, floor((r.cap * q", "max(0, ceil((r.cap * q"},
	{"bucket: a grant that does not come back", "if r.p == 0 or mark > r.at then return 0 end", "if r.p == 0 or mark >= r.at then return 0 end"},
	{"bucket: parts of another rule's unit", "return min(MOST, (x - rest)", "return min(MOST, x) or min(MOST, (x - rest)"},

	{"sliding: one unit more than the limit", "local need = r.total + c - r.cap", "local need = r.total + c - r.cap - 1"},
	{"sliding: a unit that leaves a µs early", "return r.tail * r.grain + r.per\n", "return r.tail * r.grain + r.per - 1\n"},
	{"sliding: a unit that leaves late", "if r.tail <= gone then", "if r.tail < gone then"},
	{"sliding: a log that keeps what has left", "if at > gone then break", "if at >= gone then break"},
	{"sliding: a scan that forgets where it was", "seen.cell, seen.units, seen.i = cell, seen.units + units, i", "seen.cell, seen.units, seen.i = cell, units, i"},
	{"sliding: a cell that begins where it should end", "local cell = r.per > 0 and ceil(start / r.grain)", "local cell = r.per > 0 and floor(start / r.grain)"},
	{"sliding: a log out of order", "if at > cell then push(r, cell, units) end", "if at < cell then push(r, cell, units) end"},
	{"sliding: an early start put where the last one is", "if r.total == 0 or cell >= r.tail then push(r, cell, c)", "if true then push(r, r.total > 0 and max(cell, r.tail) or cell, c)"},
	{"sliding: an early start that is not counted", "if at > cell then push(r, cell, units) end", "if at > cell then push(r, cell, 0) end"},
	{"sliding: a refund of nothing", "cell == less and units - back or units", "units"},
	{"sliding: a refund at another place", "local less, back = ceil(place / r.grain), 0", "local less, back = r.tail, 0"},
	{"sliding: cells of another rule's grain", "if r.stepped or was ~= width then", "if r.stepped then"},
	{"sliding: more left than there is", "return max(0, r.cap - held),", "return max(0, r.cap - held + 1),"},

	{"fixed: one unit more than the limit", "if held(r, t) + c <= r.cap and", "if held(r, t) + c <= r.cap + 1 and"},
	{"fixed: a window before that is forgotten", "if at == cell then return units end", "if at == cell then return 0 end"},
	{"fixed: a window that begins late", "or floor(t / r.grain) + 1", "or ceil(t / r.grain)"},
	{"fixed: a margin that is forgotten", "and ends - t > r.slack then", "and ends > t then"},
	{"fixed: a refund in the wrong window", "local less, back = ceil(place / r.grain), 0", "local less, back = r.tail, 0"},
	{"on use: one unit more than the limit", "if held(r, t) + c <= r.cap and", "if held(r, t) + c <= r.cap + 1 and"},
	{"on use: a window that each start opens anew", "and r.tail < t + r.opens and r.tail or t", "and r.tail < t + r.opens and t or t"},
	{"on use: a window that opens before one ahead is over", "then return max(t, ends - r.window) end", "then return t end"},
	{"on use: a start that waits for a window far ahead", "and r.tail < t + r.opens and r.tail or t", "and r.tail or t"},
	{"on use: a window that ends a µs early", "return r.total > 0 and r.tail + r.opens > t and", "return r.total > 0 and r.tail + r.opens > t + 1 and"},
	{"on use: a window before the last that is forgotten", "if cell + r.opens > t then return cell", "if false then return cell"},
	{"on use: what may be late", "and ends - t > r.slack then", "and ends > t then"},
	{"on use: a refund in the wrong window", "local less, back = ceil(place / r.grain), 0", "local less, back = r.tail, 0"},
	{"on use: a refund that leaves a window with nothing in it", "    if units == 0 then return end\n    if r.total > 0 and cell > r.tail", "    if r.total > 0 and cell > r.tail"},

	{"calendar: one unit more than the limit", "r.b1 - r.slack and room(r) >= c then", "r.b1 - r.slack and room(r) + 1 >= c then"},
	{"calendar: a margin that is forgotten", "if at < r.b1 - r.slack and", "if at < r.b1 and"},
	{"calendar: a refund in the wrong period", "if place >= r.b0 then", "if true then"},
	{"calendar: more rolled over than the cap", "return r.cap + max(0, min(r.spare, r.rollover)) - r.count", "return r.cap + max(0, r.spare) - r.count"},
	{"calendar: what was rolled over and does not roll on", "r.spare = cap + max(0, min(spare, rollover)) - count", "r.spare = cap - count"},
	{"calendar: a period without units that is not seen", "if last < a then r.spare", "if false then r.spare"},
	{"calendar: what comes back and does not roll over", "r.spare = r.spare + c", "r.spare = r.spare"},
	{"calendar: a new period written as the one before", "last = b0, count = 0, spare = 0", "last = 0, count = 0, spare = 0"},
	{"calendar: a pace that is rounded down", "and ceil(rest * units / of)", "and floor(rest * units / of)"},
	{"calendar: a pace that every refund ends", "if place == r.last then r.next", "if true then r.next"},
	{"calendar: a state that ends with its period", "(r.rollover > 0 and 2 * (r.b1 - r.b0) or 0)", "-1000000000000"},

	{"concurrency: one run more", "if r.held < r.cap or id and", "if r.held <= r.cap or id and"},
	{"concurrency: a lease that ends a µs late", "local from, to = '(' .. whole(now)", "local from, to = whole(now)"},
	{"concurrency: leases that never end", "call('ZCOUNT', key, from, to)", "call('ZCOUNT', key, '-inf', to)"},
	{"concurrency: the first lease where the limit was lowered", "whole(r.held - r.cap), '1')", "'0', '1')"},
	{"concurrency: a TTL that a shorter lease cuts", "if call('PTTL', r.key) < (r.latest - now) / 1000 then", "if true then"},

	{"all: a rule that is not charged", "local place = costs[i] > 0 and r.its.charge(", "local place = i > 1 and costs[i] > 0 and r.its.charge("},
	{"all: rules that do not agree on a start", "if at > t then t, agree, by = at, 0,", "if at > t then t, by = at,"},
	{"all: a wait that is a µs short", "retries[i] = t and t - now or EXACT", "retries[i] = t and max(0, t - now - 1) or EXACT"},
	{"all: a start further ahead than asked", "sure and start <= now + a.ahead\n", "sure and start <= now + a.ahead + 1000000\n"},
	{"all: an attempt that is charged twice", "elseif before and sub(before, 1, #scope + 1) ==", "elseif false and sub(before, 1, #scope + 1) =="},
	{"all: an attempt that is kept too long", "a.text, 'PX', '30000'", "a.text, 'PX', '300000'"},
	{"all: a denial that is written", "  if not admitted then return deny(", "  if not admitted then for _, r in ipairs(its) do dirty(r) end return deny("},
	{"all: a refund that comes back twice", "'GET') == whole(a.grant.start) then return false end\n  local list", "'GET') == '' then return false end\n  local list"},
	{"all: a TTL that is too short", "r.till = ends + LONGER", "r.till = ends - 5000"},
	{"all: a TTL that is too long", "r.till = ends + LONGER", "r.till = ends + 3 * LONGER"},
	{"all: a longer window that loses its key", "if spare < LEAST or spare > MOST then", "if r.till == 0 then"},
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
	return []kind{
		{name: name, rules: only(rule)},
		{name: name + " ahead", rules: only(rule), ahead: true, refunds: true},
		{name: name + " path", rules: several, ahead: true, refunds: true},
		{name: name + " expires", rules: several, ahead: true, refunds: true, expires: true},
	}
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
	for _, f := range plants {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			if !planted.Drawn(t) {
				return
			}
			found := findFault(t, planted.New(f.from, f.to), redistest.Prefix(t), f)
			if found == "" {
				t.Error("not found")
			}
			t.Log(found)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		hook := planted.New("local places = {}", "local fine\nlocal places = {}")
		if found := findFault(t, hook, redistest.Prefix(t), fault{what: "all"}); found != "" {
			t.Error(found)
		}
	})
}

// A script that was changed takes the faults that were planted in it along.
func TestPlantsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for _, f := range plants {
		planted.HasPlaces(t, f.from)
	}
}
