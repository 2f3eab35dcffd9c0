-- decide_queued: decide, as decide does, for a task that can wait for a turn of its own.
--
-- A task in flight takes its grant; if that has become too late, it takes the earliest start in the grant's
-- place. Any other task goes behind the tasks that wait for the same rules, to the end of its scope's queue. If no
-- task is before it, it takes its start if that is at most `near` from now, and otherwise joins the queue
-- too. A task that is in its queue keeps its place.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 9. See include/core/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id, as decide's.
-- KEYS[n+2]   queue     sorted set of the scope's waiting tasks. See include/fairshare/tasks.lua.
-- KEYS[n+3]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[n+4]   heap      sorted set of listed nodes.
-- KEYS[n+5]   meta      hash of nodes.
-- KEYS[n+6]   flight    hash of grants in flight. See include/fairshare/flight.lua, here and for the next.
-- KEYS[n+7]   overdue   sorted set of the same.
-- KEYS[n+8]   upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
-- KEYS[n+9]   parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       priority, at most 1000000 either way, higher first; then, for a task in a lane, the
--                       lane's stride and name, as in "0:6:low"; then integers separated by a
--                       space: ahead, µs >= 0, at most 60000000, how far ahead a start may be charged for
--                       a task that was granted; near, µs >= 0, the same for one that was not; lead, µs >= 0,
--                       how long before its start a task is granted; then the path of the scope.
-- ARGV[4]     ticket    the task's name in its queue, after its cost. See include/fairshare/tasks.lua.
-- ARGV[5]     again     0; 1 for a task whose start came too late: it had its turn, and still has it; 2
--                       for a task that had its turn and is only put back before the others in its queue; 3
--                       for a task that cannot run now, and only takes its place. Then what came too late
--                       before, in the form of the prefix of decide's ask: "1L20000"; then the start that the
--                       task could not use, in integer µs since the epoch: "1L20000 1800000000000000".
-- ARGV[6]     others    the names of the scope's rules that the task takes no units of, each followed by a
--                       zero byte; before that byte, if the rule counts another unit than requests, a byte of
--                       one and the unit.
-- ARGV[7..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/core/rules.lua.
--
-- Returns  {now, then three for each rule: remaining, reset, place}, as decide; or
--          {allowed, replayed, now, wait, binding, then five for each rule, then ahead, expected, look, stood}:
--          all but the last four as decide, and
--          wait       denied: as decide; it takes no account of the tasks before it
--          ahead      how many tasks of its scope are before it; -1 when it is not in its queue
--          expected   integer µs until its turn is expected; -1 if unknown
--          look       integer µs until dispatch must be called; -1 when this call gives no reason to
--
-- Writes   KEYS[1..n+1] when allowed, KEYS[n+2..n+5] when it joins its queue or leaves it,
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

-- CLAIMABLE is how long after its start a grant may be claimed: a later claim is decided anew. If dispatch is overdue
-- by more than LATE, no process calls it.
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

-- Takes the grant of the task, unless it is too late, as a grant of this attempt.
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
  return as_probe(out, rules, g.start)
end

-- Takes the task out of its queue, if it is there: no dispatch has granted it. If the call does not know all rules
-- of the scope, the next dispatch finds the task that is first by then.
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

-- Whether dispatch is overdue: then no process calls it.
local function nobody_dispatches()
  local beat = tonumber(call('HGET', meta, '@') or nil) or 0
  local first = beat + LATE <= now and call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2]
  return first and tonumber(first) + LATE <= now
end

-- The place of a task whose turn had come: its old place, or at the front, by the start that it could not use.
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
  flights.refund(g, scope, ticket, function(name)
    return by_name[name]
  end)
  for i = 1, n do
    rules[i].cost, rules[i].member = tonumber(ARGV[base + 2 * i + 1]), member
    if rules[i].dirty and rules[i].kind ~= 'C' then
      algorithms[rules[i].kind].save(rules[i], now)
    end
  end
  if call('EXISTS', schedule) == 1 then -- a lost schedule is not begun anew: dispatch must find the loss
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
if place > 0 and expected >= 0 and ARGV[6] ~= '' then -- the first task may wait for a rule that this one takes nothing of
  expected = max(expected, (blocked_until(l) or now) + lead - now)
end
save_entered({ l }, max(0, expected))
local first = call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2] or error('the schedule is lost')
return with_turn(reply, place, expected, max(0, tonumber(first) - now), stood or was_parked)
