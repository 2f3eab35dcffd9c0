package throttle

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// queuePlants are faults of those who wait, which histories or scenes must find.
var queuePlants = []struct{ what, from, to string }{
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

// mostHistories is how many a planted fault may hide from.
const mostHistories = 400

// firstHistories find most of what is planted, in less time than scenes.
const firstHistories = 3

// findFault returns what some histories, scenes and the other histories, in this order, find wrong, and how many
// histories it took.
func findFault(rdb redis.UniversalClient, prefix string, histories int) (found string, n int) {
	play := func(until int) bool {
		for ; n < until && found == ""; n++ {
			found = newQueueHistory(uint64(n+1), eachHistory).run(rdb, fmt.Sprint(prefix, "h", n+1))
		}
		return found != ""
	}
	if play(min(firstHistories, histories)) {
		return found, n
	}
	if found = findUnfair(rdb, prefix); found != "" {
		return found, n
	}
	if found = laneFault(rdb, prefix); found != "" {
		return found, n
	}
	play(histories)
	return found, n
}

// findUnfair returns what the scenes of shares find wrong.
func findUnfair(rdb redis.UniversalClient, prefix string) string {
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
	return ""
}

// Every planted fault is found soon: always by the same histories.
func TestQueueHistoriesFindPlantedFaults(t *testing.T) {
	forHistories(t)
	t.Parallel()
	var most atomic.Int64
	for _, f := range queuePlants {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			p := plant(f.from, f.to, true)
			if len(p.texts) == 0 {
				t.Fatalf("no script holds %q any more", f.from)
			}
			if !drawn(t) {
				return
			}
			rdb := redistest.Client(t)
			rdb.AddHook(p)
			found, n := findFault(rdb, redistest.Prefix(t), mostHistories)
			if found == "" {
				t.Fatalf("not found in %d histories", mostHistories)
			}
			t.Logf("history %d: %s", n, found)
			most.Store(max(most.Load(), int64(n)))
		})
	}
	t.Cleanup(func() { t.Logf("hid longest: %d histories", most.Load()) })
}

// What is planted and is no fault is not found.
func TestQueueHistoriesFindNothingElse(t *testing.T) {
	forHistories(t)
	t.Parallel()
	rdb := redistest.Client(t)
	rdb.AddHook(plant("local BAND, MIDDLE", "local fine\nlocal BAND, MIDDLE", true))
	if found, n := findFault(rdb, redistest.Prefix(t), 20); found != "" {
		t.Errorf("history %d: %s", n, found)
	}
}
