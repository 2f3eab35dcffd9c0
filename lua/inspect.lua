-- inspect: return where tasks wait, changing nothing at all.
--
-- For each queue that is asked for: how many tasks are in it, and for its first task, or the one that is named, its
-- place, the rule that binds it and its expected start. It also lists the queues of scopes below a level, a
-- page a call.
--
-- KEYS[1..n]  rule      state of rule i of those that apply to the scopes; n is ARGV[2]. See include/core/layout.lua.
-- KEYS[n+1]   heap      sorted set of listed nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[n+2]   meta      hash of nodes.
-- KEYS[n+3]   flight    hash of grants in flight. See include/fairshare/flight.lua.
-- KEYS[n+4]   upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
-- KEYS[n+5..] queue     the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     rules   integer n.
-- ARGV[3]     under   the beginning of the paths of the scopes to list, "/acme/"; "" to list none.
-- ARGV[4]     after   the member of heap that the page before ended with; "" to begin.
-- ARGV[5]     most    integer > 0, how many members to read.
-- ARGV[6..]   rule    one for each rule. See include/core/rules.lua.
-- ARGV[n+6..] path    one for each of s scopes: the numbers of its rules, as dispatch has them.
-- ARGV[n+s+6..] ticket one for each of s scopes: the task that is asked for, "" for the first, "-" for the last.
-- ARGV[n+2s+6..] from  one for each of s scopes: until when the limits pause it, in integer µs since the epoch, 0 for no
--                     pause. Its path is without that pause.
--
-- Returns  {numbers, scopes, after, places}:
--          numbers   the clock of this call in integer µs, then six for each of s scopes:
--                    waiting   how many tasks are in its queue
--                    released  how many tasks of it, and of scopes below it, are in flight
--                    ahead     how many tasks are before the task in its queue; -1 when it is not in it
--                    out       1 when the task is in flight
--                    expected  integer µs until its start is expected; -1 if unknown
--                    binding   the rule that it waits for, as its number in the path; 0 none, one more
--                              than the path has for a pause
--          scopes    the paths of those that begin with `under` and have waiting tasks
--          after     the member to continue after; "" when these were the last
--          places    for each of s scopes a list, with two numbers for each of its concurrency rules: how many tasks
--                    take a place up to and including the task, and how many runs hold one; it may be shorter, if the
--                    start is unknown
--
-- Writes   nothing.
-- Source   docs/operations.md#who-waits

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call = redis.call
local n, base, under, from = tonumber(ARGV[2]), 5, ARGV[3], ARGV[4]
local heap, meta, flight, upstream = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4]
local reported, schedule = call('EXISTS', upstream) == 1, nil
local provider = sub(heap, 1, -6)

-- #include core/numbers
-- #include core/rules
-- #include upstream/upstream
-- #include fairshare/tasks
-- #include fairshare/tree
-- #include fairshare/queues
-- #include fairshare/expect

-- How many tasks are in flight at each level and below it, without those that are overdue.
local STALE = 3000000
local flying = {}
do
  local all = call('HGETALL', flight)
  for f = 1, #all, 2 do
    local at, scope = string.match(all[f + 1], '^%S+ %S+ (%d+)'), string.match(all[f], '^%Z*')
    local counts = byte(all[f]) ~= 61 and at and tonumber(at) + STALE > now
    for ends in string.gmatch(counts and scope .. '/' or '', '()/') do
      local level = sub(scope, 1, ends - 1)
      flying[level] = (flying[level] or 0) + 1
    end
  end
end

-- How many children of a level have their turn before the child that contains a leaf.
local function before_at(level, leaf, sig)
  local key, at = level .. '\0' .. sig .. '\0', 0
  local slash = string.find(leaf, '/', #level + 2, true)
  local child = slash and sub(leaf, 1, slash - 1) or leaf
  for _, member in ipairs(tree.members(key, 1000)) do
    if sub(member, #key + 24) == child then
      return at
    end
    at = at + 1
  end
  return 0
end

local function queue(j, s)
  local l, ticket = queues.add(KEYS[n + 4 + j], ARGV[n + 5 + j]), ARGV[n + s + 5 + j]
  local card, place = call('ZCARD', l.key), nil
  if ticket == '' or ticket == '-' then
    place = card > 0 and (ticket == '' and 0 or card - 1) or nil
    ticket = place and call('ZRANGE', l.key, whole(place), whole(place))[1] or ''
  else
    place = call('ZRANK', l.key, ticket) or nil
  end
  local waits, binding, places = -1, 0, {}
  if place and not l.unknown then
    local path = queues.path(l)
    local _, sig = counted(path, ticket)
    waits, binding = expected_in(l, path, place, card, function(level)
      return before_at(level, l.leaf, sig)
    end, places, tonumber(ARGV[n + 2 * s + 5 + j]))
  end
  local out = call('HEXISTS', flight, l.scope .. '\0' .. ticket)
  return card, flying[l.scope] or 0, place or -1, out, waits, binding, places
end

-- The scopes that are asked for in a page of the heap, and the member to continue after.
local function below()
  local scopes = {}
  if under == '' then
    return scopes, ''
  end
  local most = tonumber(ARGV[5])
  local members = call('ZRANGEBYLEX', heap, from == '' and '-' or '(' .. from, '+', 'LIMIT', '0', whole(most))
  for _, member in ipairs(members) do
    local sig, node = string.match(member, '^%Z*%z(%Z*)%z(%Z*)$')
    node = sub(node, 24)
    if sig ~= '!' and sub(node, -1) == '/' and sub(node, 1, #under) == under then
      scopes[#scopes + 1] = sub(node, 1, -2)
    end
  end
  return scopes, #members == most and members[most] or ''
end

-- An idle bucket holds no more than its burst, however long it was idle: estimates add to what is left of its level
-- now.
for i = 1, n do
  local r = queues.rule(i)
  if r.kind == 'T' and r.at < now then
    r.x, r.at = max(0, r.x - (now - r.at) * r.p), now
  end
end
local numbers, places, s = { now }, {}, #KEYS - n - 4
for j = 1, s do
  local k = 6 * j - 4
  numbers[k], numbers[k + 1], numbers[k + 2], numbers[k + 3], numbers[k + 4], numbers[k + 5], places[j] = queue(j, s)
end
local scopes, after = below()
return { numbers, scopes, after, places }
