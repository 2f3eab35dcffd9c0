package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/planted"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// plant is a fault in the text of the scripts. Those of decisions are in test/reference, whose histories find them.
type plant struct{ what, from, to string }

// laterPlants are faults of what only this package asks of the scripts, which laterFault finds.
var laterPlants = []plant{
	{"a late start that counts at its first moment", "and start + leeway or start", "and start or start"},
	{"a lost place that is renewed", "tonumber(score) <= now", "tonumber(score) < 0"},
}

// stepPlants are faults of what a step of the clock leaves of fixed windows, which stepFault finds.
var stepPlants = []plant{
	{"a state from the future that stays", "    if back > 0 then\n      step_back", "    if false then\n      step_back"},
	{"units that count in the window at hand once the clock has stepped", "if r.per == 0 and not r.opens then", "if r.per == 0 then"},
}

// laterFault returns what is wrong with starts that may be late, and with places that were lost.
func laterFault(rdb redis.UniversalClient, prefix string) string {
	return faultOf(func() {
		now := int64(epoch)
		for i, rule := range []policy.Rule{
			{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: sec},
			{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: sec, Burst: 1},
		} {
			pol, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{rule}}})
			must(err)
			l, err := New(rdb, pol, Config{Prefix: fmt.Sprintf("%s_%d", prefix, i), StartTolerance: -1, Unbatched: true, Timeout: bound})
			must(err)
			l.clock = func() string { return fmt.Sprint(now) }
			_, err = l.Decide(ctx, Request{Scope: "p", late: lateness{leeway: 250 * ms}})
			must(err)
			if d, err := l.Decide(ctx, Request{Scope: "p"}); err != nil || d.RetryAfter != 1250*ms {
				fail("%s: behind a start that may be 250 ms late: %v, %v", rule.Algorithm, d.RetryAfter, err)
			}
		}
		must(rdb.ZAdd(ctx, prefix+"held", redis.Z{Score: float64(now), Member: "run"}).Err())
		if reply, err := scriptOf(lua.Renew, "").Run(ctx, rdb, []string{prefix + "held"}, fmt.Sprint(now), "run", 1000).Int64Slice(); err != nil || reply[0] != 0 {
			fail("a place whose lease has ended was renewed: %v, %v", reply, err)
		}
	})
}

func TestLateStartsCountLateAndLostPlacesAreLost(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, bigBucket[0]), func(b *bench) {
		if found := laterFault(b.rdb, b.cfg.Prefix) + stepFault(b.rdb, b.cfg.Prefix); found != "" {
			b.t.Error(found)
		}
	})
}

// settlePlants are faults of settlements.
var settlePlants = []plant{
	{"a debt that is forgotten", "parts[#parts + 1] = algorithms[r.kind].charge(r, now, now)", "parts[#parts + 1] = now"},
	{"a debt without a bound", "local units = algorithms[r.kind].remaining(r, now)", "local units = 1e12"},
	{"a debt of one capacity alone", "r.cap = 2 * r.cap\n", "r.cap = r.cap\n"},
	{"what is over counts for nothing", "over = over + more - debt", "over = 0"},
	{"what is over comes back", "local free = min(over, less)", "local free = 0"},
	{"the first comes back first", "local place, units = parts[last - 1], min(parts[last], less)", "local place, units = parts[1], min(parts[last], less)"},
	{"twice what came back", "r.cost = units\n        back", "r.cost = 2 * units\n        back"},
	{"relative to what was granted", "local had = last and redis.call('HGET', settled, name)", "local had = nil"},
	{"what the caller knows is charged to nobody counts for nothing", "recorded(name, charged, place, besides)", "recorded(name, charged, place, 0)"},
	{"settled after it was given back", "if last == char(GIVEN_BACK) or redis.call('GET', mark) ==", "if last == 1 or redis.call('GET', mark) == 1 or '' =="},
	{"given back what was granted, not what was settled", "local had = last and", "local had = id ~= '' and last and"},
	{"what came back is not written", "r.changed = changed\n", "r.changed = false\n"},
	{"places that are mixed up", "parts[3], parts[4] = 0, parts[4] + parts[6]", "parts[4] = parts[4] + parts[6]"},
}

// queuePlants are faults of those who wait, which histories or scenes must find.
var queuePlants = []plant{
	{"a turn moves no tag", "local tag = min(LATEST, p.time + max(1, floor(SLOT * took / (weights[p.id] or 1) + 0.5)))", "local tag = nd.tag"},
	{"weights do not count", "SLOT * took / (weights[p.id] or 1)", "SLOT * took"},
	{"costs do not count", "SLOT * took /", "SLOT /"},
	{"what an empty node is ahead is forgotten", "      if nd.tag > p.time then\n", "      if false then\n"},
	{"what means nothing is kept", "while e and e.tag <= nd.time and left > 0 do", "while false do"},
	{"who leaves is still counted", "p.kids = max(0, p.kids - 1)", "p.kids = max(0, p.kids)"},
	{"a blocked node stays listed", "    if nd.up and not state.cost then\n      drop(nd, sig, state.band)\n    end\n    state.cost", "    state.cost"},
	{"priorities do not count among nodes", "return a.band < b.band or a.band == b.band and a.tag < b.tag", "return a.tag < b.tag"},
	{"who needs less waits as long", "if band < state.band or cost_of(ticket, state.unit) < state.cost then", "if false then"},
	{"sums of what waits", "nd.units = max(0, nd.units + sign * cost)", "nd.units = max(0, nd.units + cost)"},
	{"sums by unit", "max(0, (nd.sums[unit] or 0) + sign * units)", "max(0, (nd.sums[unit] or 0) + units)"},
	{"a grant is not charged", "    if r.dirty and r.kind ~= 'C' then\n", "    if false then\n"},
	{"the granted are not noted", "    call('HSET', flight, unpack(outs.flight))\n", ""},
	{"the granted stay in their queues", "      call('ZREM', l.key, unpack(l.took))\n", ""},
	{"overdue too soon", "whole(now - STALE), 'WITHSCORES'", "whole(now - 1000000), 'WITHSCORES'"},
	{"the unused go to the end", "tonumber(eighth or nil) or g.score", "place_after(nil, 0, now)"},
	{"who stands still is granted", "    return parking.stand and parking.groups[group_of(ticket)]", "    return false"},
	{"saved for nobody", "  if level then\n    block(level, sig, t, state.cost, state.unit, behind)", "  if false then\n    block(level, sig, t, state.cost, state.unit, behind)"},
	{"looked at too late", "max(now + 1, free - early) or now + SUSPENDED", "free + 1000000 or now + SUSPENDED"},
	{"who asks overtakes", "local held = was_parked or not mine and held_up(l, sig, ticket) and not nobody_dispatches()", "local held = was_parked"},
	{"who joins overtakes", "  if not held_up(l, sig, ticket) then", "  if true then"},
	{"what is too late is claimed", "if g.start + CLAIMABLE < now or", "if"},
	{"a state that is written twice goes too soon", "    r.till = now + lasts + LONGER\n", "    local r = setmetatable({ till = now + lasts + LONGER }, { __index = r })\n"},
	{"who is too late goes to the end", "return g and g.score or front_place", "return front_place"},
	{"more are granted than asked for", "  elseif most <= 0 and (more <= 0 or start > now) and is_mine(ticket, l) then\n    return false", "  elseif false then\n    return false"},
	{"granted too far ahead", "start > now + lead + spread or start >= edge then\n", "start > now + lead + spread + 50000 or start >= edge then\n"},
	{"what comes free is not looked at", "      tree.look_at(level_of(name))\n", ""},

	{"lanes that start alike", "min(place + stride, band", "min(place + 1, band"},
	{"a lane's last goes first", "max(least, lanes[lane_key(band, lane)] or least)", "least"},
	{"a lane has credit", "max(least, first and first + 1 or place_after(nil, band, now))", "least"},
	{"a lane that is late waits", "first and first + 1 or place_after", "false or place_after"},
	{"lanes pass those without", "    lanes[all] = min(place + 1, band + BAND - 1)\n", ""},
	{"lanes pass those who were there before", "lanes[all] = lanes[all] or place\n", "lanes[all] = lanes[all] or band\n"},
	{"lanes without number", "or many + 1 < LANES", "or true"},
	{"lanes that no longer wait hold others up", "place >= band and place <= (first or band)", "false"},
	{"lanes of each call alone", "      set[#set + 1], set[#set + 2] = 'Q' .. l.scope, lanes_text(l.lanes)\n", ""},
	{"lanes of an empty queue", "      fields_gone[#fields_gone + 1] = 'Q' .. l.scope\n", ""},
}

// findSettleFault returns what histories of settlements find wrong.
func findSettleFault(rdb redis.UniversalClient, prefix string) string {
	for n := range uint64(200) {
		if found := settleHistory(rdb, fmt.Sprint(prefix, n), n, 80); found != "" {
			return fmt.Sprintf("history %d: %s", n, found)
		}
	}
	return ""
}

// mostHistories is how many of the turns a planted fault may hide from.
const mostHistories = 400

// findFault returns what the first histories, the scenes and the other histories of the turns find wrong.
func findFault(rdb redis.UniversalClient, prefix string) string {
	for n := range uint64(mostHistories) {
		if n == 3 { // the first find most, in less time than the scenes
			if found := sceneFault(rdb, prefix); found != "" {
				return found
			}
		}
		if found := newQueueHistory(n+1, eachHistory).run(rdb, fmt.Sprint(prefix, "h", n)); found != "" {
			return fmt.Sprintf("history %d: %s", n, found)
		}
	}
	return ""
}

// sceneFault returns what the scenes of shares and lanes find wrong.
func sceneFault(rdb redis.UniversalClient, prefix string) string {
	for i, s := range shareScenes {
		if found := faultOf(func() { s.play(newFairWorld(rdb, fmt.Sprint(prefix, "s", i), s.limits, s.scopes)) }); found != "" {
			return s.name + ": " + found
		}
	}
	for i, c := range fairCases[:4] {
		if found := c.run(rdb, fmt.Sprint(prefix, "f", i)); found != "" {
			return c.name + ": " + found
		}
	}
	return laneFault(rdb, prefix)
}

// Every planted fault is found, always by the same histories and scenes; a change that is no fault is not.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	planted.Sought(t)
	seek := func(f plant, find func(redis.UniversalClient, string) string) {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			if !planted.Drawn(t) {
				return
			}
			rdb, began := redistest.Client(t), time.Now()
			rdb.AddHook(planted.New(f.from, f.to, true))
			found := find(rdb, redistest.Prefix(t))
			if t.Logf("after %s: %s", time.Since(began), found); found == "" {
				t.Error("not found")
			}
		})
	}
	for _, f := range laterPlants {
		seek(f, laterFault)
	}
	for _, f := range stepPlants {
		seek(f, stepFault)
	}
	for _, f := range settlePlants {
		seek(f, findSettleFault)
	}
	for _, f := range queuePlants {
		seek(f, findFault)
	}
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.Client(t)
		rdb.AddHook(planted.New("local BAND, MIDDLE", "local fine\nlocal BAND, MIDDLE", true))
		if found := sceneFault(rdb, redistest.Prefix(t)); found != "" {
			t.Error(found)
		}
	})
}

// A script that was changed takes the faults that were planted in it along.
func TestPlantsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for _, f := range slices.Concat(laterPlants, stepPlants, settlePlants, queuePlants) {
		planted.HasPlaces(t, f.from)
	}
}
