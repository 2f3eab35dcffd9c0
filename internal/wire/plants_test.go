package wire

import (
	"testing"

	"github.com/headway-go/headway/test/planted"
	"github.com/headway-go/headway/test/redistest"
)

// plants are faults of the turns, each of which the histories find: what is wrong, and the text of the scripts that it replaces.
var plants = []struct{ what, from, to string }{
	{"a node is looked at a second late", "return tree.block(node_at, t)", "return tree.block(node_at, t + 1000000)"},
	{"a node is looked at when its first start has come", "if at and certain and at - lead > now then at = at - lead end", ""},
	{"what comes free does not make its node due", "function rules.due(at)", "function rules.due(at) do return 0 end"},
	{"a start is charged now", "rules.charge(its, start, rules.costs(its, cost), lease_of(waiter, start))", "rules.charge(its, now, rules.costs(its, cost), lease_of(waiter, start))"},
	{"a grant is overdue a second late", "whole(now - OVERDUE), 'LIMIT'", "whole(now - OVERDUE - 1000000), 'LIMIT'"},
	{"the place of a task that comes back is lost", "{ score(g.score), id }", "{ score(g.score + 100), id }"},
	{"the units of a task that comes back are lost", "what == 'used' or its.shape ~= g.shape)", "true)"},
	{"the lease of a task that comes back is lost", "rules.refund(its, g.places, g.start, rules.costs(its, g.cost), lease_of(waiter, g.start),", "rules.refund(its, g.places, g.start, rules.costs(its, g.cost), '',"},
	{"a grant that has come stays in flight", "call('HDEL', flight, waiter)", "local _"},
	{"priorities are forgotten", "(1048576 - rank) * SEQUENCE", "1048576 * SEQUENCE"},
	{"a leaf is not ready again when tasks join", "if not was then\n    tree.enter(q, scope, leaf_node(scope))", "if not was then"},
	{"a node that is due is not ready", "times[at] = false", "times[at] = now + 1000"},
	{"a new policy leaves what is blocked", "if all then tree.recheck_all() end", ""},
	{"older rules are used", "if version_of >= version or of == policy_number then", "if text then"},
	{"an API's pause holds nothing up", "t = max(t, r.ends)\n      if r.probes", "if r.probes"},
	{"a probe takes no place", "if r.probes == 0 or start >= r.all_go then return nil end", "do return nil end"},
	{"a probe is sure to come back in time", "r.out[#r.out - r.probes + 1].till)), true", "r.out[#r.out - r.probes + 1].till))"},
	{"the place of a probe that comes back is lost", "if i then table.remove(r.out, i) end", ""},
	{"the place of a probe whose run has ended is lost", "if byte(r.key) == 66 and", "if false and"},
	{"a probe does not renew its place", "if i then r.out[i].till", "if false then r.out[i].till"},
	{"one process opens a breaker alone", "failing >= min(2, #list)", "failing >= 1"},
	{"a breaker counts what is long over", "local passed = newest > slot and 0 or min(SLOTS, slot - newest)", "local passed = 0"},
	{"a breaker counts calls from before it closed", "if now - age < list.mark then", "if false then"},
	{"a breaker that only counts opens", "if opens and shadow == 0 then", "if opens then"},
	{"a probe that failed opens for no longer", "b.length = min(longest, 2 * b.length)", ""},
	{"a probe that failed leaves its breaker as it is", "local opens = b.ends <= now\n", "local opens = false\n"},
	{"a late success closes a breaker", "if b.ends <= now and failed == 0 then", "if failed == 0 then"},
	{"an API's limit is not kept", "numbers, till = sub(other, 9), unpacked('>I7', other)", "till = unpacked('>I7', other)"},
	{"costs are forgotten", "call('HSET', costs_key, q .. ':' .. id, cost)", "local _"},
	{"costs of tasks that started stay", "if #paid > 0 then call('HDEL', costs_key, unpack(paid)) end", ""},
	{"a late run keeps its place", "verbs.late(a, its)", "verbs.late(a, its) do return end"},
	{"more is granted than was asked for", "#granted < 2 * most", "#granted <= 2 * most"},
	{"a start may be too soon to be there", "rules.choose(its, cost, now + from, nil,", "rules.choose(its, cost, now, nil,"},
	{"a start may be too far ahead", "if start and sure and start <= now + lead + spread then", "if start and sure and start <= now + 2 * (lead + spread) then"},
	{"a member without room is chosen", "if not s or sure and start <= latest then", "if not s or sure then"},
	{"a pool waits for the last of its members", "look < soonest then first", "at and at > (first or 0) then first"},
	{"the pause of a member is not heeded", "reported and of.names or 0 do", "0 do"},
	{"what a member is charged comes back to the first", "'\\n' .. name .. '\\n'", "'\\n'"},
	{"a task keeps to its member for too long", "max(0, since + waits - now)", "waits"},
	{"a pool that drains takes the next member at once", "not its.pool.affine and (m.tries and 0 or its.pool.waits) or ", ""},
	{"a grant forgets its member", "(member and '\\n' .. member or '')", "''"},
}

// mostHistories is from how many histories a fault may hide.
const mostHistories = 300

// Every planted fault is found, and a change that is none is not.
func TestPlantedFaultsAreFound(t *testing.T) {
	planted.Sought(t)
	for _, f := range plants {
		t.Run(f.what, func(t *testing.T) {
			if !planted.Drawn(t) {
				return
			}
			rdb := redistest.Client(t)
			rdb.AddHook(planted.New(f.from, f.to))
			for seed := range uint64(mostHistories) {
				if err := run(rdb, seed+1, 150); err != nil {
					t.Logf("in history %d", seed+1)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// A script that was changed takes the faults that were planted in it along.
func TestPlantsHaveTheirPlace(t *testing.T) {
	for _, f := range plants {
		planted.HasPlaces(t, f.from)
	}
}
