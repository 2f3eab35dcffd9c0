package throttle

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// turnPlants are faults that somebody might make in the scripts of turns. The
// histories of those who wait must find every one of them.
var turnPlants = []struct{ what, from, to string }{
	{"turn: who only rejoins is granted", "not heeds and not late and again < '2' and", "not heeds and not late and (again < '2' or again == '2') and"},
	{"turn: who only takes a place is granted", "not heeds and not late and again < '2' and", "not heeds and not late and again ~= '2' and"},
	{"turn: who only takes a place is granted, under rules that others wait for", "- now <= ahead and again < '2' then", "- now <= ahead and again ~= '2' then"},
	{"turn: who takes a place goes to the front", "again == '1' or again == '2'\n", "again ~= '0'\n"},
	{"turn: a new task overtakes", "held_up = not mine and waited_for() or nil", "held_up = nil"},
	{"turn: a ticket left in line", "    if not quiet and not released then\n      leave()", "    if false then\n      leave()"},
	{"turn: units that leave uncounted", "count(-1, shares", "count(0, shares"},
	{"turn: units that come uncounted", "count(1, card", "count(0, card"},
	{"turn: a line uncounted", "card == 0 and 1 or 0)\n", "0)\n"},
	{"turn: a seat left behind", "unpack7(rank, 4))\n      comes[seat] = false\n", "unpack7(rank, 4))\n"},
	{"turn: to the end though its turn had come", "if mine then\n      return own_place", "  if false then\n    return own_place"},
	{"turn: a round that nobody looks at", "  call('ZADD', due, 'LT', whole(look), name)\n", ""},
	{"turn: another's start taken unseen", "if n > 1 or byte(ticket) ~= COLON then", "if false then"},
	{"turn: on its way though it has come", "    call('HDEL', out_key, on_way)\n", ""},
	{"turn: units set aside for nobody", "    freed(due, at, names_of_rules(n, #provider), now) -- what was set aside", "    -- what was set aside"},
	{"turn: a line without a TTL", "keep_waiting(max(0, expected), line)\n", "false\n"},
	{"turn: a place lost when asked again", "  if not stood then\n    call('ZADD', line, whole(score), ticket)", "  if true then\n    call('ZADD', line, whole(score + 5), ticket)"},
	{"turn: priorities the wrong way", "local band = -priority * BAND\n    if mine", "local band = priority * BAND\n  if mine"},

	{"wake: more when sent again", "        most = most - 1\n", ""},
	{"wake: who did not come is lost", "      elseif l then\n        back(", "      elseif false then\n        back("},
	{"wake: who did not come counts for ever", "if left + STALE > now then", "if true then"},
	{"wake: units released and still counted", "      count(l, o.ticket, -1)\n", ""},
	{"wake: a look too late", "list[#list + 2] = whole(look), name", "list[#list + 2] = whole(look + 700000), name"},
	{"wake: a rule forgotten with its round full", "      if not looks[name] then\n        gone", "      if true then\n        gone"},
	{"wake: an orphan that stays", "      if value and what == 'f' then\n        call('HDEL', out_key, field)", "      if value and what == 'f' then"},
	{"wake: an orphan's units are seen by nobody", "        call('HDEL', out_key, field)\n        look_at(scope)\n      elseif value and", "        call('HDEL', out_key, field)\n      elseif value and"},
	{"wake: one that ended in line is still counted", "        count(l, ticket, -1)\n        read_at(", "        read_at("},
	{"wake: who is behind one that ended is seen by nobody", "    call('ZADD', due, 'XX', 'LT', whole(now), name)\n    if not ticket", "    if not ticket"},
	{"wake: a line that ended keeps its seat", "    moved[l.scope] = { was = had }\n", ""},
	{"wake: a line that goes on loses its seat", "    if not ticket then\n      return unseat", "    if true then\n      return unseat"},
	{"wake: a plan's units are seen by nobody", "        look_at(scope)\n        freed_unknown = freed_unknown or not l\n", ""},
	{"wake: a task too dear stops its line", "elseif not free and by.cap ~= 0 and by.p ~= 0 then", "elseif false then"},
	{"wake: a task too dear stops its round", "l.next + 2\n  move(seat, seat.name, rank_of(score, seat.stamp))\n", "l.next + 2\n  rounds[seat.name] = { here = {}, first = false }\n  look_by(seat.name, now + AGAIN)\n"},
	{"wake: a task too dear goes behind its line", "  parking.take_from(l, { ticket, score })\n  parking.dear, l.next = parking.dear - 1, l.next + 2\n", "  call('ZADD', l.key, whole(tonumber(call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2]) + 1), ticket)\n  l.got = nil\n"},
	{"wake: a task too dear stays counted", "parking.take_from(l, { ticket, score })", "parking.take_from(l, { ticket, score })\n  count(l, ticket, 1)"},
	{"wake: news heeded twice", " and sub(value, 22) ~= id then", " then"},
	{"wake: a suspended rule that is looked at all the time", "not free and now + SUSPENDED", "not free and now"},
	{"wake: the last goes first", "call('ZRANGE', l.key, whole(l.taken)", "call('ZREVRANGE', l.key, whole(l.taken)"},
	{"wake: released and in line", "      call('ZREM', l.key, unpack(tickets))\n", ""},
	{"wake: a seat not noted", "        note('S' .. scope, seat.seat or false)\n", ""},
	{"wake: back in line and no seat", "      l.opened, comes[seat] = true, true\n      note('S' .. l.scope, seat)\n", "      l.opened = true\n"},
	{"wake: more than were asked for", "local over = most + more <= 0", "local over = 1 + most + more <= 0"},
	{"wake: a changed limit is not seen", "if ARGV[6] == '1' or freed_unknown or beat > now then", "if freed_unknown then"},
	{"wake: the same seat goes first again", "    take_slots(its)\n    local meets", "    local meets"},

	{"parked: still counted in its line", "      count(l, list[i], -1)\n", ""},
	{"parked: and in line", "    call('ZREM', l.key, unpack(tickets))\n    l.parked = true\n", "    l.parked = true\n"},
	{"parked: lost", "    parking.park(l.scope, list) --", "    --"},
	{"parked: out for a while", "      if parking.stands(ticket) and whose ~= RUNNING then", "      if false then"},
	{"parked: back at another place", "      back(l, field, nil, score)\n", "      back(l, field, nil, score + 4000)\n"},
	{"parked: back and still parked", "      call('ZREM', parking.key, field)\n      return score\n", "      return score\n"},
	{"parked: though it has come", "if had_place then\n    call('ZREM'", "if false then\n    call('ZREM'"},
	{"parked: loses its place when it comes", "parked_before and had_place or score_for", "score_for"},
	{"parked: though it has ended", "      if what == 'f' and parking.parks then", "      if false then"},

	{"line up: who goes straight is forgotten", "if #straight > 0 and (joined or scarce()) then", "if false then"},
	{"line up: given a place twice", "  if out then\n    local whose", "  if false then\n    local whose"},
	{"line up: who stands is counted again", "  if place then\n    return expected_of", "  if false then\n    return expected_of"},
	{"line up: units uncounted", "l.units[unit] = units + cost_of(ticket, unit)", "l.units[unit] = units"},
	{"line up: before those who wait", "  if not waited_for(l, path) then\n    local start, binding", "  if true then\n    local start, binding"},
	{"line up: a round that nobody looks at", "  call('ZADD', due, 'LT', whole(max(now, look - lead)), name)\n", ""},
	{"line up: a look for the wrong task", "l.start, l.rule = nil, nil --", "-- l.start, l.rule = nil, nil --"},
	{"line up: in another order", "score = score or place_after(last_in(l, band), band, now)", "score = score or (last_in(l, band) or place_after(nil, band, now)) - 1"},

	{"pause: one that ends early", "return max(t, r.ends)", "return max(t, r.ends - 10000)"},
	{"pause: of the scope alone", "local p = pause_of(sub(scope, 1, ends - 1))", "local p = pause_of(scope)"},
	{"pause: of all scopes", "    local v, stepped = call('HGET', told, 'P' .. level), false", "    local v, stepped = call('HGETALL', told)[2], false"},
	{"pause: unseen where nobody waits", "if (quiet or at_once) and not heeds and", "if (quiet or at_once) and"},
	{"pause: unseen by a look", "    add_pauses(l.path, l.scope)\n  end", "  end"},
	{"pause: unseen by who lines up", "    add_pauses(l.path, l.scope)\n    for", "    for"},
	{"pause: who comes goes before those who waited", "  for i = 1, #rules do\n    local look", "  for i = 1, n do\n    local look"},
	{"pause: lifted, and nobody looks", "    look(level .. ':!stop')\n", ""},
	{"pause: a shorter one cuts it", "  if ends >= now + us then", "  if false then"},
	{"pause: a seat that stays where it was", "return i <= n and rule_name(KEYS[i]) or rules[i].name", "return rule_name(KEYS[1])"},

	{"correction: more than the policy lets", "local most = most_of(rule)\n", "local most = 9000000\n"},
	{"correction: all that an API says", "  own = min(own, most)\n", ""},
	{"correction: raised, and nobody looks", "  if not known then -- it may be more than the rule's", "  if had > 0 and (limit == 0 or limit > had) then"},
	{"correction: grows, and nobody looks", "  if fresh then\n    look(name)\n  end\n", ""},
	{"correction: who is too dear for a while loses its place", "if not free and by.corrected and by.cost <= by.most and", "if false and"},
	{"correction: before one that is too dear for a while", "if heeds and left_out == '' then", "if false then"},

	{"all: a rule whose units put the start off comes free unseen", "elseif t > (at or now) then", "elseif false then"},
	{"all: before those who are out", "max(last + 1, first)", "last + 1"},
	{"all: all cost one", "return cost and (tonumber(cost) or 1)", "return cost and 1"},
	{"units: before its line, whose first waits for another rule", "if left_out ~= '' then\n    late = line_waits()", "if false then\n    late = line_waits()"},
	{"units: a line uncounted under rules of other units", "    add('N' .. name, lines)\n", "    add('N' .. name, i <= n and lines or 0)\n"},
	{"units: behind a first that waits for what it takes nothing of", "if mixed and name ~= NO_RULE then", "if false then"},
	{"units: every rule counts requests", "return unit == '' and REQUESTS or unit\n", "return REQUESTS\n"},
	{"units: what is not given counts one", "(unit == '' or unit == REQUESTS) and 1 or 0\nend", "1\nend"},
	{"units: a rule that counts nothing of it is asked", "  if all then\n    return path\n", "  if true then\n    return path\n"},
	{"units: one sum for all", "'L' .. scope or 'L' .. scope .. '\\0' .. unit", "'L' .. scope or 'L' .. scope"},
	{"all: a seat for the wrong priority", "if floor(score / BAND) + LOWEST < band then", "if false then"},
}

// sharePlants are faults of shares, which the cases and scenes of those must find.
var sharePlants = []struct{ what, from, to string }{
	{"wake: a turn of 50 units counts as one", "had_turn(its, path)", "had_turn(its, {})"},
	{"wake: the time stands still", "  had_turn(its, path)\n  local following", "  local following"},
	{"wake: in another round by the stamp of this one", "sub(seat.rank, 1, 3) .. pack(tag_at(tags_of(l, seat), name))", "seat.rank"},
	{"wake: an old seat's turn is free", "max(number_at('F' .. s.node), seat.stamp)\n      put_off(s, 1)\n", "max(number_at('F' .. s.node), seat.stamp)\n"},
	{"wake: slots that are kept for ever", "if held[time] and number_at(slot) > number_at(time) then", "if true then"},
	{"wake: the tags of an empty line stay", "if text ~= held['T' .. scope] then", "if text and text ~= held['T' .. scope] then"},
	{"wake: classes take turns of one each", "gives = gives_way(seat, l)", "gives = false"},
	{"wake: who gives way keeps its slot", "s.tag, theirs.tag = max(s.tag, theirs.tag or 0), min(s.tag, theirs.tag or s.tag)", "theirs.tag = min(s.tag, theirs.tag or s.tag)"},
	{"all: a place whose line is empty", "    if not places[place] then", "    if not empty and not places[place] then"},
	{"line up: no place among its class", "  note('S' .. l.scope, seat)\n  save_shares(l.shares)\n", "  note('S' .. l.scope, seat)\n"},
	{"turn: a seat that was taken elsewhere stays there", "  if tag < stamp then\n", "  if false then\n"},
	{"turn: who goes without a look has had no turn", "    had_turn(shares, path_costs())\n", ""},
	{"all: weights that count for nothing", "weight = weight > 0 and weight or 1 }", "weight = 1 }"},
	{"all: each scope has turns of its own", "local ends = string.find(path, '/', #level + 2, true) or #path + 1", "local ends = #path"},
	{"all: who was away has saved up", "  s.tag = max(time, number_at('F' .. s.node))\n", "  s.tag = number_at('F' .. s.node)\n"},
	{"all: who empties its line begins anew", "  s.tag = max(time, number_at('F' .. s.node))\n", "  s.tag = time\n"},
	{"all: one time for all levels", "    shares.had = places_had(tags, scope)\n", "    shares.had = places_had(tags, scope)\n    for i = 1, #shares do\n      shares[i].level = ''\n    end\n"},
	{"all: places that stay when weights go", "had[place_at(level, unpack7(tags, 7 * depth + 1), scope)] = true", "had[1] = nil"},
	{"all: times of levels that nobody waits below", "      note('V' .. s.level, false)\n", ""},
	{"all: sums of rules that nobody waits for", "      note('N' .. name, false)\n", ""},
	{"all: who empties its line is forgotten", "waits[level] = waits[level] or seat and number_at('N' .. name) > 0", "waits[level] = false"},
	{"wake: places of who does not wait", "if emptied or its and", "if its and"},
	{"wake: places that tags do not tell of", "if emptied or its and not other.shares.had[place] then", "if emptied then"},
	{"wake: nodes are noted and never looked through", "    if many < FORGET then\n", "    if true then\n"},
}

// lanePlants are faults of lanes, which the scenes of those must find.
var lanePlants = []struct{ what, from, to string }{
	{"all: lanes that start alike", "min(place + stride, band", "min(place + 1, band"},
	{"all: a lane's last goes first", "max(least, lanes[lane_key(band, lane)] or least)", "least"},
	{"all: a lane has credit", "max(least, first and first + 1 or place_after(nil, band, now))", "least"},
	{"all: a lane that is late waits", "first and first + 1 or place_after", "false or place_after"},
	{"all: lanes pass those without", "    lanes[all] = min(place + 1, band + BAND - 1)\n", ""},
	{"all: lanes pass those who were there before", "lanes[all] = lanes[all] or place\n", "lanes[all] = lanes[all] or band\n"},
	{"all: lanes without number", "or many + 1 < LANES", "or true"},
	{"all: lanes that no longer wait hold others up", "place >= band and place <= (first or band)", "false"},
	{"turn: lanes of each call alone", "    note('Q' .. scope, lanes_text(lanes))\n", ""},
	{"line up: lanes of each call alone", "        note('Q' .. l.scope, lanes_text(l.lanes))\n", ""},
	{"wake: lanes of an empty line", "    note('Q' .. scope, false)\n", ""},
}

// Every planted fault of lanes is found.
func TestLanesFindPlantedFaults(t *testing.T) {
	if raced {
		t.Skip("it takes minutes with the race detector, which finds nothing in scripts: make histories")
	}
	t.Parallel()
	for _, f := range lanePlants {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			p := plant(f.from, f.to, true)
			if len(p.texts) == 0 {
				t.Fatalf("no script holds %q any more", f.from)
			}
			rdb := redistest.Client(t)
			rdb.AddHook(p)
			found := laneFault(rdb, watched(rdb), redistest.Prefix(t))
			if found == "" {
				t.Fatal("not found")
			}
			t.Log(found)
		})
	}
}

// rareFaults are those that the first histories don't meet, and one that does.
var rareFaults = map[string]uint64{
	"wake: a task too dear stops its line": 515,
}

// What is planted and is no fault is not found, by the first of the histories that
// find the others or by any.
func TestTurnsHistoriesFindNothingElse(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	rdb.AddHook(plant("local BAND, MIDDLE", "local fine\nlocal BAND, MIDDLE", true))
	last := watched(rdb)
	histories := 20
	if raced {
		histories = 5
	}
	if found, n := findFault(rdb, last, redistest.Prefix(t), histories); found != "" {
		t.Errorf("history %d: %s", n, found)
	}
	turnsHistories(t, rdb, last, turnsSeed(t), 500)
}

// Every planted fault of shares is found.
func TestSharesFindPlantedFaults(t *testing.T) {
	if raced {
		t.Skip("it takes minutes with the race detector, which finds nothing in scripts: make histories")
	}
	t.Parallel()
	for _, f := range sharePlants {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			p := plant(f.from, f.to, true)
			if len(p.texts) == 0 {
				t.Fatalf("no script holds %q any more", f.from)
			}
			rdb := redistest.Client(t)
			rdb.AddHook(p)
			last, prefix := watched(rdb), redistest.Prefix(t)
			found := findUnfair(rdb, last, prefix)
			if found == "" {
				found, _ = findFault(rdb, last, prefix, 40)
			}
			if found == "" {
				t.Fatal("not found")
			}
			t.Log(found)
		})
	}
}

// Every planted fault is found soon: always by the same histories.
func TestTurnsHistoriesFindPlantedFaults(t *testing.T) {
	if raced {
		t.Skip("it takes minutes with the race detector, which finds nothing in scripts: make histories")
	}
	t.Parallel()
	var most atomic.Int64
	for _, f := range turnPlants {
		t.Run(f.what, func(t *testing.T) {
			t.Parallel()
			p := plant(f.from, f.to, true)
			if len(p.texts) == 0 {
				t.Fatalf("no script holds %q any more", f.from)
			}
			rdb := redistest.Client(t)
			rdb.AddHook(p)
			last, prefix := watched(rdb), redistest.Prefix(t)
			if n, ok := rareFaults[f.what]; ok {
				if found := drained(n).run(rdb, last, prefix); found != "" {
					t.Logf("history %d: %s", n, found)
					return
				}
			}
			found, n := findFault(rdb, last, prefix, mostHistories)
			if found == "" {
				t.Fatalf("not found in %d histories", mostHistories)
			}
			t.Logf("history %d: %s", n, found)
			most.Store(max(most.Load(), int64(n)))
		})
	}
	t.Cleanup(func() { t.Logf("the one that hid longest was found by history %d", most.Load()) })
}

// scene is a short history that meets what random ones seldom do.
type scene struct {
	limits []map[string]Node
	play   func(w *turnsWorld, add func(scope, cost int64) *waiter)
}

var scenes = []scene{
	// Who comes while others are out goes behind them, though one of them is back in
	// line and they are not.
	{hundred, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 50)
		first, second := add(0, 1), add(0, 1)
		w.wake(1, w.h.spread, false)
		w.now += outStays - 1000
		w.wake(1, w.h.spread, false)
		w.now += 1000
		w.wake(0, 0, false)
		if first.stage != parked || second.stage != released {
			fail("%d, %d: one should be back and one out", first.stage, second.stage)
		}
		add(0, 2)
		w.now += outStays
		w.wake(64, w.h.spread, false)
	}},
	// News of a task that the same call releases again are heeded once.
	{hundred, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 50)
		early := add(0, 1)
		add(0, 1)
		add(1, 1)
		add(1, 20)
		w.wake(1, w.h.spread, false)
		w.wake(1, w.h.spread, false)
		w.news.NotYet = append(w.news.NotYet, early.Place)
		early.stage, early.passed = astray, true
		w.wake(64, w.h.spread, false)
		if early.stage != released || w.unfinished {
			fail("%d: it should have been released again, and nobody else", early.stage)
		}
		w.resend()
	}},
	// Who stands behind one that ends in line, and costs less, can start sooner.
	{[]map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 5}}}}},
		func(w *turnsWorld, add func(scope, cost int64) *waiter) {
			add(0, 5)
			dear, cheap := add(0, 5), add(0, 1)
			w.wake(64, 0, false)
			w.now += 1_000_000
			w.endsBefore(dear, 0)
			w.wake(64, 0, false)
			if cheap.stage != released {
				fail("%d: it should be released", cheap.stage)
			}
			w.settle()
		}},
	// Two scopes whose tasks two lowered limits can't admit are left alone.
	{[]map[string]Node{twoLevels(50, 50), twoLevels(2, 1)}, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 50)
		add(0, 2)
		add(1, 3)
		w.version, w.disturbed = 1, true
		w.wake(64, 0, true)
		w.settle()
	}},
	// The units of one that went straight to its queue and has not come are others' in time.
	{[]map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 5}}}}},
		func(w *turnsWorld, add func(scope, cost int64) *waiter) {
			planned := &waiter{Place: Place{Scope: w.h.scopes[0], Ticket: "planned", cost: 5}}
			w.tasks = append(w.tasks, planned)
			w.lineUp([]*waiter{planned}, 0)
			add(1, 1)
			w.wake(64, w.h.spread, false)
			if planned.stage != straight {
				fail("%d: it should have gone straight to its queue", planned.stage)
			}
			planned.stage = astray
			w.now += outStays - 30_000
			w.wake(64, w.h.spread, false)
			w.now += 40_000
			w.settle()
		}},
	// A task that a lowered limit can't admit stands in no other scope's way.
	{[]map[string]Node{oneWindow(50), oneWindow(5)}, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 50)
		add(0, 6)
		for range 4 {
			add(1, 1)
		}
		w.version = 1
		w.now += 1_100_000
		w.wake(64, 0, true)
		w.deliver()
		w.settle()
	}},
	// What comes free of a rule is seen by a scope whose start it puts off to the end
	// of another's window, where that other has its margin.
	{bucketAboveWindow, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		w.now += 250_000
		other := add(2, 5)
		add(0, 2)
		w.giveBack(other)
		w.settle()
	}},
	// Two that were released together take each other's starts: what that frees of
	// the one's own rule is seen by who waits for it.
	{windowsBelowWindow, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 4)
		add(2, 1)
		w.now += 60_000_000 - 90_000
		first := add(1, 5) // all that is left of this minute
		w.giveBack(first)
		w.ask(first, rejoins, 0, 0)
		second, last := add(2, 1), add(2, 5)
		w.wake(64, w.h.spread, false)
		if first.stage != released || second.stage != released || last.stage != parked {
			fail("%d, %d and %d: two should be released, one for the next minute", first.stage, second.stage, last.stage)
		}
		w.ask(second, comes, 200_000, 0)
		w.ask(first, comes, 200_000, 0)
		w.now += 85_000
		w.settle()
	}},
	// The turn of one that only goes back to its line is another scope's.
	{[]map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 1}}}}},
		func(w *turnsWorld, add func(scope, cost int64) *waiter) {
			add(0, 1)
			first, second := add(0, 1), add(2, 1)
			w.now += 990_000
			w.wake(64, w.h.spread, false)
			if first.stage != released || second.stage != parked {
				fail("%d, %d: one should be released", first.stage, second.stage)
			}
			w.ask(first, rejoins, 0, 0)
			w.now += 5000
			w.settle()
		}},
	// Of those lined up together the last is first, for its priority: it can start sooner.
	{[]map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 5}}}}},
		func(w *turnsWorld, add func(scope, cost int64) *waiter) {
			add(0, 5)
			dear := &waiter{Place: Place{Scope: w.h.scopes[0], Ticket: "dear", cost: 5}}
			cheap := &waiter{Place: Place{Scope: w.h.scopes[0], Ticket: "cheap"}, priority: 1}
			w.tasks = append(w.tasks, dear, cheap)
			w.lineUp([]*waiter{dear, cheap}, 0)
			w.now += 1_000_000
			w.settle()
		}},
	// A pause that is lifted is over at once for whoever waits for it; the other scopes' tasks
	// have not waited.
	{hundred, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		w.tell(w.h.scopes[0], 2, "pause", 5_000_000, 0)
		first, second, other := add(0, 1), add(1, 1), add(2, 1)
		if first.stage != parked || second.stage != parked || other.stage != running {
			fail("%d, %d, %d: two are paused", first.stage, second.stage, other.stage)
		}
		w.settle()
		w.tell(w.h.scopes[0], 2, "lift", 0, 0)
		w.settle()
		if first.stage != running || second.stage != running {
			fail("%d, %d: the pause was lifted", first.stage, second.stage)
		}
	}},
	// A pause is over, and those who waited for it are yet to be looked at: who comes goes
	// behind them, from other scopes too.
	{hundred, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		w.tell(w.h.scopes[0], 1, "pause", 5_000_000, 0)
		first := add(0, 1)
		w.now += 4_500_000
		w.wake(64, 0, true)
		w.now += 500_001
		if other := add(2, 1); first.stage != parked || other.stage != parked {
			fail("%d, %d: both wait", first.stage, other.stage)
		}
		w.settle()
	}},
	// One that is too dear while an API's limit is lower keeps its place: who comes to its line
	// stands behind it.
	{[]map[string]Node{oneWindow(20)}, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		w.correct(w.h.scopes[0], 0, "adopt", [5]int64{4, 0, 60_000_000})
		dear := add(0, 10)
		w.now += 1_000_000
		w.wake(64, w.h.spread, false)
		if next := add(0, 1); dear.stage != parked || next.stage != parked {
			fail("%d, %d: both wait", dear.stage, next.stage)
		}
		w.correct(w.h.scopes[0], 0, "free", [5]int64{})
		w.settle()
	}},
	// What an API raises a rule to, first of all that it tells, admits those who wait for it.
	{raisedWindow, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 1)
		second := add(0, 1)
		w.correct(w.h.scopes[0], 0, "adopt", [5]int64{3, 0, 60_000_000})
		w.settle()
		if second.stage != running {
			fail("%d: it should have started", second.stage)
		}
	}},
	// A rule that grows admits those who wait for it as soon as it has.
	{raisedWindow, func(w *turnsWorld, add func(scope, cost int64) *waiter) {
		add(0, 1)
		second := add(0, 1)
		w.correct(w.h.scopes[0], 0, "rise", [5]int64{3 * 1_000_000, 1_000_000, 60_000_000})
		w.wake(64, w.h.spread, false)
		w.now += 2_000_000
		w.settle()
		if second.stage != running {
			fail("%d: it should have started", second.stage)
		}
	}},
	// One that is first for its priority, and takes nothing of the rule that its scope waits
	// for behind another, waits for nobody.
	{[]map[string]Node{{"p": {Rules: []Rule{
		{Name: "calls", Algorithm: TokenBucket, Limit: 9, Per: sec, Burst: 9},
		{Name: "words", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"},
	}}}}, func(w *turnsWorld, _ func(scope, cost int64) *waiter) {
		add := func(scope int, costs string, priority int) *waiter {
			t := &waiter{Place: Place{Scope: w.h.scopes[scope], Ticket: fmt.Sprintf("t%d", len(w.tasks)), costs: costs}, priority: priority}
			w.tasks = append(w.tasks, t)
			w.ask(t, comes, 0, 0)
			w.sound()
			return t
		}
		add(0, "tokens=20", 0)
		add(0, "tokens=20", 1)
		add(2, "tokens=20", 0)
		w.wake(64, w.h.spread, false)
		first := add(2, "requests=1", 1)
		w.settle()
		if first.stage != running {
			fail("%d: it should have started", first.stage)
		}
	}},
	// A seat that a worker of an earlier version left with a rule that its first takes nothing of
	// is found there.
	{[]map[string]Node{{"p": {Rules: []Rule{
		{Name: "calls", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 1},
		{Name: "words", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 20, Unit: "tokens"},
	}}}}, func(w *turnsWorld, _ func(scope, cost int64) *waiter) {
		add := func(scope int, costs string) *waiter {
			t := &waiter{Place: Place{Scope: w.h.scopes[scope], Ticket: fmt.Sprintf("t%d", len(w.tasks)), costs: costs}}
			w.tasks = append(w.tasks, t)
			w.ask(t, comes, 0, 0)
			w.sound()
			return t
		}
		add(0, "requests=1,tokens=20")
		add(0, "requests=0,tokens=20")
		first := add(2, "requests=1")
		for _, s := range w.seen.round {
			if s.rule == ":calls" {
				seat := ":words" + strings.TrimPrefix(s.member, s.rule)
				must(w.rdb.ZRem(ctx, w.keys[1], s.member).Err())
				must(w.rdb.ZAdd(ctx, w.keys[1], redis.Z{Member: seat}).Err())
				must(w.rdb.HSet(ctx, w.keys[3], "S"+s.scope, seat).Err())
			}
		}
		w.now += 1_000_000
		must(w.rdb.ZAdd(ctx, w.keys[0], redis.Z{Score: float64(w.now), Member: ":words"}).Err())
		w.fresh = false
		w.settle()
		if first.stage != running {
			fail("%d: it should have started", first.stage)
		}
	}},
}

var raisedWindow = []map[string]Node{{"p": {
	Corrects: Corrects{Most: 300}, Rules: []Rule{{Name: "r", Algorithm: FixedWindow, Limit: 1, Per: 10 * sec}},
}}}

var windowsBelowWindow = []map[string]Node{{"p": {
	Rules: []Rule{{Name: "all", Algorithm: FixedWindow, Limit: 10, Per: 60 * sec}},
	Scopes: map[string]Node{
		"a": {Rules: []Rule{{Name: "own", Algorithm: FixedWindow, Limit: 10, Per: 60 * sec}}},
		"b": {Rules: []Rule{{Name: "own", Algorithm: FixedWindow, Limit: 5, Per: 60 * sec}}},
	},
}}}

var bucketAboveWindow = []map[string]Node{{"p": {
	Rules: []Rule{{Name: "above", Algorithm: TokenBucket, Limit: 3, Per: 10 * sec, Burst: 5}},
	Scopes: map[string]Node{"a": {
		Rules: []Rule{{Name: "below", Algorithm: FixedWindow, Limit: 7, Per: sec, Margin: sec / 8}},
	}},
}}}

var hundred = []map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 50}}}}}

func oneWindow(limit int64) map[string]Node {
	return map[string]Node{"p": {Rules: []Rule{{Name: "r", Algorithm: SlidingWindow, Limit: limit, Per: sec}}}}
}

func twoLevels(above, below int64) map[string]Node {
	return map[string]Node{"p": {
		Rules: []Rule{{Name: "above", Algorithm: SlidingWindow, Limit: above, Per: sec}},
		Scopes: map[string]Node{"a": {
			Rules: []Rule{{Name: "below", Algorithm: FixedWindow, Limit: below, Per: 2 * sec}},
		}},
	}}
}

func (s scene) run(rdb redis.UniversalClient, last *lastCall, prefix string) (found string) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			found = string(f)
		default:
			panic(f)
		}
	}()
	h := &turnsHistory{
		seed: 1, counts: newTurnsCounts(), lead: 10_000, spread: 80_000, scopes: []string{"p/a/x", "p/a/y", "p/b"}, versions: s.limits,
	}
	w := newTurnsWorld(rdb, last, prefix, h)
	add := func(scope, cost int64) *waiter {
		t := &waiter{Place: Place{Scope: h.scopes[scope], Ticket: fmt.Sprintf("t%d", len(w.tasks)), cost: cost}}
		w.tasks = append(w.tasks, t)
		w.ask(t, comes, 0, 0)
		w.sound()
		return t
	}
	s.play(w, add)
	w.sound()
	return ""
}

// drained is a history that goes on until nobody waits.
func drained(seed uint64) *turnsHistory {
	h := newTurnsHistory(seed, eachHistory)
	h.drains = true
	return h
}

// mostHistories is how many histories a planted fault may hide from.
const mostHistories = 400

// findFault returns what one of the histories finds wrong, and which; the first are
// those of those who take turns, and the scenes.
func findFault(rdb redis.UniversalClient, last *lastCall, prefix string, histories int) (found string, n int) {
	if found := takeTurns(rdb, last, prefix); found != "" {
		return found, 0
	}
	for i, play := range scenes {
		if found := play.run(rdb, last, fmt.Sprintf("%sscene%d", prefix, i)); found != "" {
			return found, 0
		}
	}
	for n := range histories {
		if found := drained(uint64(n)).run(rdb, last, prefix+strconv.Itoa(n)); found != "" {
			return found, n + 1
		}
	}
	return "", 0
}

// findUnfair returns what one of the cases and scenes of shares finds wrong.
func findUnfair(rdb redis.UniversalClient, last *lastCall, prefix string) string {
	for i, s := range shareScenes {
		found := faultOf(func() { s.play(newFairWorld(rdb, last, fmt.Sprintf("%sshare%d", prefix, i), s.limits, s.scopes)) })
		if found != "" {
			return found
		}
	}
	for i, c := range fairCases {
		if found := c.run(rdb, last, fmt.Sprintf("%sfair%d", prefix, i)); found != "" {
			return found
		}
	}
	return ""
}

// Scopes under a shared rule take turns, and the saving for the head of a line is
// bounded by its cost.
func TestScopesTakeTurns(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, Rule{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec}), func(b *bench) {
		if found := takeTurns(b.rdb, watched(b.rdb), b.cfg.Prefix); found != "" {
			b.t.Error(found)
		}
	})
}

// takeTurns has three scopes wait for a bucket of 100/s: one has a task of cost 50
// between others of 1, the others have many of 1 and get more all the time.
func takeTurns(rdb redis.UniversalClient, last *lastCall, prefix string) (found string) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case fault:
			found = string(f)
		default:
			panic(f)
		}
	}()
	h := &turnsHistory{
		seed: 1, counts: newTurnsCounts(), lead: 10_000, scopes: []string{"p/a/x", "p/b/x", "p/c/x"}, quick: true,
		versions: []map[string]Node{{"p": {Rules: []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 100, Per: sec, Burst: 50}}}}},
	}
	w := newTurnsWorld(rdb, last, prefix+"turns", h)
	add := func(scope string, cost int64) *waiter {
		t := &waiter{Place: Place{Scope: scope, Ticket: fmt.Sprintf("t%d", len(w.tasks)), cost: cost}}
		w.tasks = append(w.tasks, t)
		w.ask(t, comes, 0, 0)
		return t
	}
	add("p/a/x", 50) // all of the burst
	var dear *waiter
	for i := range 60 {
		scope := h.scopes[i%3]
		if i == 30 {
			dear = add(scope, 50)
			continue
		}
		add(scope, 1)
	}
	started := map[string]int{}
	var order []string
	for looks := 0; len(order) < 180; looks++ {
		if looks > 3000 {
			fail("only %d started", len(order))
		}
		woken := w.wake(4, 0, false)
		for _, p := range woken.Released {
			t := w.find(p)
			w.ask(t, comes, 20_000, 0)
			if t.stage != running {
				fail("%s was released and could not start", t.Ticket)
			}
			order = append(order, p.Scope)
			started[p.Scope] += int(max(1, p.cost))
			add(p.Scope, 1)
			w.sound()
		}
		// Where all cost one unit they start one each; who cost 50 lets 50 of each pass.
		if most, least := maxOf(started), minOf(started, h.scopes); most > least+1 && (dear.stage != running || most > least+50) {
			fail("they do not take turns: %v, %s", started, strings.Join(order, " "))
		}
		if len(woken.Released) == 0 {
			w.now += max(1, woken.Next.Microseconds())
		}
	}
	if dear.stage != running {
		fail("the task of cost 50 has not started")
	}
	if most, least := maxOf(started), minOf(started, h.scopes); most > least+1 {
		fail("units are not shared equally in the end: %v, %s", started, strings.Join(order, " "))
	}
	// All that started, and the units of the first, come in as much time as that
	// takes at the rate: nothing was saved in vain.
	units := int64(len(order) - 1 + 50)
	if took := w.now - epoch; took > units*10_000+50_000 {
		fail("%d units took %dµs", units, took)
	}
	return ""
}

func maxOf(m map[string]int) (most int) {
	for _, n := range m {
		most = max(most, n)
	}
	return most
}

func minOf(m map[string]int, keys []string) int {
	least := m[keys[0]]
	for _, key := range keys {
		least = min(least, m[key])
	}
	return least
}
