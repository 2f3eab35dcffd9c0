-- inspect: tell where those who wait stand, changing nothing at all.
--
-- For each line that is asked for: how many stand in it, and of its first task, or
-- of one that is named, its place, the rule that binds it and its expected start.
-- What released tasks will take that have not come yet is set aside in memory.
-- It also names the lines of scopes below one, a page a call.
--
-- KEYS[1..n]  rule    state of rule i of those that the scopes meet; n is ARGV[2]. See include/layout.lua.
-- KEYS[n+1]   round   sorted set of seats. See include/turns/lines.lua, here and below.
-- KEYS[n+2]   out     hash of released tasks.
-- KEYS[n+3]   at      hash of seats by scope, and of sums.
-- KEYS[n+4]   told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+5..] line    the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     rules   integer n.
-- ARGV[3]     under   what the paths of the scopes to name begin with, "/acme/"; "" to name none.
-- ARGV[4]     after   the seat that the page before ended with; "" to begin.
-- ARGV[5]     seats   integer > 0, how many to look at.
-- ARGV[6..]   rule    one for each rule. See include/rules.lua.
-- ARGV[n+6..] path    one for each of s scopes: the numbers of its rules, as "1,3,4", or "-" for a scope
--                     of which the caller knows no rules. See include/turns/lines.lua for "1,3*2,4".
-- ARGV[n+s+6..] ticket one for each of s scopes: the task that is asked for, "" for the first.
--
-- Returns  {numbers, scopes, seat}:
--          numbers   the clock of this call in integer µs, then six for each of s scopes:
--                    waiting   how many stand in its line
--                    released  how many of it, and of scopes below it, have been released and have not come
--                    ahead     how many are before the task in its line; -1 when it does not stand there
--                    out       1 when the task has been released and has not come
--                    expected  integer µs until its start is expected; -1 can't be told
--                    binding   the rule that it waits for, as its number in the path; 0 none, one more
--                              than the path has for a pause
--          scopes    the paths of those that begin with `under` and have somebody waiting
--          seat      to go on after; "" when these were the last
--
-- Writes   nothing.
-- Source   docs/operations.md#who-waits

-- #include clock
-- #include pack
-- #include layout

local call = redis.call
local n, under, from = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local round, out_key, at, told = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4]
local heeds = call('EXISTS', told) == 1
local provider = sub(at, 1, -4)

-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include fixed_window when F
-- #include concurrency when C
-- #include calendar when K
-- #include rules
-- #include told
-- #include turns/lines
-- #include turns/expect

local rules = {}
for i = 1, n do
  local r = load_rule(i, ARGV[5 + i], 1, '', now)
  r.name, r.unit = rule_name(KEYS[i]), unit_of(ARGV[5 + i])
  r.level = string.match(r.name, '^[^:]*') .. '/'
  local sums = call('HMGET', at, 'U' .. r.name, 'N' .. r.name)
  r.units, r.lines = tonumber(sums[1] or 0), tonumber(sums[2] or 0)
  rules[i] = r
end

-- Those who are on their way, and what they will take.
local on_way, is_out = {}, {}

local function reserve(scope, ticket)
  for i = 1, n do
    local r = rules[i]
    if sub(scope, 1, #r.level) == r.level then
      r.cost = cost_of(ticket, r.unit)
      local t = r.cost > 0 and algorithms[r.kind].fit(r, now)
      if t then
        algorithms[r.kind].charge(r, now, t)
      end
    end
  end
end

local function read_released()
  local fields = call('HGETALL', out_key)
  for f = 1, #fields, 2 do
    local zero = string.find(fields[f], '\0', 1, true)
    if unpack7(fields[f + 1], 1) + STALE > now then
      local scope = sub(fields[f], 1, zero - 1) .. '/'
      on_way[#on_way + 1], is_out[fields[f]] = scope, true
      reserve(scope, sub(fields[f], zero + 1))
    end
  end
end

-- A bucket that was idle has no more than its burst to give, however long it was:
-- estimates add up from what is left of its level now.
local function settle()
  for i = 1, n do
    local r = rules[i]
    if r.kind == 'T' and r.at < now then
      r.x, r.at = max(0, r.x - (now - r.at) * r.p), now
    end
  end
end

local function released_under(scope)
  local count, level = 0, scope .. '/'
  for i = 1, #on_way do
    if sub(on_way[i], 1, #level) == level then
      count = count + 1
    end
  end
  return count
end

-- The rules of a scope, the number of the one whose round it has its seat in, and
-- how many others have their turn there before it.
local function path_of(text, scope, seat)
  local path, weights, seated, others = {}, {}, 0, 0
  local name = seat and parts_of(seat)
  for i, weight in path_numbers(text) do
    path[#path + 1], weights[#path + 1] = rules[tonumber(i)], tonumber(weight) or 0
  end
  add_pauses(path, scope)
  for i = 1, #path do
    seated = path[i].name == name and i or seated
  end
  if seated > 0 then
    local mine, first = call('ZRANK', round, seat), seat_after(name)
    others = mine and first and mine - call('ZRANK', round, first) or 0
  end
  return path, seated, others, weights
end

-- Whether a rule can never admit the cost as it is, suspended for one, and whether
-- so many places of a concurrency rule are not free now.
local function never(r)
  return not algorithms[r.kind].fit(r, now)
end

local function full(r, places)
  return r.kind == 'C' and places > r.cap - r.held
end

-- When a task is expected to start that has so many tasks of its own
-- line before it, and the rule that it waits for. Others under a rule have a turn
-- for each that the line has. A rule that it takes nothing of counts for what goes
-- before it.
local function expected(path, weights, seated, others, place, card, ticket)
  local latest, binding = now, 0
  for i = 1, #path do
    local r = path[i]
    r.cost = cost_of(ticket, r.unit)
    r.before = floor(r.mine * place / card)
    if (r.cost > 0 or r.before > 0) and never(r) then
      return -1, i
    end
  end
  if seated > 0 and full(path[seated], place + 1) then
    return -1, seated
  end
  for i = 1, #path do
    local r = path[i]
    local turns = turns_of(r.before, r.lines - 1, weights[i] or 0) + (i == seated and others * r.cost or 0)
    local t = after_units(r, now, r.before + min(max(0, r.units - r.mine), turns))
    if (r.cost > 0 or r.before > 0) and t > latest then
      latest, binding = t, i
    end
  end
  for i = 1, #path do
    if binding == 0 and full(path[i], place + 1) then
      return -1, i
    end
  end
  return latest - now, binding > 0 and binding or seated
end

local function line(j, s)
  local key, text, ticket = KEYS[n + 4 + j], ARGV[n + 5 + j], ARGV[n + s + 5 + j]
  local scope = sub(key, #provider + 1, -6)
  local card, place = call('ZCARD', key), nil
  if ticket == '' then
    ticket = call('ZRANGE', key, '0', '0')[1] or ''
    place = card > 0 and 0 or nil
  else
    place = call('ZRANK', key, ticket) or nil
  end
  local waits, binding = -1, 0
  if place and text ~= '-' then
    local path, seated, others, weights = path_of(text, scope, call('HGET', at, 'S' .. scope))
    for i = 1, #path do
      path[i].mine = tonumber(call('HGET', at, sum_of(scope, path[i].unit)) or 0)
    end
    waits, binding = expected(path, weights, seated, others, place, card, ticket)
  end
  local out = is_out[scope .. '\0' .. ticket] and 1 or 0
  return card, released_under(scope), place or -1, out, waits, binding
end

-- The scopes of a page of seats that are asked for, and the seat to go on after.
local function below()
  local scopes = {}
  if under == '' then
    return scopes, ''
  end
  local most = tonumber(ARGV[5])
  local first = from == '' and '-' or '(' .. from
  local seats = call('ZRANGEBYLEX', round, first, '+', 'LIMIT', '0', whole(most))
  for _, seat in ipairs(seats) do
    local name, _, scope = parts_of(seat)
    local waits = name == NO_RULE or string.find(name, ':', 1, true) -- or it is a place in the round of a level
    if waits and sub(scope, 1, #under) == under then
      scopes[#scopes + 1] = scope
    end
  end
  return scopes, #seats == most and seats[most] or ''
end

read_released()
settle()
local numbers, s = { now }, #KEYS - n - 4
for j = 1, s do
  local k = 6 * j - 4
  numbers[k], numbers[k + 1], numbers[k + 2], numbers[k + 3], numbers[k + 4], numbers[k + 5] = line(j, s)
end
return { numbers, below() }
