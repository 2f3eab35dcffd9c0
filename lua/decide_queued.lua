-- decide_queued: decide, as decide does, for a task that can wait for a turn of its own.
--
-- One that is in flight takes what it was granted, or, where that is too late by now, the earliest start in
-- its place. Any other goes behind those that wait for what it takes too, to the end of its scope's queue, and
-- one that nobody is before takes its start where that is at most `near` from now, or goes to the
-- queue too. A task that stands in its queue keeps its place.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 9. See include/core/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id, as decide's.
-- KEYS[n+2]   queue     sorted set of the scope's waiting tasks. See include/fairshare/tasks.lua.
-- KEYS[n+3]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[n+4]   heap      sorted set of listed nodes.
-- KEYS[n+5]   meta      hash of nodes.
-- KEYS[n+6]   flight    hash of what was granted. See include/fairshare/flight.lua, here and for the next.
-- KEYS[n+7]   overdue   sorted set of the same.
-- KEYS[n+8]   upstream  hash, what the API has told of its limits. See include/upstream/upstream.lua.
-- KEYS[n+9]   parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       priority, at most 1000000 either way, of which higher goes first, and behind it, as
--                       "0:6:low", the stride and the name of a lane for a task that has one; then integers with
--                       a space between: ahead, µs >= 0, at most 60000000, how far ahead a start may be charged for
--                       a task that was granted; near, µs >= 0, the same for one that was not; lead, µs >= 0,
--                       how long before its start a task is granted; then the path of the scope.
-- ARGV[4]     ticket    the task's name in its queue, its cost before it. See include/fairshare/tasks.lua.
-- ARGV[5]     again     0; 1 for a task whose start came too late: it had its turn, and has it still; 2
--                       for one that had its turn and shall only be put back before those in its queue; 3
--                       for one that cannot run now, and only takes its place. What was too late before may follow,
--                       as before decide's ask: "1L20000"; and behind that the start that it could not use,
--                       in integer µs since the epoch: "1L20000 1800000000000000".
-- ARGV[6]     others    the names of the scope's other rules, which it takes nothing of, each with a
--                       zero byte after it, and with a byte of one and its unit before that where it
--                       counts none of requests.
-- ARGV[7..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/core/rules.lua.
--
-- Returns  {now, then three for each rule: remaining, reset, place}, as decide; or
--          {allowed, replayed, now, wait, binding, then five for each rule, then ahead, expected, look, stood}:
--          all but the last four as decide, and
--          wait       denied: as decide; it says nothing of those who are before
--          ahead      how many of its scope are before it; -1 when it does not stand in its queue
--          expected   integer µs until its turn is expected; -1 can't be told
--          look       integer µs until dispatch must be called; -1 when this is no reason to
--
-- Writes   KEYS[1..n+1] when allowed, KEYS[n+2..n+5] when it comes to its queue or leaves it,
--          KEYS[n+6..n+7] when it was in flight, KEYS[n+9] when it had been parked.
-- Source   docs/turns.md#decide

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call, format = redis.call, string.format
local member, ticket, again = ARGV[2], ARGV[4], sub(ARGV[5], 1, 1)
local n, base = #KEYS - 9, 5
local attempt, schedule, heap, meta = KEYS[n + 1], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local flight, overdue, upstream, parked = KEYS[n + 6], KEYS[n + 7], KEYS[n + 8], KEYS[n + 9]
local provider = sub(schedule, 1, -10)
local scope = sub(KEYS[n + 2], #provider + 1, -7)
local late = string.match(ARGV[5], '^.([LF]%d+)')

-- #include fairshare/stale_reply when K

local field = scope .. '\0' .. ticket
local value = call('HGET', flight, field)
local there = call('EXISTS', upstream, parked, parked)
local reported, parks, quiet = there % 2 == 1, there >= 2, true
do
  local names = {}
  for ends in string.gmatch(scope .. '/', '()/') do
    names[#names + 1] = 'n' .. sub(scope, 1, ends - 1)
  end
  for _, v in ipairs(call('HMGET', meta, unpack(names))) do
    quiet = quiet and not (v and string.find(v, '\n', 1, true))
  end
end
-- #include fastpath/upstream
local was_parked = parks and call('ZSCORE', parked, field)

if quiet and not value and not reported and not late and not was_parked and again < '2' then
  -- #include fastpath/decide
end

-- The general way.

local rank, ahead, near, lead = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+)')
ahead, near, lead = tonumber(ahead), tonumber(near), tonumber(lead)

-- #include core/numbers
-- #include core/rules
-- #include core/answer
-- #include upstream/upstream
-- #include core/grant
-- #include fairshare/tasks
-- #include fairshare/tree
-- #include fairshare/flight
-- #include fairshare/lanes
-- #include fairshare/expect
-- #include fairshare/enter

-- A grant may be claimed so much later than its start: what is later is decided anew. A dispatch that is later than
-- LATE has nobody to make it.
local CLAIMABLE, LATE = 2000, 1000000

tree.at_once = 2
local rules, by_name = read_rules(), {}
for i = 1, #rules do
  local r = rules[i]
  r.name, r.unit = r.name or sub(KEYS[i], #provider + 1), r.unit or unit_of(ARGV[base + 2 * i])
  by_name[r.name] = r
end
local l = { key = KEYS[n + 2], scope = scope, leaf = scope .. '/' }
local units = {}
for i = 1, #rules do
  units[rules[i].unit] = true
end
local sig = ARGV[6] == '' and '' or signature(units)

-- Adds the four numbers of a turn to a general reply.
local function with_turn(reply, place, expected, look, stood)
  local last = #reply
  reply[last + 1], reply[last + 2], reply[last + 3], reply[last + 4] = place, expected, look, stood and 1 or 0
  return reply
end

-- Takes what the task was granted, if it is not too late: as its own attempt's.
local function claim(g)
  if g.start + CLAIMABLE < now or g.many ~= n then
    return nil
  end
  local out, record = { 1, 0, now, g.start - now, 0 }, pack(g.start)
  for i = 1, n do
    local place = g.places[rules[i].name]
    if not place then
      return nil
    end
    record = record .. pack(place)
    report(out, i, rules[i], now, 0, place)
  end
  call('SET', attempt, record .. member, 'PX', '30000')
  for i = 1, n do
    local ends = rules[i].kind == 'C' and call('ZSCORE', KEYS[i], g.id)
    if ends then
      call('ZADD', KEYS[i], ends, member)
      call('ZREM', KEYS[i], g.id)
    end
  end
  return out
end

-- Takes the task out of its queue, if it stands there: nobody has dispatched it. Where the call does not know all
-- rules of the scope, the next dispatch sees who is first by then.
local function leave()
  if call('ZREM', l.key, ticket) == 0 then
    return
  end
  tree.count(l.leaf, ticket, -1)
  tree.turn(l.leaf, {}, {})
  tree.look_above(l.leaf)
  local first = call('ZRANGE', l.key, '0', '0', 'WITHSCORES')
  if not first[1] then
    tree.stand(l.leaf)
    return tree.save({}, { 'Q' .. scope })
  elseif ARGV[6] == '' then
    local _, its = counted(rules, first[1])
    tree.stand(l.leaf, its, band_of(tonumber(first[2])))
  end
  tree.save({}, {})
end

-- Whether dispatches are late: then there is nobody who makes them.
local function nobody_dispatches()
  local beat = tonumber(call('HGET', meta, '@') or nil) or 0
  local first = beat + LATE <= now and call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2]
  return first and tonumber(first) + LATE <= now
end

-- Where one goes whose turn had come: back to its place, or to the front by the start that it could not use.
local function own_place(g)
  local start = string.match(ARGV[5], ' (%d+)')
  return g and g.score or front_place(rank, start and tonumber(start) or now)
end

local before = call('GET', attempt)
if before and sub(before, -#member) ~= member then
  before = nil
end
if before and #before == 7 * (n + 1) + #member then
  if value then
    flights.forget(field)
  end
  return with_turn(granted_before(rules, before), -1, 0, -1)
end

local g = value and flights.read(value)
if g then
  local reply = again == '0' and not before and claim(g)
  flights.forget(field)
  if reply then
    return with_turn(reply, -1, 0, -1)
  end
  flights.refund(g, ticket, function(name)
    return by_name[name]
  end)
  for i = 1, n do
    rules[i].cost, rules[i].member = tonumber(ARGV[base + 2 * i + 1]), member
    if rules[i].dirty and rules[i].kind ~= 'C' then
      algorithms[rules[i].kind].save(rules[i], now)
    end
  end
  if call('EXISTS', schedule) == 1 then -- one that is lost is not begun anew: dispatch is to see that
    tree.write_times()
  end
end
local mine = g or again == '1' or again == '2'
local held = was_parked or not mine and held_up(l, sig, ticket) and not nobody_dispatches()
if held and not was_parked and call('ZRANK', l.key, ticket) == 0 and is_next(l, sig) then
  held = false -- it is its turn
end
local start, binding, sure = joint_start(rules, now + from)
if sure and not held and start - now <= (mine and ahead or near) and again < '2' then
  local reply = grant(rules, start, binding)
  if reply then
    leave()
    return with_turn(reply, -1, 0, quiet and -1 or 0)
  end
  rules = read_rules()
end
if from > 0 then
  start, binding = joint_start(rules, now)
end
mend(rules)
local reply = denied(rules, now, start, held and 1 or binding)
if before then
  return with_turn(reply, -1, -1, g and 0 or -1)
end

local by, t = nil, nil
if not held then
  by, t = waits_for(rules, start, binding)
end
local score = was_parked and tonumber(was_parked) or mine and own_place(g) or nil
local place, card, stood = enter(l, ticket, rank, sig, score, by, t, lead)
if was_parked then
  call('ZREM', parked, field)
end
local expected = expected_in(l, rules, place, card)
if place > 0 and expected >= 0 and ARGV[6] ~= '' then -- the first may wait for what this one does not
  expected = max(expected, (blocked_until(l) or now) + lead - now)
end
save_entered({ l }, max(0, expected))
local first = call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2] or error('the schedule is lost')
return with_turn(reply, place, expected, max(0, tonumber(first) - now), stood or was_parked)
