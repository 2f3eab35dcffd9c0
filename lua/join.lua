-- join: give places to tasks before they are enqueued, many in one call.
--
-- A task with no task before it whose start would be near goes straight to asynq: it is charged and in
-- flight. All other tasks join the queues of their scopes, as if they had asked and been denied. Of many tasks only
-- a few go straight to asynq. Sent again, it leaves tasks where they are.
--
-- KEYS[1..n]  rule      state of rule i of those that apply to the scopes; n is ARGV[6]. See include/core/layout.lua.
-- KEYS[n+1]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[n+2]   heap      sorted set of listed nodes.
-- KEYS[n+3]   meta      hash of nodes.
-- KEYS[n+4]   flight    hash of grants in flight. See include/fairshare/flight.lua, here and for the next.
-- KEYS[n+5]   overdue   sorted set of the same.
-- KEYS[n+6]   upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
-- KEYS[n+7]   parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[n+8..] queue     the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     call    the id of this call.
-- ARGV[3]     lead    integer µs >= 0, how long before its start a task is granted.
-- ARGV[4]     near    integer µs >= 0, how near a start must be for its task to go straight to asynq.
-- ARGV[5]     direct  integer >= 0, how many tasks go straight to asynq at most.
-- ARGV[6]     rules   integer n.
-- ARGV[7..]   rule    one for each rule. See include/core/rules.lua.
-- ARGV[n+7..] path    one for each of s scopes: the numbers of its rules, as dispatch has them.
-- ARGV[n+s+7..] tasks three for each task: the number of its scope; its ticket; its priority, with its lane
--                     as in decide_queued.lua.
--
-- Returns  {now, look, then four for each task: placed, expected, ahead, binding}
--          now       integer µs, the clock of this call
--          look      integer µs until dispatch must be called; -1 when this call gives no reason to
--          placed    1 when the task is in its queue now, 2 when it was there before or is parked; 0 when it goes
--                    straight to asynq
--          expected  integer µs until its start is expected; -1 if unknown, 0 for a task in flight
--          ahead     how many tasks are before it in its queue; -1 when it is not in it
--          binding   the rule that it waits for, as its number in the path; 0 none or unknown, more than the path
--                    has for a pause
--
-- Writes   KEYS[1..n+5] and KEYS[n+8..n+s+7], as tasks are charged or join their queues.
-- Source   docs/turns.md#join

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call = redis.call
local n, base = tonumber(ARGV[6]), 6
local direct, id, lead, near = tonumber(ARGV[5]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local schedule, heap, meta, flight, overdue = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local upstream, parked, provider = KEYS[n + 6], KEYS[n + 7], sub(KEYS[n + 1], 1, -10)
local there = call('EXISTS', upstream, parked, parked, flight, flight, flight, flight)
local reported, parks, flies = there % 2 == 1, floor(there / 2) % 2 == 1, there >= 4

-- #include core/numbers
local stale = false
-- #include fairshare/stale when K
-- #include core/rules
-- #include core/answer
-- #include upstream/upstream
-- #include fairshare/tasks
-- #include fairshare/tree
-- #include fairshare/flight
-- #include fairshare/grants
-- #include fairshare/queues
-- #include fairshare/lanes
-- #include fairshare/expect
-- #include fairshare/enter

tree.at_once = 8
-- How long the tasks that have joined a queue wait at most, as far as is known; nil if none has joined.
local longest
local out, on_its_way = { now, -1 }, {}

-- The number in its queue's path of a rule that a task takes units of.
local function number_of(l, path, i)
  if path == l.path or i == 0 then
    return i
  end
  for number, r in ipairs(l.path) do
    if r == path[i] then
      return number
    end
  end
end

local function place(l, ticket, rank)
  local path, sig = counted(queues.path(l), ticket)
  if on_its_way[l.scope .. '\0' .. ticket] then
    return 1, 0, -1, 0
  elseif parks and call('ZSCORE', parked, l.scope .. '\0' .. ticket) then
    return 2, -1, -1, 0
  end
  local by, t
  if not held_up(l, sig, ticket) then
    local start, binding, sure = joint_start(path, now)
    local soon = sure and start - now <= near
    if soon and direct > 0 then
      direct = direct - 1
      flights.grant(l, ticket, path, start, front_place(rank, start), now) -- if it does not come, it counts as a task that comes back
      on_its_way[l.scope .. '\0' .. ticket] = true
      return 0, start - now, -1, 0
    end
    if soon then -- it waits in its own queue alone, until it would be there
      by, t = { name = l.scope, cost = 1, unit = '' }, now + near
    else
      by, t = waits_for(path, start, binding)
    end
  end
  local before, card, stood = enter(l, ticket, rank, sig, nil, by, t, lead)
  local expected, waits_by = expected_in(l, path, before, card)
  longest = max(longest or 0, expected)
  return stood and 2 or 1, expected == 0 and 1 or expected, before, number_of(l, path, waits_by)
end

local list, from = {}, #KEYS
for i = n + 8, #KEYS do
  list[#list + 1] = queues.add(KEYS[i], ARGV[i - 1])
end
queues.read()

-- Notes the tasks that are in flight.
if flies then
  local fields = {}
  for i = from, #ARGV, 3 do
    local l, ticket = list[tonumber(ARGV[i])], ARGV[i + 1]
    fields[#fields + 1] = l.scope .. '\0' .. ticket
  end
  for j, value in ipairs(values_of(flight, fields)) do
    on_its_way[fields[j]] = value
  end
end
for i = from, #ARGV, 3 do
  local placed, expected, ahead, binding = 1, -1, -1, 0
  if not stale then
    placed, expected, ahead, binding = place(list[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2])
  end
  local last = #out
  out[last + 1], out[last + 2], out[last + 3], out[last + 4] = placed, expected, ahead, binding
end
for _, r in pairs(queues.rules) do
  if r.kind == 'T' and r.dirty then
    algorithms.T.close(r, tonumber(ARGV[5]) - direct)
  end
end
flights.save()
queues.save()
if longest then
  save_entered(list, longest)
  local first = call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2]
  out[2] = first and max(0, tonumber(first) - now) or -1
end
return out
