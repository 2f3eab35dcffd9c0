-- mend: drop what is damaged of what a provider's turns keep, so that all others go on.
--
-- It is sent when another script has failed at a value that no script writes, and goes
-- through everything once. A key of another type is dropped whole, of the others those
-- fields and members that a script cannot read. Seats are kept twice, in `round` and in
-- `at`, so what one of them has lost is taken from the other. A scope that has lost its
-- seat in both gets a new one where `at` has a sum of its line, or where its line is among KEYS.
-- All rounds are then looked at.
--
-- KEYS[1]     due     sorted set of rules by the time to look. See include/turns/lines.lua, here and below.
-- KEYS[2]     round   sorted set of seats.
-- KEYS[3]     out     hash of released tasks.
-- KEYS[4]     at      hash of seats by scope, and of sums.
-- KEYS[5]     told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[6]     parked  sorted set of tasks out of their lines for now. See include/wake/parked.lua.
-- KEYS[7..]   line    the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
--
-- Returns  {dropped}, how many keys, fields and members
--
-- Writes   KEYS[1..s+6].
-- Source   docs/turns.md#damaged-values

-- #include clock
-- #include pack
-- #include layout
-- #include numbers

local call = redis.call
local due, round, out_key, at, told, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local provider = sub(due, 1, -5)

-- #include turns/lines

-- How many values one command gets, since Lua can't unpack more than some thousands; and how many
-- of a line's tasks are looked at, since a line may be long: a look reads only its first.
local MANY, TASKS = 500, 1000

-- No number of ours has more digits: they are below 2^53.
local DIGITS = 16

local dropped = 0

-- Reads a key. One of another type goes, and counts as empty: the second result says so.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if not reply.err then
    return reply
  elseif not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return call(command, key, ...) -- which fails with the error that it is
  end
  call('DEL', key)
  dropped = dropped + 1
  return {}, true
end

-- Sends a command with all of a list, so many values at a time.
local function send(command, key, list)
  for i = 1, #list, MANY do
    call(command, key, unpack(list, i, min(#list, i + MANY - 1)))
  end
end

-- Drops the fields of a hash that are not sound. Returns the others, and whether the key went.
local function sound_fields(key, sound)
  local fields, went = read('HGETALL', key)
  local bad, good = {}, {}
  for i = 1, #fields, 2 do
    if sound(fields[i], fields[i + 1]) then
      good[fields[i]] = fields[i + 1]
    else
      bad[#bad + 1] = fields[i]
    end
  end
  send('HDEL', key, bad)
  dropped = dropped + #bad
  return good, went
end

-- The same for members of a sorted set, up to the last one that is looked at. No score is further
-- from 0 than `most`.
local function sound_members(key, last, most, sound)
  local members, bad, good = read('ZRANGE', key, '0', '0'), {}, {}
  if #members > 0 then
    dropped = dropped + call('ZREMRANGEBYSCORE', key, '-inf', '(' .. whole(-most))
      + call('ZREMRANGEBYSCORE', key, '(' .. whole(most), '+inf')
    members = call('ZRANGE', key, '0', last)
  end
  for i = 1, #members do
    local list = sound(members[i]) and good or bad
    list[#list + 1] = members[i]
  end
  send('ZREM', key, bad)
  dropped = dropped + #bad
  return good
end

local function is_number(text)
  return #text <= DIGITS and string.find(text, '^%d+$')
end

-- The path of a scope, or of a node.
local function is_path(path)
  return path == '' or byte(path) == 47
end

-- A ticket: what it costs, and its name.
local function is_ticket(ticket)
  local cost = string.match(ticket, '^([^:]*):')
  return cost and (string.find(cost, '=', 1, true) or cost == '' or is_number(cost))
end

-- A scope and a ticket, as members of parked and fields of out have them.
local function is_place(text)
  local zero = string.find(text, '\0', 1, true)
  return zero and is_path(sub(text, 1, zero - 1)) and is_ticket(sub(text, zero + 1))
end

local function is_rule(name)
  return name == NO_RULE or string.find(name, ':', 1, true)
end

-- A seat, the place of a scope in the round of a level, or a node.
local function is_in_round(member)
  local zero = string.find(member, '\0', 1, true)
  return zero and #member >= zero + 10 and is_path(sub(member, zero + 11)) and (is_rule(sub(member, 1, zero - 1)) or #member > zero + 10)
end

local function is_seat(scope, seat)
  if not is_in_round(seat) then
    return false
  end
  local name, _, its = parts_of(seat)
  return is_rule(name) and its == scope
end

-- T<scope>, see include/turns/shares.lua: each place that the last byte names has a tag and a level.
local function is_tags(scope, tags)
  local rest, depth = #tags % 7, 0
  local bits, _, deepest = rest == 1 and byte(tags, #tags) or 0, string.gsub(scope, '/', '')
  while bits > 0 do
    depth = depth + 1
    if bits % 2 == 1 and (depth > deepest or #tags < 7 * depth + 7) then
      return false
    end
    bits = floor(bits / 2)
  end
  return rest <= 1
end

-- Q<scope>, see include/turns/lanes.lua.
local function is_lanes(_, text)
  local from = 1
  while from <= #text do
    local zero = string.find(text, '\0', from + 7, true)
    if not zero then
      return false
    end
    from = zero + 1
  end
  return true
end

local function is_sum(_, value)
  return is_number(value)
end

-- A moment of the clock, packed.
local function is_moment(_, value)
  return #value == 7
end

-- What the fields of `at` hold, by their first letter. Any text will do for the others.
local in_at = { S = is_seat, T = is_tags, Q = is_lanes, L = is_sum, U = is_sum, N = is_sum, V = is_sum, F = is_sum,
  ['^'] = is_moment, ['#'] = is_sum, ['@'] = is_sum, ['"'] = is_sum }

local function is_in_at(field, value)
  local sound = in_at[sub(field, 1, 1)]
  return not sound or sound(sub(field, 2), value)
end

-- A released task: when, its score, its stamp, and the id of the call.
local function is_out(field, value)
  return is_place(field) and #value >= 22 and unpack7(value, 8) <= 2 * SCORES
end

-- A pause has three numbers, a correction seven or nine. See include/told.lua.
local function is_told(field, value)
  local what = sub(field, 1, 1)
  return what == 'P' and #value >= 21 or what == 'R' and (#value == 49 or #value >= 63)
    or (what == '#' or what == '@') and is_number(value)
end

sound_members(due, '-1', 2 * SCORES, is_rule)
local seats = sound_members(round, '-1', 0, is_in_round)
local held, at_went = sound_fields(at, is_in_at)
sound_fields(out_key, is_out)
sound_fields(told, is_told)
sound_members(parked, whole(TASKS - 1), SCORES, is_place)
for j = 7, #KEYS do
  sound_members(KEYS[j], whole(TASKS - 1), SCORES, is_ticket)
end

-- The seat of each scope, and what is written of `at`, `round` and `due` besides.
local seat_in, in_round, set, come, go = {}, {}, {}, {}, {}

local function set_at(field, value)
  held[field] = value
  set[#set + 1], set[#set + 2] = field, value
end

-- Takes the seats as they stand in the round, and those that it has lost as they stand in `at`.
local function seat_those_known()
  local kept = {}
  for i = 1, #seats do
    if is_rule((parts_of(seats[i]))) then
      kept[#kept + 1], in_round[seats[i]] = seats[i], true
    end
  end
  for field, value in pairs(held) do
    if byte(field) == 83 then
      seat_in[sub(field, 2)] = value
    end
  end
  for _, seat in ipairs(kept) do
    local _, _, scope = parts_of(seat)
    local its = seat_in[scope]
    if not its or not in_round[its] then
      seat_in[scope] = seat
      set_at('S' .. scope, seat)
    elseif its ~= seat then
      go[#go + 1] = seat
    end
  end
end

-- The time of a level where it is lost: no seat there is before it. And the highest of all.
local function set_times()
  local least, highest = {}, 1
  for _, seat in pairs(seat_in) do
    local name, rank = parts_of(seat)
    local _, stamp = numbers_of(rank)
    if name ~= NO_RULE then
      local level = string.match(name, '^[^:]*')
      least[level] = min(least[level] or stamp, stamp)
    end
  end
  for level, stamp in pairs(least) do
    if not held['V' .. level] then
      set_at('V' .. level, whole(max(1, stamp)))
    end
    highest = max(highest, tonumber(held['V' .. level]))
  end
  if next(least) and not held['#'] then
    set_at('#', whole(highest))
  end
end

-- Seats a scope that has no seat in either, in the round of no rule's: the first look moves it to where
-- it belongs, with the slots that it had or with new ones.
local function seat_aside(scope)
  if not seat_in[scope] then
    seat_in[scope] = seat_of(NO_RULE, rank_of(0, 1), scope)
    set_at('S' .. scope, seat_in[scope])
  end
end

-- Seats those who wait: by the sums of their lines, and by the lines of the call.
local function seat_others()
  local waiting = {}
  for field, value in pairs(held) do
    if byte(field) == 76 and tonumber(value) > 0 then
      waiting[#waiting + 1] = string.match(sub(field, 2), '^%Z*')
    end
  end
  for j = 7, #KEYS do
    waiting[#waiting + 1] = call('ZCARD', KEYS[j]) > 0 and sub(KEYS[j], #provider + 1, -6) or nil
  end
  for i = 1, #waiting do
    seat_aside(waiting[i])
  end
end

seat_those_known()
set_times()
seat_others()
local names, looks = {}, {}
for _, seat in pairs(seat_in) do
  local name = parts_of(seat)
  if not in_round[seat] then
    come[#come + 1], come[#come + 2] = '0', seat
  end
  if not names[name] then
    names[name] = true
    looks[#looks + 1], looks[#looks + 2] = whole(now), name
  end
end
if at_went and #looks > 0 then
  set_at(MIXED, '1') -- nobody knows whether it was
end
-- Members come before others go: a key that is there stays, with its TTL.
send('ZADD', round, come)
send('ZREM', round, go)
send('HSET', at, set)
for i = 1, #looks, MANY do
  call('ZADD', due, 'LT', unpack(looks, i, min(#looks, i + MANY - 1)))
end
keep_waiting(0, due, round, at)
return { dropped }
