-- repair: rebuild the tree of a provider from its queues, after a part of it was damaged.
--
-- The queues hold the waiting tasks; everything else follows from them. A value that is no ticket, no grant or of
-- another type is dropped: its task comes back by itself. The first call begins the tree, later calls add more queues.
--
-- KEYS[1]     schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[2]     heap      sorted set of listed nodes.
-- KEYS[3]     meta      hash of nodes.
-- KEYS[4]     flight    hash of grants in flight. See include/fairshare/flight.lua, here and for the next.
-- KEYS[5]     overdue   sorted set of the same.
-- KEYS[6]     parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[7..]   queue     the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     first   1 to begin, 0 to continue.
-- ARGV[3]     rules   integer n.
-- ARGV[4..]   rule    one for each rule. See include/core/rules.lua.
-- ARGV[n+4..] path    one for each of s scopes: the numbers of its rules, as dispatch has them.
--
-- Returns  {dropped}, how many values were dropped
--
-- Writes   KEYS[1..s+6].
-- Source   docs/turns.md#what-is-damaged

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call = redis.call
local schedule, heap, meta, flight, overdue, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local provider, n, dropped = sub(schedule, 1, -10), tonumber(ARGV[3]), 0

-- #include core/numbers
-- #include fairshare/tasks
-- #include fairshare/tree

-- How many tasks of a queue are read. Tasks behind them are assumed to cost one unit each.
local LOOKED = 1000

-- Whether a key is of a type, by a command that fails at any other type. A key of another type is dropped.
local function is_sound(key, command, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then
      return error(reply.err)
    end
    call('DEL', key)
    dropped = dropped + 1
    return false
  end
  return true
end

local function is_score(score)
  local band = floor(score / BAND) + LOWEST
  return score == floor(score) and band >= 0 and band < 2 * LOWEST
end

local function begin()
  call('DEL', schedule, heap, meta, overdue)
  local all = is_sound(flight, 'HGET', '') and call('HGETALL', flight) or {}
  for f = 1, #all, 2 do
    local at = string.match(all[f + 1], '^%-?%d+ %-?%d+ (%d+) %S+')
    if at and string.find(all[f], '%z[^:]*:') then
      call('ZADD', overdue, at, all[f])
    elseif byte(all[f]) ~= 61 then
      call('HDEL', flight, all[f])
      dropped = dropped + 1
    end
  end
  if #all > 0 then
    keep_waiting(0, overdue)
  end
  local list = is_sound(parked, 'ZCARD') and call('ZRANGE', parked, '0', '9999') or {}
  for _, field in ipairs(list) do
    if not string.find(field, '^%Z*%z[^:]*:') then
      call('ZREM', parked, field)
      dropped = dropped + 1
    end
  end
end

-- The rules of a path, as far as signatures need them.
local function units_of(text)
  local path = {}
  for i in path_numbers(text) do
    path[#path + 1] = { unit = unit_of(ARGV[3 + tonumber(i)]) }
  end
  return path
end

local function stand(key, text)
  if not is_sound(key, 'ZCARD') then
    return
  end
  local leaf, list = sub(key, #provider + 1, -7) .. '/', call('ZRANGE', key, '0', whole(LOOKED - 1), 'WITHSCORES')
  local first, score
  for i = 1, #list, 2 do
    local its = tonumber(list[i + 1])
    if string.find(list[i], '^%d*:') and is_score(its) or string.find(list[i], '^[^:]+=%d+:') and is_score(its) then
      first, score = first or list[i], score or its
      tree.count(leaf, list[i], 1)
    else
      call('ZREM', key, list[i])
      dropped = dropped + 1
    end
  end
  if not first then
    return
  end
  for _, id in ipairs(tree.chain(leaf)) do
    local nd = tree.node(id)
    nd.units = nd.units + max(0, call('ZCARD', key) - LOOKED)
  end
  local _, sig = counted(units_of(text), first)
  tree.stand(leaf, sig, band_of(score))
  keep_waiting(0, key)
end

if ARGV[2] == '1' then
  begin()
end
for j = 1, #KEYS - 6 do
  stand(KEYS[6 + j], ARGV[3 + n + j])
end
if next(tree.nodes) then
  tree.save({}, {})
  keep_waiting(0, schedule, heap, meta)
end
return { dropped }
