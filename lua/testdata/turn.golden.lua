-- turn: decide, as decide does, for a task that can wait for a turn of its own.
--
-- A task that was released takes the earliest start. Any other goes behind those
-- that wait for one of its rules, to the end of its scope's line, and one that
-- nobody is before takes its start where that is at most `ahead` from now, or
-- goes to the line too. A task that has been standing in line keeps its place.
-- Nothing is charged but at a start. Where looks at the rounds are late, nobody is
-- there to wake, and tasks start when their units are free, whoever comes.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 8. See include/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id, as decide's.
-- KEYS[n+2]   line      sorted set of the scope's waiting tasks. See include/turns/lines.lua, here and
--                       for the next five, which the provider has one of each.
-- KEYS[n+3]   due       sorted set of rules by the time to look at their rounds.
-- KEYS[n+4]   round     sorted set of seats.
-- KEYS[n+5]   out       hash of released tasks.
-- KEYS[n+6]   at        hash of seats by scope, and of sums.
-- KEYS[n+7]   told      hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+8]   parked    sorted set of tasks out of their lines for now. See include/wake/parked.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       integers with a space between: priority, at most 1000000 either way, of which higher
--                       goes first, and behind it, as "0:6:low", the stride and the name of a lane for a
--                       task that has one; ahead, µs >= 0, at most 60000000, how far ahead a start may be charged for
--                       a task that was released; near, µs >= 0, the same for one that was not; lead, µs >= 0,
--                       how long before its start a task is released. Then the levels of the scope that have
--                       rules, as how many names below the provider, each with the weight that its name has
--                       there where one is said: "0 10000 0 5000 0,1*2.5".
-- ARGV[4]     ticket    the task's name in line, its cost before it: "50:name", or ":name" for 1, or
--                       by unit "requests=1,tokens=1500:name".
-- ARGV[5]     again     0; 1 for a task whose start came too late: it had its turn, and has it still; 2
--                       for one that had its turn and shall only be put back before those in its line; 3
--                       for one that cannot run now, and only takes its place in line, whatever its limits would admit.
--                       What was too late before may follow, as before decide's ask: "1L20000"; and behind
--                       that the start that it could not use, where it is known, in integer µs since the
--                       epoch: "1L20000 1800000000000000".
-- ARGV[6]     others    the names of the scope's other rules, which it takes nothing of, each with a
--                       zero byte after it, and with a byte of one and its unit before that where it
--                       counts none of requests.
-- ARGV[7..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/rules.lua.
--
-- Returns  {now, then three for each rule: remaining, reset, place}, as decide;
--          {now, then three for each rule, then look}: the same where others may wait; or
--          {allowed, replayed, now, wait, binding, then five for each rule, then ahead, expected, look}:
--          all but the last three as decide, and
--          wait       denied: as decide; it says nothing of those who are before
--          ahead      how many of its scope are before it; -1 when it does not stand in line
--          expected   integer µs until its turn is expected; -1 can't be told
--          look       integer µs until the provider's rounds must be looked at for it; -1 when
--                     they need not for this one, and allowed: 0 when others wait, or may
--
-- Writes   KEYS[1..n+1] when allowed, KEYS[n+2..n+4] and KEYS[n+6] when it joins or leaves the line,
--          KEYS[n+5] when it had been released, under several rules or at more than one unit the times
--          to look with it, KEYS[n+8] when it had been parked.
-- Source   docs/turns.md#the-decision

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may hand in a number instead; production hands in "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes. Plain arithmetic: not every
-- server has a struct library, and "%" is an instruction where math.floor is a
-- call.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

local function pack(n)
  local low = n % 16777216
  local high = (n - low) / 16777216
  local g, d = low % 256, high % 256
  low, high = (low - g) / 256, (high - d) / 256
  local f, c = low % 256, high % 256
  high = (high - c) / 256
  local b = high % 256
  return char((high - b) / 256, b, c, d, (low - f) / 256, f, g)
end
-- A rate rule's state is one string whose first byte names its layout, so that
-- a rule whose algorithm has changed still finds what was spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window
--   F till last count prior before since ahead          fixed window
--   K till last from count prior before carry since next was   calendar
-- All are numbers of seven bytes, but for the log, and for `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail, last) was ahead of the clock
-- when the state was written. What is further ahead now was written by a clock that has since stepped
-- back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, HELD, CALENDAR = 84, 83, 70, 67, 75

-- The first byte of the record of an attempt that was given back: no start has it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since, as a number and packed.
local UNTOUCHED, NEVER = 9007199254740991, '\31\255\255\255\255\255\255'

-- To set a TTL costs as much as a write. So one is set for LONGER than the state
-- means anything, and kept while it is no less than LEAST and no more than MOST.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

local call, format = redis.call, string.format
local member, COLON = ARGV[2], 58
local n, base = #KEYS - 8, 5
local attempt, line = KEYS[n + 1], KEYS[n + 2]
local due, round, out_key, at, told = KEYS[n + 3], KEYS[n + 4], KEYS[n + 5], KEYS[n + 6], KEYS[n + 7]
local parked = KEYS[n + 8]
local ticket, provider = ARGV[4], sub(due, 1, -5)
local scope = sub(line, #provider + 1, -6)
-- A calendar rule whose boundaries the clock is not between is stale. By it nothing is
-- decided, and nobody loses a turn or a place: the caller asks again with others.
do
  local function moment_at(text, i)
    local a, b, c, d, e, f, g = byte(text, i, i + 6)
    return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
  end
  for i = 1, n do
    local rule = ARGV[base + 2 * i]
    if sub(rule, 1, 1) == 'K' and (now < moment_at(rule, 9) or now >= moment_at(rule, 16)) then
      local out = { 0, 0, now, 10000, i }
      for j = 6, 5 * n + 5 do
        out[j] = 0
      end
      out[5 * i + 1], out[5 * i + 3] = 1, 10000
      out[5 * n + 6], out[5 * n + 7], out[5 * n + 8] = -1, -1, -1
      return out
    end
  end
end

-- Whether the API has told anything; whether nobody waits; whether it is this task's turn; and the
-- place that it has if it was parked.
local there = call('EXISTS', due, out_key, told, told, told, parked, parked, parked, parked, parked, parked)
local heeds, quiet, released = there % 6 >= 3, there % 3 == 0, false -- a key counts as often as it is named
local had_place = there >= 6 and tonumber(call('ZSCORE', parked, scope .. '\0' .. ticket) or nil)
-- The field of one that was released, and what it says. It goes when the task has its start or
-- its place in line, not before, and so does what was parked: a server that refuses a command
-- half-way leaves it its turn.
local on_way = not quiet and scope .. '\0' .. ticket
local was_out = on_way and call('HGET', out_key, on_way)
on_way = was_out and on_way or nil
if was_out then
  released = true
  -- Those who were released together may come in another order, and take each other's
  -- starts. Under one rule that is the same to everybody else, if each costs one unit.
  if n > 1 or byte(ticket) ~= COLON then
    local looks = {}
    for i = 1, n do
      looks[2 * i - 1], looks[2 * i] = format('%.0f', now), sub(KEYS[i], #provider + 1)
    end
    call('ZADD', due, 'XX', 'LT', unpack(looks))
  end
end

local again, late = string.match(ARGV[5], '^(%d)([LF]?%d*)')
late = late ~= '' and late or nil
local mine = released or again == '1' or again == '2'

-- One who was parked goes back to its line once: others of its scope may be parked who are before it.
local parked_before = had_place and not mine

-- One that a bucket paces mostly comes before its start, which the express way has not.
local at_once = released and byte(ARGV[base + 2]) ~= TOKEN
if (quiet or at_once) and not heeds and not late and again < '2' and not had_place then
  local look = not quiet and 0 or nil
-- The express way, which most calls go: every rule has been used lately under the
-- limits of this call, admits its cost now, and its key lives long enough. One
-- straight line without a function, since to make one costs as much as to add up a
-- rule. Whatever is different leaves it before anything is written, for the
-- general way below, which answers the same: a test runs both. It needs call, format,
-- member, attempt, n, base; look, a last number for the reply, or nil; and on_way, the field
-- in out_key of a task that was released, or nil.
local out, states, moment, passed = { now, 0, 0, 0 }, {}, pack(now), 0
local record = moment
for i = 1, n do
  local key, rule, cost = KEYS[i], ARGV[base + 2 * i], ARGV[base + 2 * i + 1]
  cost = cost == '1' and 1 or tonumber(cost)
  local algorithm, b, c, d, e, f, g, h = byte(rule, 1, 8)
  local one = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 9, 15)
  local two = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 16, 22)
  local three = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 23, 29)
  local four = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  if sub(rule, 1, 1) == 'K' then
    break -- for the general way
  end
  local place, stamp, holds, state, remaining, reset, spare = now, moment, nil, nil, nil, nil, nil
  if algorithm == TOKEN then
    local v, unit = call('GET', key), sub(rule, 9, 15)
    local p, q, cap, slack = one, two, three, four
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= TOKEN or sub(v, 23, 29) ~= unit then
      break -- never used, or its unit had other parts
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 9, 15)
    local last = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local level = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h - (now - last) * p
    if p == 0 or cost > cap or last - now >= 250000 or level + slack * p + (cost - cap) * q > 0 then
      break
    end
    if level < 0 then
      level = 0
    end
    if last >= now then
      place = last + 1
      stamp = pack(place)
    end
    local since, low, notches = stamp, NEVER, last >= now and '\1' or '\0'
    if level >= q then
      b, c, d, e, f, g, h = byte(v, 37, 43)
      local least = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
      since, low = sub(v, 30, 36), level < least and pack(level) or sub(v, 37, 43)
    end
    level = level + cost * q
    local x = level - (place - now) * p
    if x < 0 then
      x, level = 0, (place - now) * p
    end
    holds = pack(x)
    state = sub(v, 1, 8) .. stamp .. holds .. unit .. since .. low .. notches
    spare = till - now - level / p - slack
    remaining, reset = floor((cap * q - level - slack * p) / q), ceil(level / p + slack)
    if remaining < 0 then
      remaining = 0
    end
  elseif algorithm == SLIDING then
    local v, unit = call('GET', key), sub(rule, 16, 22)
    local cap, per, grain = one, two, three
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= SLIDING or sub(v, 9, 15) ~= unit then
      break -- never used, or in cells of another grain
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local total = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 23, 29)
    local head = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 37, 43)
    local tail = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 44, 50)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local cell, gone = ceil(now / grain), floor((now - per) / grain)
    if cost > cap or tail > cell or count == 0 then
      break
    end
    local from, size = 52, #v
    while head <= gone and from <= size do
      local units, digit, n = 0, 1, byte(v, from)
      while n >= 128 do
        units, digit, from = units + (n - 128) * digit, digit * 128, from + 1
        n = byte(v, from)
      end
      total, from = total - units - n * digit, from + 1
      if from > size then
        head = 0
        break
      end
      digit, n = 1, byte(v, from)
      while n >= 128 do
        head, digit, from = head + (n - 128) * digit, digit * 128, from + 1
        n = byte(v, from)
      end
      head, from = head + n * digit, from + 1
    end
    total = total + cost
    if total > cap and tail > gone then
      break
    end
    local log = sub(v, from)
    if tail <= gone then
      total, log = cost, pack(0)
    end
    holds = pack(total)
    if tail <= gone then
      state = sub(v, 1, 15) .. holds .. log .. log .. pack(cell) .. pack(cost) .. '\0'
    elseif cell == tail then
      state = sub(v, 1, 15) .. holds .. pack(head) .. sub(v, 30, 43) .. pack(count + cost) .. '\0' .. log
    else
      b, c, d, e, f, g, h = byte(v, 30, 36)
      local first, steps = log == '', tail - ((((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h)
      if first then
        head = tail
      else
        while steps >= 128 do
          local n = steps % 128
          log, steps = log .. char(128 + n), (steps - n) / 128
        end
        log = log .. char(steps)
      end
      while count >= 128 do
        local n = count % 128
        log, count = log .. char(128 + n), (count - n) / 128
      end
      state = sub(v, 1, 15) .. holds .. pack(head) .. sub(v, 37, 43) .. pack(cell) .. pack(cost) .. '\0'
        .. log .. char(count)
    end
    place = cell * grain
    stamp = pack(place)
    spare = till - place - per
    remaining, reset = cap - total, place + per - now
  elseif algorithm == FIXED then
    local v = call('GET', key)
    local cap, per, slack = one, two, three
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= FIXED then
      break
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 9, 15)
    local last = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 23, 29)
    local prior = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local window, rest = now - now % per, per - now % per
    if last < window or last >= window + per or prior >= window or rest <= slack
      or count + cost > cap then
      break
    end
    count = count + cost
    local latest, notches = stamp, '\0'
    if last > now then
      local ahead = ceil((last - now) / 250000)
      latest, notches = sub(v, 9, 15), char(ahead < 255 and ahead or 255)
    end
    holds = pack(count)
    state = sub(v, 1, 8) .. latest .. holds .. sub(v, 23, 43) .. notches
    spare = till - now - rest
    remaining, reset = cap - count, rest
  else
    local cap, lease = one, two
    local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
    local held = call('ZCOUNT', key, from, to)
    if held >= cap then
      break
    end
    local ends = now + lease
    local last = held > 0 and tonumber(call('ZREVRANGEBYSCORE', key, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
    place, stamp = 0, pack(0)
    remaining, reset = cap - held - 1, (ends > last and ends or last) - now
    state, spare = format('%.0f', ends), LEAST
  end
  if spare < LEAST or spare > MOST then
    break
  end
  local at = 3 * i
  out[at - 1], out[at], out[at + 1] = remaining, reset, place
  states[i], record, passed = state, record .. stamp, i
end
if passed == n then
  -- The record goes first: it is what makes the call repeatable.
  local before = call('SET', attempt, record .. member, 'PX', '30000', 'GET')
  if not before or sub(before, -#member) ~= member then
    for i = 1, n do
      if byte(ARGV[base + 2 * i], 1) ~= HELD then
        call('SET', KEYS[i], states[i], 'KEEPTTL')
      else
        call('ZREMRANGEBYSCORE', KEYS[i], '-inf', format('%.0f', now))
        if call('ZADD', KEYS[i], states[i], member) == 0 then
          local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
          out[3 * i] = call('ZREVRANGEBYSCORE', KEYS[i], to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2] - now
        end
        local ttl = ceil((states[i] - now) / 1000) + 1000
        if call('PTTL', KEYS[i]) < ttl then
          call('PEXPIRE', KEYS[i], format('%.0f', ttl))
        end
      end
    end
    if on_way then
      call('HDEL', out_key, on_way)
    end
    out[3 * n + 2] = look
    return out
  end
  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
end
end

-- The general way.

local rank, ahead, near, lead, ranks = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+) (.*)$')
ahead, lead = tonumber(mine and ahead or near), tonumber(lead)
local left_out = ARGV[6]

-- Numbers on their way out of and into Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Numbers leave as text through this alone: %.0f keeps every digit.
local function whole(n)
  return string.format('%.0f', n)
end

-- The TTL, in ms, of a key whose meaning ends us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- Writes r's state, which means nothing any more lasts µs from now.
local function write(r, now, kind, state, lasts)
  lasts = ceil(lasts)
  local spare = r.till - now - lasts
  if spare >= LEAST and spare <= MOST then
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'KEEPTTL')
  else
    redis.call('SET', r.key, char(kind) .. pack(now + lasts + LONGER) .. state, 'PX', outlast(lasts + LONGER))
  end
end

-- How far the latest start of a state is ahead of the clock, and what that tells of steps of the
-- clock. It is one table, since locals are few.
local stored = { known = {} }

-- The state of a rule: a call that needs many reads them at once.
function stored.get(key)
  local v = stored.known[key]
  if v == nil then
    return redis.call('GET', key)
  end
  return v
end

-- The byte of the state.
function stored.ahead(now, latest)
  return char(min(255, max(0, ceil((latest - now) / 250000))))
end

-- By how many µs the clock has stepped back since the state was written, at least; 0 for less than
-- a second, or than `least`, which is waited for. With so much taken off, all its times are no earlier
-- against the clock than they are in truth, and no later than when it was written.
function stored.stepped(now, latest, notches, least)
  local back = latest - notches * 250000 - now
  return back > max(1000000, least or 0) and back or 0
end

-- What a state of another algorithm still holds against the rule: times and units by
-- turns, oldest first. Of a bucket, which knows no times, it is the level as of its last
-- decision: all that its rate has not let go.
function stored.carried(v)
  local kind = byte(v, 1)
  if kind == TOKEN then
    local at = unpack7(v, 9)
    return { at - stored.stepped(now, at, byte(v, 44)), ceil(unpack7(v, 16) / unpack7(v, 23)) }
  elseif kind == FIXED then
    return { unpack7(v, 23), unpack7(v, 30), unpack7(v, 9), unpack7(v, 16) }
  elseif kind == CALENDAR then
    return { unpack7(v, 30), unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }
  end
  local out, grain, cell, i = {}, unpack7(v, 9), unpack7(v, 23), 52
  local tail = unpack7(v, 37)
  local back = floor(stored.stepped(now, (tail - 1) * grain, byte(v, 51)) / grain)
  local function unvarint()
    local n, digit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(v, i)
    end
    i = i + 1
    return n + b * digit
  end
  while i <= #v do
    cell = i > 52 and cell + unvarint() or cell
    out[#out + 1], out[#out + 2] = (cell - back) * grain, unvarint()
  end
  out[#out + 1], out[#out + 2] = (tail - back) * grain, unpack7(v, 44)
  return out
end

-- The algorithms, by kind; those that a call has no rule of are left out of its
-- script, since making functions is what a short script spends most on. Each has
--   load(key, now, cost, a, b, c, d, member)  the rule as it stands; healed where
--                         that is no longer what is stored, and stepped where the clock has
--                         stepped back since: it must be stored, or each look would find the
--                         state as new as the first one did
--   fit(r, t)             the first moment from t on at which it admits the cost, and
--                         true where it may be later; nil can't tell
--   charge(r, now, start) takes the cost at start, in r only; returns its place
--   refund(r, now, place) takes it back, in r only; returns the units that came
--                         back, and says in r.changed whether anything did
--   save(r, now, start)   writes r
--   remaining(r, now)     units left
--   reset(r, now)         µs until it is as if unused; -1 can't tell
--   lasts(r, now)         µs until the state means nothing any more
-- Concurrency keeps no state but its places: it refunds at once and has no lasts.
local algorithms = {}
-- Keeps the key at least until its meaning ends, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
-- token-bucket: at most cap + p/q * t units start in any interval of t µs, and
-- arrive so when they are up to slack µs apart in how late they are.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains p parts a µs. x stands at
-- the decision `at`, which never repeats, so that it also names the grant. `low`
-- is the least level that any charge after `since` met: nothing granted since
-- then can have been refilled below it, so a refund up to `low` is exact.
do
  -- What a level may come to when a limit changes: sums must stay exact.
  local MOST_PARTS = 4503599627370496

  -- So many µs, at the most, a bucket waits for a clock that has stepped back.
  local TO_AND_FRO = 10000000

  -- The level at t, below zero where the bucket has been full for a while.
  local function level(r, t)
    return r.x - (t - r.at) * r.p
  end

  -- x parts, of which q are a unit, in parts of this rule's own unit.
  local function convert(r, x, q, round)
    local rest = x % q
    return min(MOST_PARTS, (x - rest) / q * r.q + round(rest / q * r.q))
  end

  -- Lets go what a limit that was changed makes of the level beyond full: a bucket that
  -- was lowered would be waited for for as long as it takes to drain that at its new
  -- rate. What is granted ahead is left on top. What an API makes of the rate forgets
  -- nothing, debts of another burst neither: `whole` is the rate without that.
  local function clip(r, whole)
    local most = (whole and 2 or 1) * r.cap * r.q + FAR_AHEAD * max(r.p, whole or 0)
    if r.p > 0 and r.x > most then
      r.x, r.since, r.low = most, r.at + 1, 0
    end
  end

  local function load(key, now, cost, p, q, cap, slack, _, whole)
    local r = { kind = 'T', key = key, cost = cost, p = p, q = q, cap = cap, slack = slack,
      at = now - slack - 1, x = 0, since = now, low = UNTOUCHED, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= TOKEN then
      -- What the bucket would hold, had it been there: no more than that is spent.
      local units = stored.carried(v)
      r.at, r.low, r.healed = min(units[1], now), 0, true
      for i = 1, #units, 2 do
        local t = min(units[i], now)
        r.x = max(0, r.x - (t - r.at) * p)
        r.x, r.at = min(MOST_PARTS, r.x + min(MOST_PARTS, units[i + 1] * q)), t
      end
      clip(r)
      return r
    end
    r.at, r.x, r.since, r.low = unpack7(v, 9), unpack7(v, 16), unpack7(v, 30), unpack7(v, 37)
    r.till = unpack7(v, 2)
    local before = unpack7(v, 23)
    if before ~= q and p > 0 then
      r.x = convert(r, r.x, before, ceil)
      r.low = r.low < UNTOUCHED and max(0, convert(r, r.low, before, floor) - 1) or r.low
      -- One that was corrected before counted in finer parts of the same unit.
      clip(r, whole or before > q and before % q == 0 and p)
    end
    -- A clock that goes to and fro would fill the bucket each time that it goes forth: so it is waited
    -- for, where that takes no longer than the bucket does to fill.
    local back = stored.stepped(now, r.at, byte(v, 44), p > 0 and min(TO_AND_FRO, cap * q / p) or 0)
    if back > 0 then
      r.at, r.low, r.healed, r.stepped = r.at - back, 0, true, true
      r.since = r.at
    end
    return r
  end

  local function fit(r, t)
    if r.p == 0 or r.cost > r.cap then
      return nil
    end
    local over = level(r, t) + r.slack * r.p + (r.cost - r.cap) * r.q
    return over <= 0 and t or t + ceil(over / r.p)
  end

  local function charge(r, now, start)
    local p, at_start = r.p, max(0, level(r, start))
    -- A rate that was corrected may be whole before the start comes, or be raised by then, and
    -- must not drain then what is taken there: the level is kept as of the start.
    local mark = max(now, r.at + 1, (r.corrected or r.raises) and start or 0)
    local x = max(level(r, now), (start - now) * p) + r.cost * r.q
    if at_start < r.q then
      r.since, r.low = mark, UNTOUCHED
    elseif at_start < r.low then
      r.low = at_start
    end
    r.x, r.at = max(0, x - (mark - now) * p), mark
    return mark
  end

  local function refund(r, now, mark)
    if r.p == 0 or not r.found or r.healed or mark < r.since or mark > r.at then
      return 0
    end
    local back = max(0, min(r.cost * r.q, level(r, now), r.x))
    if mark < r.at and r.low < UNTOUCHED then
      back = min(back, r.low)
      r.low = r.low - back
    end
    r.x, r.changed = r.x - back, back > 0
    return floor(back / r.q)
  end

  -- A bucket that has been full for less than slack is not yet as if untouched.
  local function lasts(r, now)
    return max(0, level(r, now) / r.p + r.slack)
  end

  local function save(r, now)
    write(r, now, TOKEN, pack(r.at) .. pack(r.x) .. pack(r.q) .. pack(r.since) .. pack(r.low)
      .. stored.ahead(now, r.at), lasts(r, now))
  end

  local function remaining(r, now)
    return r.p == 0 and 0 or max(0, floor((r.cap * r.q - max(0, level(r, now) + r.slack * r.p)) / r.q))
  end

  local function reset(r, now)
    return r.p == 0 and -1 or ceil(lasts(r, now))
  end

  algorithms.T = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts }
end
-- sliding-window: never more than cap units in any window of `per` µs.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves
-- `per` after the end of its cell: less than a grain late and never early, so
-- that per/grain + 1 cells are enough whatever the limit. Cells are numbered by
-- their ends. The last one (tail) stands apart, since it grows most; `log` holds
-- those before it that have units, oldest first, as varints: units, then (cells
-- since the one before, units) for each next.
do
  local function varint(n)
    local s = ''
    while n >= 128 do
      local low = n % 128
      s = s .. char(128 + low)
      n = (n - low) / 128
    end
    return s .. char(n)
  end

  -- Returns the number at i and the place after it.
  local function unvarint(v, i)
    local n, unit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, unit, i = n + (b - 128) * unit, unit * 128, i + 1
      b = byte(v, i)
    end
    return n + b * unit, i + 1
  end

  -- Calls visit(cell, units, entry, from, to, before) for each entry of the log,
  -- oldest first, until it returns true. In the text, the entry begins at entry
  -- and its units stand at from, up to but not at to; before is the cell before.
  local function each(r, visit)
    local log, pos, cell, before = r.log, 1, r.head, nil
    local len = #log
    while pos <= len do
      local entry, delta, from, units = pos, 0, pos, 0
      if before then
        delta, from = unvarint(log, pos)
        cell = before + delta
      end
      units, pos = unvarint(log, from)
      if visit(cell, units, entry, from, pos, before) then
        return true
      end
      before = cell
    end
  end

  local function clear(r)
    r.total, r.head, r.last, r.tail, r.count, r.log = 0, 0, 0, 0, 0, ''
  end

  -- Puts units into a cell after all of the log.
  local function append(r, cell, units)
    if r.log == '' then
      r.head, r.log = cell, varint(units)
    else
      r.log = r.log .. varint(cell - r.last) .. varint(units)
    end
    r.last = cell
  end

  -- Puts units into a cell before the last of the log.
  local function insert(r, cell, units)
    each(r, function(at, had, entry, from, to, before)
      if at < cell then
        return false
      elseif at == cell then
        r.log = sub(r.log, 1, from - 1) .. varint(had + units) .. sub(r.log, to)
      elseif before then
        r.log = sub(r.log, 1, entry - 1) .. varint(cell - before) .. varint(units)
          .. varint(at - cell) .. sub(r.log, from)
      else
        r.log, r.head = varint(units) .. varint(at - cell) .. r.log, cell
      end
      return true
    end)
  end

  local function put(r, cell, units)
    if r.total == 0 then
      clear(r)
      r.tail = cell
    end
    r.total = r.total + units
    if cell > r.tail then
      append(r, r.tail, r.count)
      r.tail, r.count = cell, units
    elseif cell == r.tail then
      r.count = r.count + units
    elseif r.log == '' or cell > r.last then
      append(r, cell, units)
    else
      insert(r, cell, units)
    end
  end

  -- Writes all cells anew: in another grain, each at the later end, and without
  -- some units of one of them. Returns how many those were.
  local function rewrite(r, grain, less, cost)
    local old, back = { head = r.head, log = r.log }, 0
    local was, tail, count = r.grain, r.tail, r.count
    local function keep(cell, units)
      if cell == less then
        back = min(units, cost)
      end
      if cell ~= less or units > back then
        put(r, ceil(cell * was / grain), cell == less and units - back or units)
      end
    end
    clear(r)
    each(old, keep)
    if count > 0 then
      keep(tail, count)
    end
    r.grain = grain
    return back
  end

  -- Forgets what has left the window.
  local function expire(r, now)
    local gone = floor((now - r.per) / r.grain)
    if r.tail <= gone then
      clear(r)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      each(r, function(cell, units, _, from)
        if cell > gone then
          rest, head = sub(r.log, from), cell
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  -- The units of another algorithm. A bucket does not know when what it granted
  -- last begins: in no more than a second.
  local function take_over(r, v, now)
    local units, later = stored.carried(v), byte(v, 1) == TOKEN and 1000000 or 0
    for i = 1, #units, 2 do
      if units[i + 1] > 0 then
        put(r, ceil(min(units[i] + later, now + FAR_AHEAD) / r.grain), units[i + 1])
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, grain)
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain,
      total = 0, head = 0, last = 0, tail = 0, count = 0, log = '', till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= SLIDING then
      take_over(r, v, now)
      expire(r, now)
      return r
    end
    r.till, r.grain, r.total, r.head = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.last, r.tail, r.count, r.log = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), sub(v, 52)
    local back = stored.stepped(now, (r.tail - 1) * r.grain, byte(v, 51))
    if r.grain ~= grain then
      rewrite(r, grain)
    end
    back = floor(back / grain)
    if back > 0 then
      r.tail, r.healed, r.stepped = r.tail - back, true, true
      if r.log ~= '' then
        r.head, r.last = r.head - back, r.last - back
      end
    end
    expire(r, now)
    return r
  end

  -- The moment from which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    each(r, function(cell, units)
      need = need - units
      if need <= 0 then
        at = cell
        return true
      end
    end)
    return at * r.grain + r.per
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local need = r.total + r.cost - r.cap
    return need <= 0 and t or max(t, leave(r, need))
  end

  local function charge(r, _, start)
    local cell = ceil(start / r.grain)
    put(r, cell, r.cost)
    return cell * r.grain
  end

  local function refund(r, _, place)
    if r.total == 0 or r.healed then
      return 0
    end
    local back = rewrite(r, r.grain, ceil(place / r.grain), r.cost)
    r.changed = back > 0
    return back
  end

  local function lasts(r, now)
    return r.total == 0 and 0 or r.tail * r.grain + r.per - now
  end

  local function save(r, now)
    write(r, now, SLIDING, pack(r.grain) .. pack(r.total) .. pack(r.head) .. pack(r.last) .. pack(r.tail)
      .. pack(r.count) .. stored.ahead(now, (r.tail - 1) * r.grain) .. r.log, lasts(r, now))
  end

  local function remaining(r)
    return max(0, r.cap - r.total)
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
-- fixed-window: at most cap units in each window of `per` µs since the epoch.
-- Source: docs/algorithms.md#fixed-window
--
-- The state is the latest charged window and the one before it, each by its last
-- start, with their units: a start ahead does not close the window at hand. No
-- unit goes into a window before those two, and none comes back that was taken
-- before `since`, when the state began. The last `slack` µs of a window admit
-- nothing: what starts late must not land in the next. A clock that steps back by
-- less than a window finds those two as they were; otherwise what they had counts in
-- the window at hand.
do
  -- The units of another algorithm, in the last two windows that have any.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and floor(t / r.per) > floor(r.last / r.per) then
        r.prior, r.before, r.last, r.count = r.last, r.count, t, n
      elseif n > 0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, slack)
    local r = { kind = 'F', key = key, cost = cost, cap = cap, per = per, slack = min(slack, per - 1),
      last = 0, count = 0, prior = 0, before = 0, since = now, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= FIXED then
      take_over(r, v, now)
      return r
    end
    r.till, r.since = unpack7(v, 2), unpack7(v, 37)
    r.last, r.count, r.prior, r.before = unpack7(v, 9), unpack7(v, 16), unpack7(v, 23), unpack7(v, 30)
    local notches = byte(v, 44)
    if stored.stepped(now, r.last, notches) > per then
      r.count = r.count + (notches > 0 and r.before or 0) -- the last start was in a window ahead, maybe
      r.last, r.prior, r.before, r.since, r.healed, r.stepped = now, 0, 0, now, true, true
    elseif floor(r.prior / per) == floor(r.last / per) then
      r.count, r.before = r.count + r.before, 0
    end
    return r
  end

  local function window(r, t)
    return floor(t / r.per)
  end

  local function used(r, w)
    return w == window(r, r.last) and r.count or w == window(r, r.prior) and r.before or 0
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local w = window(r, t)
    if w < window(r, r.prior) then
      w = window(r, r.prior)
      t = w * r.per
    end
    while (w + 1) * r.per - t <= r.slack or used(r, w) + r.cost > r.cap do
      w = w + 1
      t = w * r.per
    end
    return t
  end

  local function charge(r, _, start)
    local w, latest = window(r, start), window(r, r.last)
    if w == latest then
      r.last, r.count = max(r.last, start), r.count + r.cost
    elseif w == window(r, r.prior) then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      if w > latest then
        r.prior, r.before, r.last, r.count = r.last, r.count, start, r.cost
      else
        r.prior, r.before = start, r.cost
      end
      r.since = max(r.since, window(r, r.prior) * r.per) -- the window before those two is let go
    end
    return start
  end

  local function refund(r, _, place)
    local w, back = window(r, place), 0
    if r.healed or place < r.since then
      return 0
    elseif w == window(r, r.last) then
      back = min(r.count, r.cost)
      r.count = r.count - back
      if r.count == 0 and r.prior > 0 then
        r.last, r.count, r.before = r.prior, r.before, 0
      end
    elseif w == window(r, r.prior) then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed = back > 0
    return back
  end

  -- µs until the last window with units is over, and the last is open that may
  -- not get any.
  local function lasts(r, now)
    local last = r.count > 0 and r.last or r.before > 0 and r.prior or r.prior - r.per
    return max(0, (window(r, last) + 1) * r.per - now)
  end

  local function save(r, now)
    write(r, now, FIXED, pack(r.last) .. pack(r.count) .. pack(r.prior) .. pack(r.before) .. pack(r.since)
      .. stored.ahead(now, r.last), lasts(r, now))
  end

  local function remaining(r, now)
    local w = window(r, now)
    return w < window(r, r.prior) and 0 or max(0, r.cap - used(r, w))
  end

  algorithms.F = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
-- concurrency: at most cap runs at once, each holding a place under its attempt
-- id until it is released or its lease runs out unrenewed.
-- Source: docs/algorithms.md#concurrency
--
-- A sorted set of attempt ids by the end of their lease.
do
  local function bounds(now)
    return '(' .. whole(now), whole(now + LONGEST_LEASE + FAR_AHEAD)
  end

  local function load(key, now, cost, cap, lease, _, _, member)
    local from, to = bounds(now)
    local r = { kind = 'C', key = key, cost = cost, cap = cap, lease = lease, member = member, now = now,
      held = redis.call('ZCOUNT', key, from, to), mine = false }
    if r.held >= cap and r.held > 0 then
      local ends = redis.call('ZSCORE', key, member)
      r.mine = ends and tonumber(ends) > now or false
    end
    return r
  end

  -- The end of one of the leases now held: skip others end before it
  -- (ZRANGEBYSCORE) or after it (ZREVRANGEBYSCORE). Nil when there are not so many:
  -- some places are only set aside.
  local function ends(command, key, a, b, skip)
    return tonumber(redis.call(command, key, a, b, 'WITHSCORES', 'LIMIT', whole(skip), 1)[2] or '')
  end

  -- A full rule has a place free when as many leases have ended as are too many,
  -- unless they are renewed.
  local function fit(r, t)
    if r.held < r.cap or r.mine then
      return t
    elseif r.cap == 0 then
      return nil
    end
    local from, to = bounds(r.now)
    r.free = r.free or ends('ZRANGEBYSCORE', r.key, from, to, r.held - r.cap) or r.now + r.lease
    return max(t, r.free), true
  end

  local function charge(r)
    if not r.mine then
      r.held, r.free = r.held + 1, nil
    end
    return 0
  end

  local function refund(r)
    return redis.call('ZREM', r.key, r.member)
  end

  local function save(r, now, start)
    redis.call('ZREMRANGEBYSCORE', r.key, '-inf', whole(now))
    redis.call('ZADD', r.key, whole(start + r.lease), r.member)
    keep(r.key, start + r.lease - now)
  end

  local function remaining(r)
    return max(0, r.cap - r.held)
  end

  local function reset(r, now)
    local from, to = bounds(now)
    return r.held > 0 and ends('ZREVRANGEBYSCORE', r.key, to, from, 0) - now or 0
  end

  algorithms.C = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
-- calendar: at most cap units in each period, and up to `rollover` that the period
-- before it left over.
-- Source: docs/algorithms.md#calendar
--
-- A period begins at b0 and at b1 the next one does; a is when the one before began,
-- b2 and b3 are when the next two end. They come from the caller, whose clock or
-- memory may be wrong: where the clock is not between b0 and b1 the rule is stale, and
-- admits nothing until the caller has others.
--
-- The state is the latest period that has units and the one before it, each by the
-- last of its starts, as with fixed windows: whatever the boundaries are by now, none
-- of its units started later. `from` is no later than any start of the latest, `since`
-- than any of both. A start ahead may stand in the next period while this one still
-- has room. `carry` is what had been rolled over into the period before; what comes to
-- the latest follows from it, so that what is given back late is rolled over too. The
-- last `slack` µs of a period admit nothing. Where what is left is spread, nothing
-- starts before `next`; before the last charge that was `was`.
do
  local EXACT = 9007199254740991

  -- How soon to ask a rule again that is stale.
  local SOON = 10000

  -- units/of of a time, rounded up; no more than it. All are whole.
  local function part(time, units, of)
    local rest = time % of
    local over = rest * units
    if over <= EXACT then
      over = ceil(over / of)
    else
      over = ceil(rest / of * units) + 1
    end
    return min(time, (time - rest) / of * units + over)
  end

  -- What the period before the latest has left over, once it has ended.
  local function left_over(r)
    if r.prior == 0 or r.prior >= r.b0 then
      return 0
    end
    return min(r.rollover, max(0, r.cap + min(r.carry, r.rollover) - r.before))
  end

  -- Begins a period: the latest is the one before from now on, or, where it ended
  -- sooner than at `from`, one that passed without a unit. What had been rolled over into
  -- that one rolls on; several in a row count as one.
  local function begin(r, from, before)
    local carry = left_over(r)
    r.gap = r.last < before
    if r.gap then
      carry = min(r.rollover, max(0, r.cap + carry - r.count))
      r.prior, r.before, r.carry, r.since = before, 0, carry, max(r.since, before)
    else
      r.prior, r.before, r.carry, r.since = r.last, r.count, carry, max(r.since, r.from)
    end
    r.last, r.from, r.count, r.next, r.was = from, from, 0, 0, 0
  end

  -- Sees the state as it is at now: r.idle where the period at hand has no units,
  -- r.ahead where the latest is the next one, r.gone where nobody knows any more what
  -- the one at hand had, since the clock has stepped back into it.
  local function settle(r, now)
    if r.last - now > 2 * FAR_AHEAD then
      r.count = r.count + (r.prior >= r.b0 and r.before or 0)
      r.last, r.from, r.since, r.healed, r.stepped = now, now, now, true, true
      r.prior, r.before, r.carry, r.next, r.was = 0, 0, 0, 0, 0
    elseif r.last < r.b0 then
      begin(r, r.b0, r.a)
      r.idle = true
    elseif r.from >= r.b1 then
      r.ahead = true
      if r.prior < r.b0 then -- the boundaries have changed, or the clock has stepped back
        r.prior, r.before, r.carry, r.since = r.b0, 0, left_over(r), max(r.since, r.b0)
      end
    end
    r.gone = r.ahead and r.since >= r.b1 and r.prior >= r.b1
    r.next = r.spread and min(r.next, r.ahead and r.b2 or r.b1) or 0
  end

  -- The units of another algorithm that are of the period at hand. What the one before
  -- it left over nobody knows.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and t >= r.b0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = r.found
  end

  local function load(key, now, cost, rule)
    local r = { kind = 'K', key = key, cost = cost, cap = unpack7(rule, 2), b0 = unpack7(rule, 9), b1 = unpack7(rule, 16),
      b2 = unpack7(rule, 23), slack = unpack7(rule, 30), rollover = unpack7(rule, 37), spread = unpack7(rule, 44) == 1,
      a = unpack7(rule, 51), b3 = unpack7(rule, 58), count = 0, prior = 0, before = 0, carry = 0, since = now,
      next = 0, was = 0, till = 0, found = false, healed = false }
    r.last, r.from, r.stale = r.b0, r.b0, now < r.b0 or now >= r.b1
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = not r.stale or byte(v, 1) == CALENDAR
    if byte(v, 1) ~= CALENDAR then
      take_over(r, v, now)
      return r
    end
    r.till, r.last, r.from, r.count = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.prior, r.before, r.carry, r.since = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), unpack7(v, 51)
    r.next, r.was, r.ends, r.raw = unpack7(v, 58), unpack7(v, 65), r.till - LONGER, sub(v, 9)
    if not r.stale then
      settle(r, now)
    end
    return r
  end

  -- The units of the period at hand, and of the next. Where the boundaries have
  -- changed, those that may be of either count in both.
  local function used(r)
    return r.ahead and r.before or r.count + (r.prior >= r.b0 and r.before or 0)
  end

  local function used_next(r)
    return r.last >= r.b1 and r.count + (r.prior >= r.b1 and r.before or 0) or 0
  end

  -- The units that the period at hand has left, and the next one, which gets nothing
  -- rolled over before it has begun.
  local function room(r)
    return r.gone and 0 or r.cap + (r.ahead and min(r.carry, r.rollover) or left_over(r)) - used(r)
  end

  local function room_next(r)
    return r.cap - used_next(r)
  end

  -- What happens from b2 on nobody knows here, only that nothing is admitted sooner.
  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    elseif r.stale then
      return max(t, now + SOON), true
    end
    local at = max(t, r.next)
    if at < r.b1 - r.slack and room(r) >= r.cost then
      return at
    end
    at = max(at, r.b1)
    if at < r.b2 - r.slack then
      local left = room_next(r)
      if left >= r.cost then
        return at
      elseif left + min(r.rollover, max(0, room(r))) >= r.cost then
        return at, true
      end
    end
    return max(t, r.b2), true
  end

  local function charge(r, _, start)
    if r.stale then
      return start
    end
    local here, was = start < r.b1, r.next
    local left, ends = here and room(r) or room_next(r), (here and r.b1 or r.b2) - r.slack
    if not here and r.last < r.b1 then
      begin(r, r.b1, r.b0)
      r.ahead = true
    end
    if here and r.ahead then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      r.last, r.from, r.count = max(r.last, start), min(r.from, start), r.count + r.cost
    end
    r.idle = false
    if r.spread then
      r.was, r.next = was, start + part(max(0, ends - start), r.cost, max(left, r.cost))
    end
    return start
  end

  -- The pace goes back by the charge that was the last.
  local function refund(r, _, place)
    local back = 0
    if r.healed or place < r.since then
      return 0
    elseif place >= r.from and place <= r.last then
      back = min(r.count, r.cost)
      r.count = r.count - back
      r.next = place == r.last and r.was or r.next
    elseif place <= r.prior then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed, r.idle = back > 0, r.idle and back == 0
    return back
  end

  -- µs until the rule is as if unused.
  local function reset(r, now)
    if r.stale then
      return 0
    elseif used_next(r) > 0 then
      return r.b2 - now
    end
    return used(r) > 0 and r.b1 - now or max(0, r.next - now)
  end

  -- µs until the state means nothing any more: where units roll over, not before
  -- another period has passed.
  local function lasts(r, now)
    if r.stale then
      return max(0, (r.ends or r.b1) - now)
    elseif r.rollover == 0 then
      return reset(r, now)
    elseif r.idle then
      return r.gap and 0 or r.b2 - now -- of what was before a gap nobody knows how long it has been
    end
    return r.b3 + (r.ahead and r.b3 - r.b2 or 0) - now
  end

  local function save(r, now)
    if r.idle then
      return write(r, now, CALENDAR, r.raw, lasts(r, now))
    end
    write(r, now, CALENDAR, pack(r.last) .. pack(r.from) .. pack(r.count) .. pack(r.prior)
      .. pack(r.before) .. pack(r.carry) .. pack(r.since) .. pack(r.next) .. pack(r.was), lasts(r, now))
  end

  local function remaining(r)
    return (r.stale or r.cap == 0) and 0 or max(0, room(r))
  end

  -- When `units` before it and then the cost will have been admitted: an estimate,
  -- which takes later periods to be as long as the next.
  local function after(r, now, units)
    if r.cost > r.cap or r.stale then
      return (fit(r, now))
    end
    local at, ends, left = max(now, r.next), r.b1 - r.slack, max(0, room(r))
    if at >= ends or units + r.cost > left then
      units = at < ends and max(0, units - left) or units
      at, ends, left = max(at, r.b1), r.b2, max(0, room_next(r))
      if units + r.cost > left then
        units = max(0, units - left)
        local rest = units % r.cap
        at, left = r.b2 + (units - rest) / r.cap * (r.b2 - r.b1), r.cap
        units, ends = rest, at + r.b2 - r.b1
      end
    end
    return min(EXACT, r.spread and at + part(max(0, ends - at), units, left) or at)
  end

  algorithms.K = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts, after = after }
end
-- The rules of a call: a key each, and two ARGV: the rule and its cost. A rule is a
-- letter and numbers of seven bytes each, as include/pack.lua writes them:
--   T token-bucket    p      q      cap    slack  most
--   S sliding-window  cap    per    grain  slack  most
--   F fixed-window    cap    per    slack  -      most
--   C concurrency     cap    lease  -      -      -
--   K calendar        cap    b0     b1     b2, and five more: slack, rollover, spread, a, b3; see
--                     include/calendar.lua
-- The name of what it counts may follow, where that is not requests, or "*": decisions are told
-- what each rule costs, and have no need of it. p = 0 and cap = 0 suspend; slack < per, and part
-- of it in a sliding window. What an API says may make most millionths of a limit, 0 for no more
-- than it is. All times are whole microseconds.

-- What an API makes of a rule's numbers, where it has told anything: see include/told.lua.
local corrected

local function most_of(rule)
  return max(1000000, #rule > 35 and unpack7(rule, 30) or 0)
end

-- Rule i, which a text describes.
local function load_rule(i, rule, cost, member, now)
  if sub(rule, 1, 1) == 'K' then
    return algorithms.K.load(KEYS[i], now, cost, rule)
  end
  local kind, a, b, c, d = sub(rule, 1, 1), unpack7(rule, 2), unpack7(rule, 9), unpack7(rule, 16), unpack7(rule, 23)
  local most, changed, whole, burst = kind == 'T' and c or a, nil, nil, nil
  if corrected then
    a, b, changed, whole, burst = corrected(KEYS[i], rule, kind, a, b, c, d)
  end
  local r = algorithms[kind].load(KEYS[i], now, cost, a, b, c, d, member, whole)
  r.corrected, r.cap, r.most = changed, burst or r.cap, most
  r.raises = kind == 'T' and most_of(rule) > 1000000
  return r
end

-- Rule i, whose text is ARGV[first], and its cost the next.
local function read_rule(i, first, member, now)
  return load_rule(i, ARGV[first], tonumber(ARGV[first + 1]), member, now)
end
-- µs from now until a rule alone would admit its cost; -1 can't tell.
local function retry_of(r, now)
  local t = algorithms[r.kind].fit(r, now)
  return t and t - now or -1
end

-- The first moment from now on at which every rule that can tell admits its cost,
-- the rule that asked for it, and whether that is sure: a suspended rule can't
-- tell, a full concurrency rule hopes for leases to end. Fixed windows that are
-- out of step may take long to agree; then it is only the earliest that it can be.
local function joint_start(rules, now)
  local start, binding, sure = now, 0, true
  for _ = 1, 50 do
    local before = start
    for i = 1, #rules do
      local t, hope = algorithms[rules[i].kind].fit(rules[i], start)
      if not t or hope then
        sure = false
      end
      if t and t > start then
        start, binding = t, i
      end
    end
    if start == before or #rules == 1 then
      return start, binding, sure
    end
  end
  return start, binding, false
end

-- Puts down what rule i has to say: limited, remaining, retry, reset, place.
local function report(out, i, r, now, retry, place)
  local n, algorithm = 5 * i, algorithms[r.kind]
  out[n + 1] = retry == 0 and 0 or 1
  out[n + 2] = algorithm.remaining(r, now)
  out[n + 3] = retry
  out[n + 4] = algorithm.reset(r, now)
  out[n + 5] = place
end

-- A denial: how long until all would be admitted, and every rule's report. What
-- can't be told (-1) outlasts every wait, and a pause besides is told as so much less
-- than that: one by hand, of which no script knows the end, may be over sooner. A pause
-- binds where no rule is for ever.
local function denied(rules, now, start, binding)
  local wait, pause = start - now, 0
  local out, last = { 0, 0, now, 0, 0 }, 0
  for i = 1, #rules do
    local r = rules[i]
    if r.kind ~= 'P' then
      local retry = retry_of(r, now)
      if wait >= 0 and retry < 0 then
        wait, binding = -1, i
      end
      report(out, i, r, now, retry, 0)
      last = i
    else
      pause = max(pause, r.ends - now)
      binding = pause > 0 and wait >= 0 and last + 1 or binding
    end
  end
  wait = wait < 0 and -1 - pause or wait
  out[4], out[5] = wait == 0 and 1 or wait, min(binding, last + 1)
  return out
end
-- What an API has told of the scopes of a provider. It needs call, now and told, and
-- where heeds says that there is anything. Source: docs/vendor.md#pauses
--
-- told   hash: P<level> the pause of a level and of all below it: when it ends, when it
--        began, and how long it was where the API did not say. A level is the path of a
--        scope after the provider's name. R<rule> the correction of a rule: see
--        include/correction.lua. #<level> how many of both there are below a name of the
--        second or third level; @ how far tell has looked through them for what is over.
--
-- A pause is one more rule of a path, behind the others: it admits nothing before it ends,
-- is charged nothing, and has a round of its own, which no name of a rule can be. One that
-- has ended stays until it is swept, since there may be those who waited for it.
algorithms.P = {
  fit = function(r, t)
    return max(t, r.ends)
  end,
  charge = function()
    return 0
  end,
}

-- While anything is told, who waits is looked at so soon: a correction may end, and will grow
-- back, before its rule admits more by itself.
local TOLD_LOOK = 1000000

-- What an API has made of a rule: a part of its limit, which was cut when calls were refused
-- and grows by the clock, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; the part, in millionths, of a moment, and by how many
-- it grows in a second; a limit, 0 for none, its window in µs, and until when it holds; until
-- when the part may be above the whole, since calls go through; when it was cut. One that a
-- worker of an earlier version has written ends with the first seven.
local WHOLE = 1000000

-- One table, since locals are few.
local corrections = {}

-- What says by its moment i when it was written, with the moments at all of a list of places as
-- they are since the clock has stepped back behind that: or else it would hold longer by the step.
-- The second result says so.
function corrections.brought_back(v, i, ...)
  local back = unpack7(v, i) - now
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs({ ... }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

-- The second result is the text of one that a step of the clock has changed.
function corrections.read(v)
  local changed
  if #v > 49 then
    v, changed = corrections.brought_back(v, 8, 1, 8, 43, 50, 57)
  end
  local r = { ends = unpack7(v, 1), since = unpack7(v, 8), part = unpack7(v, 15), grows = unpack7(v, 22),
    limit = unpack7(v, 29), per = unpack7(v, 36), till = unpack7(v, 43), raised = 0, cut = 0 }
  if r.till <= now then
    r.limit = 0
  end
  if #v > 49 then
    r.raised, r.cut = unpack7(v, 50), unpack7(v, 57)
  else
    r.cut = r.since
  end
  return r, changed and v or nil
end

-- The part by now, `most` at the most; while the API's own limit counts, the whole: from there
-- it grows on when that is over.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end

-- By level, false for none; and what a step of the clock has changed, as fields and texts by turns,
-- which whoever may write does: else each look would find a pause as new as the first one did.
local pauses = { stepped = {} }

local function pause_of(level)
  local p = pauses[level]
  if p == nil then
    local v, stepped = call('HGET', told, 'P' .. level), false
    if v then
      v, stepped = corrections.brought_back(v, 8, 1, 8)
    end
    if stepped then
      table.insert(pauses.stepped, 'P' .. level)
      table.insert(pauses.stepped, v)
    end
    p = v and { kind = 'P', name = level .. ':!stop', ends = unpack7(v, 1), unit = '', cost = 1, units = 0,
      lines = 0 } or false
    pauses[level] = p
  end
  return p
end

-- Adds the pauses of a scope and of all above it to the rules of its path.
local function add_pauses(path, scope)
  if not heeds then
    return
  end
  for ends in string.gmatch(scope .. '/', '()/') do
    local p = pause_of(sub(scope, 1, ends - 1))
    if p then
      path[#path + 1] = p
    end
  end
end

-- A bucket whose rate is corrected counts in so much finer parts, as far as its numbers
-- allow, so that only p changes from look to look: what it holds is rewritten when the first
-- correction comes and when the last one goes, and no unit is lost or won between. There is
-- room for what may come of its rate; one that is near MOST_RATE by itself goes no further.
local FINER, MOST_RATE, MOST_LEVEL = 1000, 33554432, 4503599627370495

-- So many millionths of n, rounded down: exact below 10^13 of them.
local function part_of(n, part)
  local rest = n % WHOLE
  return (n - rest) / WHOLE * part + floor(rest * part / WHOLE)
end

-- What of a limit counts: the part of it, or the API's own, 0 for none, of which refusals
-- leave less too where it is the larger. Never more than `most`.
local function counts(limit, own, part, most)
  if own == 0 then
    return min(most, part_of(limit, part))
  end
  own = min(own, most)
  return min(own, part_of(max(limit, own), min(part, WHOLE)))
end

if heeds then
  corrected = function(key, rule, kind, a, b, c, d)
    local v = kind ~= 'C' and a > 0 and call('HGET', told, 'R' .. sub(key, #told - 4))
    local r, stepped
    if v then
      r, stepped = corrections.read(v)
    end
    if stepped then
      table.insert(pauses.stepped, 'R' .. sub(key, #told - 4))
      table.insert(pauses.stepped, stepped)
    end
    if not r or r.ends <= now then
      return a, b
    end
    local most = most_of(rule)
    local part = corrections.part_at(r, most)
    if kind ~= 'T' then
      -- A limit is one of its window: the policy may have given the rule another since.
      local own = r.per == (kind == 'S' and b - d or b) and r.limit or 0
      return max(1, counts(a, own, part, part_of(a, most))), b, true
    end
    local top = a * most / WHOLE
    local finer = max(1, floor(min(FINER, MOST_RATE / top, MOST_LEVEL / (2 * b * c), MOST_LEVEL / (top * max(d, 1)))))
    local p, q, own, burst = a * finer, b * finer, 0, nil
    if r.limit > 0 then
      own, burst = max(1, floor(q * r.limit / r.per)), min(c, r.limit)
    end
    local rate = counts(p, own, part, min(part_of(p, most), MOST_RATE, floor(MOST_LEVEL / max(d, 1))))
    return max(1, rate), q, true, p, burst
  end
end
-- What a decision does under the rules of its path. It needs n, member, attempt and
-- scope, and late, what was too late before or nil; rule i is ARGV[base + 2 * i], and pauses come behind the n rules.

local function read_rules()
  local rules = {}
  for i = 1, n do
    rules[i] = read_rule(i, base + 2 * i, member, now)
  end
  add_pauses(rules, scope)
  return rules
end

-- How much later than its start the run may begin, and how far ahead the start must be.
local leeway, from = 0, 0
if late and byte(late) == 76 then
  leeway = tonumber(sub(late, 2))
elseif late then
  from = tonumber(sub(late, 2))
end

-- Charges every rule at start. The record goes first, here too. Nil, with nothing
-- changed, for an attempt that was decided before. One with leeway may begin up to so much
-- later: windows and buckets count it as of the last moment at which it may.
local function grant(rules, start, binding)
  if #pauses.stepped > 0 then
    redis.call('HSET', told, unpack(pauses.stepped))
  end
  local out, record = { 1, 0, now, start - now, binding }, pack(start)
  local retries, places = {}, {}
  for i = 1, n do
    local r = rules[i]
    retries[i] = start == now and 0 or retry_of(r, now)
    places[i] = algorithms[r.kind].charge(r, now, (r.kind == 'S' or r.kind == 'T') and start + leeway or start)
    record = record .. pack(places[i])
  end
  local before = call('SET', attempt, record .. member, 'PX', '30000', 'GET')
  if before and sub(before, -#member) == member then
    call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
    return nil
  end
  for i = 1, n do
    local r = rules[i]
    algorithms[r.kind].save(r, now, start)
    report(out, i, r, now, retries[i], places[i])
  end
  return out
end

-- The grant that this attempt had before.
local function granted_before(rules, record)
  local left = unpack7(record, 1) - now
  local out, wait = { 1, 1, now, left, 0 }, max(0, left)
  for i = 1, n do
    -- Its own units are among those that the rule would have it wait for.
    local retry = wait > 0 and retry_of(rules[i], now) or 0
    if retry < 0 or retry > wait then
      retry = wait
    end
    report(out, i, rules[i], now, retry, unpack7(record, 7 * i + 1))
  end
  return out
end

-- Mends what would not heal by itself: a key without a TTL, or with one that a
-- limit changed meanwhile outlasts; a state from the future, or of another
-- algorithm, whose units would seem to be spent anew with each look.
local function mend(rules)
  if #pauses.stepped > 0 then
    redis.call('HSET', told, unpack(pauses.stepped))
  end
  for i = 1, n do
    local r = rules[i]
    if r.kind == 'C' then
      if r.held > 0 and redis.call('PTTL', r.key) == -1 then
        keep(r.key, LONGEST_LEASE)
      end
    elseif r.found and r.p ~= 0 then
      local algorithm = algorithms[r.kind]
      if r.healed or redis.call('PTTL', r.key) < ceil(algorithm.lasts(r, now) / 1000) then
        r.till = 0
        algorithm.save(r, now)
      end
    end
  end
end
-- Who waits, and in which order. It needs call, provider, and the keys due, round
-- and at. Source: docs/turns.md#lines-rounds-and-seats
--
-- line   sorted set of each scope: its tasks' tickets, by priority and order. A
--        ticket is "cost:name", the cost left out when it is 1; one by unit is
--        "requests=1,tokens=1500:name".
-- round  sorted set of seats, all of score 0. A scope whose line is not empty has
--        one seat, with the rule that its first task waits for:
--        rule, 0, rank, scope. The seats of a rule are its round; they are
--        served in the order of their ranks: the priority of the scope's first
--        task, then the stamp, which grows by what the scope has had. See shares.lua.
--        Those of which no task can ever be admitted have a round of no rule's.
-- due    sorted set of rules that have a round, by the µs to look at it.
-- out    hash of tasks that were released and have not come: scope, 0, ticket. Its
--        values: when it was, its score, its stamp, and the id of the call.
-- at     hash: S<scope> its seat, L<scope> requests in its line and, after a 0 and
--        its name, of each other unit, U<rule> units that wait in lines under the
--        rule, N<rule> those lines, # the highest stamp, @ the µs
--        of the last look, ^ what that was before the clock stepped back, M that somebody
--        takes nothing of some rule, ! the seat of no
--        rule's round that a look came to; V, F and T as in shares.lua; Q<scope> the lanes of
--        its line, as in lanes.lua.
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local NO_RULE, REQUESTS, MIXED = '!', 'requests', 'M'

-- A released task that has not come for so long is not on its way, and a look
-- that is later than this has nobody to make it.
local STALE, LATE = 3000000, 1000000

-- What stands for the call's id: a task is known to run, or to be about to, and one
-- that went straight to its queue and that no look has met.
local RUNNING, STRAIGHT = '!', '?'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- What waits is kept for so much longer than it is expected to take: it means
-- something until the task's own queue brings it back.
local STAY = 86400000000

-- The place after the last of a band, or the first of an empty one: not before
-- the clock, in ms, so that who was released, and comes back to its place, is before
-- those who came since, whoever stands in line by then.
local function place_after(last, band, now)
  local first = band + MIDDLE / 2 + floor(now / 1000) % MIDDLE
  return last and min(max(last + 1, first), band + BAND - 1) or first
end

local function rule_name(key)
  return sub(key, #provider + 1)
end

-- What a task costs under every rule; nil for one that costs by unit.
local function number_of(ticket)
  local cost = string.match(ticket, '^(%d*):')
  return cost and (tonumber(cost) or 1)
end

-- What a task takes of a unit, '' for places, that is known to have no number: a rule
-- that it takes nothing of is not in its path.
local function amount_of(ticket, unit)
  for its, cost in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
    if its == unit then
      return tonumber(cost)
    end
  end
  return (unit == '' or unit == REQUESTS) and 1 or 0
end

local function cost_of(ticket, unit)
  return number_of(ticket) or amount_of(ticket, unit)
end

-- The unit that a rule counts, '' for places and where each task counts: it follows the
-- numbers of its text.
local function unit_of(rule)
  local kind = byte(rule)
  local unit = kind == HELD and '*' or sub(rule, kind == CALENDAR and 65 or 37)
  if unit == '*' then
    return ''
  end
  return unit == '' and REQUESTS or unit
end

-- The field of a scope's sum of a unit.
local function sum_of(scope, unit)
  return (unit == '' or unit == REQUESTS) and 'L' .. scope or 'L' .. scope .. '\0' .. unit
end

-- The rules of a path that a task takes anything of, each with what it takes.
local function counted(path, ticket)
  local number, all = number_of(ticket), true
  for i = 1, #path do
    local r = path[i]
    r.cost = number or amount_of(ticket, r.unit)
    all = all and r.cost > 0
  end
  if all then
    return path
  end
  local some = {}
  for i = 1, #path do
    some[#some + 1] = path[i].cost > 0 and path[i] or nil
  end
  return some
end

-- The place of a scope among others: priority and stamp, ten bytes. A score that no priority has
-- would become the rank of another one.
local function rank_of(score, stamp)
  local band = floor(score / BAND) + LOWEST
  if not (band >= 0 and band < 2 * LOWEST) then
    error('a score is damaged')
  end
  return sub(pack(band), 5) .. pack(stamp)
end

-- The numbers of a path's rules, and the weight that the scope has under each where it
-- is said: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

local function seat_of(name, rank, scope)
  return name .. '\0' .. rank .. scope
end

-- The two numbers of a rank: of the priority, less first, and the stamp.
local function numbers_of(rank)
  local a, b, c = byte(rank, 1, 3)
  return (a * 256 + b) * 256 + c, unpack7(rank, 4)
end

-- The rule, rank and scope of a seat.
local function parts_of(seat)
  local zero = string.find(seat, '\0', 1, true)
  return sub(seat, 1, zero - 1), sub(seat, zero + 1, zero + 10), sub(seat, zero + 11)
end

-- The first seat of a rule's round after another.
local function seat_after(name, after)
  local from = after or name .. '\0'
  return call('ZRANGEBYLEX', round, '(' .. from, '(' .. name .. '\1', 'LIMIT', '0', '1')[1]
end

-- Keeps what waits at least us µs more, and until its own queue brings it back after that: the
-- safety net is a twentieth later than what is expected. Whether it had to.
local function keep_waiting(us, ...)
  local had_to = false
  us = us + us / 20
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
      had_to = true
    end
  end
  return had_to
end
-- The place of a task in its line by its lane. It needs now, pack, the numbers and lines.lua.
-- Source: docs/turns.md#lanes
--
-- Start-time fair queueing inside a line: a lane's next task has its place a stride behind that of
-- its last one, and never before the first task in line, which stands for the virtual time. A
-- task without a lane goes to the end, and the next of every lane behind it.
-- Q<scope> keeps these places as long as the line is not empty and somebody has named a lane: seven
-- bytes, the next place, and the lane with a zero byte after it. '' is the place that no lane of
-- the same priority is before.
--
-- Below FRONT stand those who came back to the front: they do not stand for the virtual time. Of
-- more than LANES lanes that have tasks in line the others count as none.
local FRONT = MIDDLE / 2

-- The priority of a task, and its stride and lane where it has one: "0" or "-1:6:low".
local function priority_of(text)
  local priority, stride, lane = string.match(text, '^([^:]*):?([^:]*):?(.*)$')
  return tonumber(priority), tonumber(stride) or 1, lane
end

local function lane_key(band, name)
  return whole(band + 0) .. ':' .. name -- no priority is -0
end

-- The next places of a line's lanes, by lane_key.
local function read_lanes(text)
  local lanes, from = {}, 1
  while text and from < #text do
    local place, zero = unpack7(text, from) - SCORES, string.find(text, '\0', from + 7, true)
    lanes[lane_key(floor(place / BAND) * BAND, sub(text, from + 7, zero - 1))] = place
    from = zero + 1
  end
  return lanes
end

local function lanes_text(lanes)
  local text = ''
  for key, place in pairs(lanes) do
    text = text .. pack(place + SCORES) .. string.match(key, ':(.*)$') .. '\0'
  end
  return text
end

local place_in_lane, take_place
do
  local LANES = 32

  -- Whether a lane has a place of its own. Those whose next place is their turn need none.
  local function has_room(lanes, band, lane, first)
    local many, all = 0, lane_key(band, '')
    for key, place in pairs(lanes) do
      if key ~= all and place >= band and place <= (first or band) then
        lanes[key] = nil
      else
        many = many + 1
      end
    end
    return lanes[lane_key(band, lane)] ~= nil or many + 1 < LANES
  end

  -- The place of a lane's next task, where `first` is the first of its priority in line, if any: nil
  -- for the end of the line.
  function place_in_lane(lanes, band, lane, first)
    local least = lanes[lane_key(band, '')]
    if not least or not has_room(lanes, band, lane, first) then
      return nil
    end
    least = max(least, first and first + 1 or place_after(nil, band, now))
    return min(max(least, lanes[lane_key(band, lane)] or least), band + BAND - 1)
  end

  -- Notes where lanes go on behind a task that has got its place.
  function take_place(lanes, band, lane, stride, place)
    local all = lane_key(band, '')
    if lane ~= '' and has_room(lanes, band, lane) then
      lanes[all] = lanes[all] or place
      lanes[lane_key(band, lane)] = min(place + stride, band + BAND - 1)
    elseif lanes[all] then
      lanes[all] = min(place + 1, band + BAND - 1)
    end
  end
end

-- The place of a task behind the last of its group that was parked, if any: it came after that.
local function behind_parked(score, last, band)
  return last and max(score, min(band + tonumber(last) + 1, band + BAND - 1)) or score
end
-- The group of a task: what its name begins with, up to and with the first slash; '' where it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end
-- Which place a scope has among others, by what they and it have had. It needs call, now, at,
-- round, pack and the numbers. Source: docs/turns.md#shares
--
-- Each level of a path that has rules has a virtual time. The names right below it, its
-- nodes, have slots in that time, each node one after another: a slot is SLOT / weight
-- long for each unit. A scope in line holds a slot of its node at each level, and the
-- beginning of that is its tag there: the stamp of its seat while that is with a rule of
-- the level. All are kept in `at`:
--   V<level>  the virtual time: the highest tag that had its turn; none where nobody waits
--             below the level
--   F<node>   where the node's next slot begins
--   T<scope>  the tags of a scope in line, where several levels have rules: seven bytes for
--             each level from the provider down, zero where there are no rules. Where it has
--             places, one more byte: 1 for the second level, 2 for the third, 4, and so on
--   "         how many nodes were noted since some were last forgotten
-- The nodes of lines that were emptied are noted in `round`, until the time has passed their
-- next slots: ", 0, three zeros, when, node. Of all scopes that ever waited they would be as
-- many as those.
-- Where a level below the first has weights, each of its scopes in line has a place in the
-- round of the level too, whatever rule it waits for: level, 0, three zeros, tag, scope.
local SLOT, LATEST, PAST = 100000, 9007199254740991, '"'

-- Fields of `at` as they will be, false for none, and which of them are to be written; and
-- members of `round` that come or, false, go.
local held, noted, comes = {}, {}, {}

-- Commands read and write so many fields at a time.
local MANY = 500

-- Reads fields that are not known yet.
local function read_at(fields)
  local unknown = {}
  for i = 1, #fields do
    if held[fields[i]] == nil then
      unknown[#unknown + 1] = fields[i]
    end
  end
  for i = 0, #unknown - 1, MANY do
    local values = call('HMGET', at, unpack(unknown, i + 1, min(#unknown, i + MANY)))
    for j = 1, #values do
      held[unknown[i + j]] = values[j]
    end
  end
end

local function number_at(field)
  return tonumber(held[field] or 0)
end

-- Notes what a field will be, false for none.
local function note(field, value)
  held[field], noted[field] = value, true
end

-- Notes a time; the highest of all is kept, for levels that have none.
local function note_time(field, value)
  note(field, value)
  if value > number_at('#') then
    note('#', value)
  end
end

-- Writes what was noted of members. They come before others go: a key that is there stays,
-- with its TTL.
local function write_round()
  local come, go = {}, {}
  for member, is in pairs(comes) do
    if is then
      come[#come + 1], come[#come + 2] = '0', member
    else
      go[#go + 1] = member
    end
  end
  comes = {}
  for i = 1, #come, MANY do
    call('ZADD', round, unpack(come, i, min(#come, i + MANY - 1)))
  end
  for i = 1, #go, MANY do
    call('ZREM', round, unpack(go, i, min(#go, i + MANY - 1)))
  end
end

local function write_at()
  local set, gone = {}, {}
  for field in pairs(noted) do
    local value = held[field]
    if value then
      set[#set + 1], set[#set + 2] = field, type(value) == 'number' and whole(value) or value
    else
      gone[#gone + 1] = field
    end
  end
  noted = {}
  for i = 1, #set, MANY do
    call('HSET', at, unpack(set, i, min(#set, i + MANY - 1)))
  end
  for i = 1, #gone, MANY do
    call('HDEL', at, unpack(gone, i, min(#gone, i + MANY - 1)))
  end
end

local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The rules of a path that have units to share: pauses have none.
local function names_of(path)
  local names = {}
  for _, r in ipairs(path) do
    names[#names + 1] = r.kind ~= 'P' and r.name or nil
  end
  return names
end

-- The levels of a path that have rules, the provider's first.
local function levels_of(scope, names, weights)
  local shares, path = { scope = scope }, scope .. '/'
  for i = 1, #names do
    local level = level_of(names[i])
    if #shares == 0 or shares[#shares].level ~= level then
      local _, depth = string.gsub(level, '/', '')
      local weight = tonumber(weights[i]) or 0
      -- the name below the level: "/a" of "/a/x", and "/a/x/" where the scope is the level itself
      local ends = string.find(path, '/', #level + 2, true) or #path + 1
      shares[#shares + 1] = { level = level, node = sub(path, 1, ends - 1), depth = depth,
        placed = weight > 0 and #shares > 0, weight = weight > 0 and weight or 1 }
    end
  end
  return shares
end

local function place_at(level, tag, scope)
  return level .. '\0\0\0\0' .. pack(tag) .. scope
end

local read_slots
do
  -- The places that a scope has, as its tags say.
  local function places_had(tags, scope)
    local had, bits = {}, #tags % 7 == 1 and byte(tags, #tags) or 0
    for depth = 1, 7 do
      if bits % 2 == 1 then
        local level = string.match(scope, '^' .. string.rep('/[^/]*', depth))
        had[place_at(level, unpack7(tags, 7 * depth + 1), scope)] = true
      end
      bits = floor(bits / 2)
    end
    return had
  end

  -- The fields that the slots of a path's levels are read from, behind others.
  local function slot_fields(shares, scope, fields)
    fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = '#', PAST, 'T' .. scope
    for _, s in ipairs(shares) do
      fields[#fields + 1], fields[#fields + 2] = 'V' .. s.level, 'F' .. s.node
    end
    return fields
  end

  -- Reads the slots and, where several levels have rules, the tags, with other fields. Where
  -- a level has no time yet it begins with the highest stamp that anybody has.
  function read_slots(shares, others)
    if shares.had then
      return
    end
    local scope = shares.scope
    read_at(slot_fields(shares, scope, others or {}))
    local tags = held['T' .. scope] or ''
    shares.had = places_had(tags, scope)
    for _, s in ipairs(shares) do
      held['V' .. s.level] = held['V' .. s.level] or max(1, number_at('#'))
      if not s.tag and #tags >= 7 * s.depth + 7 then
        local tag = unpack7(tags, 7 * s.depth + 1)
        s.tag = tag > 0 and tag or nil
      end
    end
  end
end

-- What a path has of each level, for one who has a seat with the rule of a name. Where only
-- one level has rules, the stamp is the tag, and nothing is read for it.
local function shares_of(shares, name, stamp, others)
  local pause = name and (name == NO_RULE or sub(name, -6) == ':!stop')
  if name and #shares == 1 and (pause or level_of(name) == shares[1].level) then
    shares[1].tag = stamp
  else
    read_slots(shares, others)
  end
  return shares
end

-- Puts a node's next slot off by so many units, or on by those that nobody had a turn for,
-- which are below zero.
local function put_off(s, units)
  local length = max(1, floor(SLOT * math.abs(units) / s.weight + 0.5))
  local slot = number_at('F' .. s.node) + (units < 0 and -length or length)
  note_time('F' .. s.node, max(0, min(LATEST, slot)))
end

-- Takes the next slot of the node. The virtual time is the earliest: nobody saves up.
local function take_slot(s)
  local time = number_at('V' .. s.level)
  s.tag = max(time, number_at('F' .. s.node))
  held['F' .. s.node] = s.tag
  note_time('V' .. s.level, time)
  put_off(s, 1)
end

local function take_slots(shares)
  read_slots(shares)
  for _, s in ipairs(shares) do
    take_slot(s)
  end
end

-- The scope's tag in the rounds of a level, of the first one for a rule that it has not.
local function tag_at(shares, name)
  local level, its = level_of(name), shares[1]
  for _, s in ipairs(shares) do
    its = s.level == level and s or its
  end
  if not its.tag then
    read_slots(shares)
    take_slot(its)
  end
  return its.tag
end

-- No turn counts for more: units may be bytes, and virtual times are to last.
local MOST_OF_A_TURN = 10000

-- The units that a turn counts for at a level: the most that the task takes of any rule there.
local function units_at(level, path)
  local units = 1
  for i = 1, #path do
    if level_of(path[i].name) == level then
      units = max(units, min(path[i].cost, MOST_OF_A_TURN))
    end
  end
  return units
end

-- Notes a turn of a task that has met the rules of a path: the time comes to it. A slot is
-- for one unit, and the rest is paid now.
local function had_turn(shares, path)
  read_slots(shares)
  for _, s in ipairs(shares) do
    note_time('V' .. s.level, max(number_at('V' .. s.level), s.tag or 0))
    local units = units_at(s.level, path)
    if units > 1 then
      put_off(s, units - 1)
    end
  end
end

-- The level that a node is below: of "/a/" it is "/a", of "/a" and "/" the provider.
local function level_above(node)
  return string.match(node, '^(.*)/')
end

local function past_at(node)
  return PAST .. '\0\0\0\0' .. pack(now) .. node
end

-- Notes nodes of a line that was emptied, to be forgotten when the time has passed their
-- slots, and forgets all of rules and levels that nobody waits below. It needs the lines that wait
-- under each of the scope's rules, and its seat, which goes with this: without one there may
-- be no key.
local function remember(shares, names, seat)
  local waits = {}
  for _, name in ipairs(names) do
    local level = level_of(name)
    waits[level] = waits[level] or seat and number_at('N' .. name) > 0
    if number_at('N' .. name) == 0 then
      note('N' .. name, false)
      note('U' .. name, false)
    end
  end
  for _, s in ipairs(shares) do
    if not waits[s.level] then
      note('V' .. s.level, false)
    end
    if waits[s.level] and number_at('F' .. s.node) > number_at('V' .. s.level) then
      comes[past_at(s.node)] = true
      note(PAST, number_at(PAST) + 1)
    else
      note('F' .. s.node, false)
    end
  end
end

-- What T<scope> says of a scope in line, and its places.
local function tags_text(shares)
  local text, depth, bits, places = '', 0, 0, {}
  for _, s in ipairs(shares) do
    text = text .. string.rep(pack(0), s.depth - depth) .. pack(s.tag or 0)
    depth = s.depth + 1
    if s.placed and s.tag then
      bits = bits + 2 ^ (s.depth - 1)
      places[place_at(s.level, s.tag, shares.scope)] = true
    end
  end
  return bits > 0 and text .. char(bits) or text, places
end

-- Notes the tags of a scope and its places in the rounds of its levels, none where its line
-- is empty.
local function save_shares(shares, empty)
  if not shares.had then
    return -- they are as they were
  end
  local text, places = false, {}
  if not empty and #shares > 1 then
    text, places = tags_text(shares)
  end
  for place in pairs(shares.had) do
    if not places[place] then
      comes[place] = false
    end
  end
  for place in pairs(places) do
    if not shares.had[place] then
      comes[place] = true
    end
  end
  shares.had = places
  local scope = shares.scope
  if text ~= held['T' .. scope] then
    note('T' .. scope, text)
  end
end
-- The rule of a path that a task waits for, as its number in it, and when to look at
-- it, nil where it can't tell: one that can't, or the one that alone would admit the
-- task last. Whatever comes free of any other, it can't start before. That need not be
-- the one that asked for the start: a window may only be in the way of the moment that
-- others have put it off to.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return i, nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return last or max(1, binding), at or start
end
-- Whether a clock says when a rule will admit more, or a pause is over.
local function can_tell(r)
  if r.kind == 'P' then
    return r.ends > now
  end
  return r.kind ~= 'C'
end

-- When the `units` before it and then the rule's cost will have been admitted, as
-- far as a clock can tell; nil where it can't. An estimate: nothing is decided by it.
local function after_units(r, now, units)
  if r.kind == 'P' then
    return max(now, r.ends)
  end
  if r.kind == 'K' then
    return algorithms.K.after(r, now, units)
  end
  local whole_windows, t = 0, nil
  local field = r.kind == 'T' and 'x' or r.kind == 'S' and 'total' or r.kind == 'F' and 'count'
  if not field then
    return now
  elseif r.kind == 'T' then
    units = units * r.q
  elseif r.cap > 0 then
    whole_windows = floor(units / r.cap)
    units = units - whole_windows * r.cap
  end
  local was = r[field]
  -- A bucket that has been full for a while is no fuller than full.
  r[field] = (r.kind == 'T' and max(was, (now - r.at) * r.p) or was) + units
  t = algorithms[r.kind].fit(r, now)
  r[field] = was
  return t and t + whole_windows * (r.per or 0)
end

-- The units that other lines are given while one is given so many: an equal share each,
-- for one of weight 1.
local function turns_of(units, lines, weight)
  return ceil(units * max(0, lines) / (weight > 0 and weight or 1))
end
-- Has the waiting tasks of some levels looked at now: something of their rules has become free, or has been
-- changed. It needs sub and whole; names are those of the rules.
-- Source: docs/turns.md#the-tree
local function freed(schedule, meta, names, now)
  if #names == 0 or redis.call('EXISTS', schedule) == 0 then
    return
  elseif sub(schedule, -4) == '!due' then
    for i = 1, #names do
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), names[i])
    end
    return
  end
  local fields = {}
  for i = 1, #names do
    fields[i] = 'n' .. string.match(names[i], '^[^:]*')
  end
  local nodes = redis.call('HMGET', meta, unpack(fields))
  for i = 1, #fields do
    for sig in string.gmatch(nodes[i] or '', '\n([^ ]*)') do -- the record of a node: see tree.lua
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), sub(fields[i], 2) .. '\0' .. sig)
    end
  end
end

-- The names of rules 1 to n, whose provider's keys begin with so many bytes.
local function names_of_rules(n, length)
  local names = {}
  for i = 1, n do
    names[i] = sub(KEYS[i], length + 1)
  end
  return names
end

-- So many on their way are not added up for one decision: whoever comes besides
-- waits for a look, which adds them up once for many.
local CROWD = 200

local rules = read_rules()

-- The name of the round of those who wait for a rule of the path, or for a pause.
local function round_of(i)
  return i <= n and rule_name(KEYS[i]) or rules[i].name
end

-- When the task's line is looked at, whose first may wait for what the task does not: for a
-- rule that it takes nothing of, for an API's limit to grow, or for a pause that was forgotten.
local line_look

local function line_waits()
  local seat = call('HGET', at, 'S' .. scope)
  local look = seat and tonumber(call('ZSCORE', due, (parts_of(seat))) or nil)
  line_look = look and look + LATE > now and look or nil
  return look
end

-- The rule, of those on the path, that others wait for: they go first. A line stays in
-- order, whatever its first waits for.
local function waited_for()
  local late
  if left_out ~= '' then
    late = line_waits() and 1
    if line_look then
      return 1
    end
  end
  for i = 1, #rules do
    local look = call('ZSCORE', due, round_of(i))
    if look and look + LATE > now then
      return i
    end
    late = late or look and i
  end
  if heeds and left_out == '' then
    late = line_waits() and 1 or late
    if line_look then
      return 1
    end
  end
  late = late or call('HLEN', out_key) > CROWD and 1 or nil
  local beat = late and call('HGET', at, '@')
  return beat and beat + LATE > now and late or nil
end

-- Sets aside, in rules alone, what released tasks that are on their way will take.
-- A rule counts those of the scopes under its own level. Returns when the first of
-- them will have been on its way for too long; nil when there are none.
local function reserve(rules)
  local overdue
  local fields = call('HGETALL', out_key)
  for f = 1, #fields, 2 do
    local zero = string.find(fields[f], '\0', 1, true)
    local whose, its = sub(fields[f], 1, zero - 1) .. '/', sub(fields[f], zero + 1)
    local late = unpack7(fields[f + 1], 1) + STALE
    if late > now then
      for i = 1, n do
        local r = rules[i]
        local level = string.match(rule_name(KEYS[i]), '^[^:]*') .. '/'
        local cost = sub(whose, 1, #level) == level and cost_of(its, unit_of(ARGV[base + 2 * i])) or 0
        if cost > 0 then
          local own = r.cost
          r.cost, overdue = cost, min(overdue or late, late)
          local t = algorithms[r.kind].fit(r, now)
          if t then
            algorithms[r.kind].charge(r, now, t)
          end
          r.cost = own
        end
      end
    end
  end
  return overdue
end

-- The levels of the scope that have rules.
local function levels()
  local names, weights = {}, {}
  for depth, weight in path_numbers(ranks) do
    names[#names + 1] = string.match(scope, '^' .. string.rep('/[^/]*', tonumber(depth))) .. ':'
    weights[#weights + 1] = weight
  end
  return levels_of(scope, names, weights)
end

-- The names of the scope's rules: those of the path, and others.
local function rule_names()
  local names = {}
  for i = 1, n do
    names[i] = rule_name(KEYS[i])
  end
  for name in string.gmatch(left_out, '([^%z\1]+)%Z*') do
    names[#names + 1] = name
  end
  return names
end

-- The sums of the scope: its seat, its lanes, the requests in its line, for each rule the units and
-- the lines that wait and the units of its own line, and the lines of its other rules. The
-- slots are read with them for one that opens or closes its line.
local function sums(shares)
  local fields = { 'S' .. scope, 'L' .. scope, 'Q' .. scope }
  for i, name in ipairs(rule_names()) do
    if i <= n then
      fields[#fields + 1], fields[#fields + 2] = 'U' .. name, sum_of(scope, unit_of(ARGV[base + 2 * i]))
    end
    fields[#fields + 1] = 'N' .. name
  end
  if shares then
    read_slots(shares, fields)
  else
    read_at(fields)
  end
end

-- Counts the task into the line (1) or out of it (-1), and lines (1, 0, -1).
local function count(sign, lines)
  local done = {} -- rules may count the same unit
  local function add(field, k)
    if not done[field] then
      done[field] = true
      note(field, max(0, number_at(field) + k))
    end
  end
  add('L' .. scope, sign * cost_of(ticket, REQUESTS))
  for i, name in ipairs(rule_names()) do
    local own = i <= n and sum_of(scope, unit_of(ARGV[base + 2 * i]))
    if own then
      local units = sign * tonumber(ARGV[base + 2 * i + 1])
      add('U' .. name, units)
      add(own, units)
    end
    add('N' .. name, lines)
  end
end

-- The rules of the path and what the task costs under each, as had_turn takes them.
local function path_costs()
  local path = {}
  for i = 1, n do
    path[i] = { name = rule_name(KEYS[i]), cost = tonumber(ARGV[base + 2 * i + 1]) }
  end
  return path
end

-- Takes the task out of its line, if it stands there.
local function leave()
  if call('ZREM', line, ticket) == 0 then
    return
  end
  local shares = call('ZCARD', line) == 0 and levels()
  sums(shares)
  count(-1, shares and -1 or 0)
  if shares then
    local seat = held['S' .. scope]
    if seat then
      local name, rank = parts_of(seat)
      shares_of(shares, name, unpack7(rank, 4))
      comes[seat] = false
    end
    had_turn(shares, path_costs())
    remember(shares, rule_names(), seat)
    save_shares(shares, true)
    note('S' .. scope, false)
    note('L' .. scope, false)
    note('Q' .. scope, false)
    for i = 1, n do
      note(sum_of(scope, unit_of(ARGV[base + 2 * i])), false)
    end
    for unit in string.gmatch(left_out, '\1(%Z+)') do
      note(sum_of(scope, unit), false)
    end
  end
  write_round()
  write_at()
end

-- How long until the task's turn, with so much of its own line before it. Under a
-- rule that several lines share each of them has a turn in between.
local function expected_in(rules, share)
  local latest, known, weights = line_look or now, line_look and true, {}
  for depth, weight in path_numbers(ranks) do
    weights[tonumber(depth)] = tonumber(weight)
  end
  for i = 1, #rules do
    local u, lines, own = 0, 0, 0
    local name = round_of(i)
    if i <= n then
      u, lines, own = number_at('U' .. name), number_at('N' .. name), number_at(sum_of(scope, unit_of(ARGV[base + 2 * i])))
    end
    local _, depth = string.gsub(level_of(name), '/', '')
    local before = floor(own * share)
    local turns = turns_of(before + rules[i].cost, lines - (before > 0 and 1 or 0), weights[depth] or 0)
    local others = min(max(0, u - before), turns)
    local t = after_units(rules[i], now, before + others)
    if not t then
      return -1
    end
    known = known or can_tell(rules[i])
    latest = max(latest, t)
  end
  return known and latest - now or -1
end

-- Takes the task from those who are out, or parked.
local function arrive()
  if on_way then
    call('HDEL', out_key, on_way)
  end
  if had_place then
    call('ZREM', parked, scope .. '\0' .. ticket)
  end
end

local score_for
do
  -- Where one goes whose turn had come: back to its place, if it had one, or else to the front, which
  -- no place at the end ever is, by the start that it could not use. So those who go back together
  -- stand as they stood, whichever comes first.
  local function own_place(band)
    local score = was_out and #was_out > 21 and unpack7(was_out, 8) - SCORES
    if score and score > band and score < band + BAND and score ~= band + MIDDLE then -- that is one that went straight
      return score
    end
    local start = string.match(ARGV[5], ' (%d+)')
    return band + floor((start and tonumber(start) or now) / 1000) % FRONT
  end

  -- Puts the task in line: at its end or where its lane goes on, behind those of its group who are
  -- parked, or, with its turn come, where that was.
  function score_for(mine, empty)
    local priority, stride, lane = priority_of(rank)
    local band = -priority * BAND
    if mine then
      return own_place(band)
    end
    local from, to = whole(band), '(' .. whole(band + BAND)
    local text, score = not empty and held['Q' .. scope] or nil, nil
    local lanes = read_lanes(text)
    if lane ~= '' and text then
      local first = call('ZRANGEBYSCORE', line, whole(band + FRONT), to, 'WITHSCORES', 'LIMIT', '0', '1')[2]
      score = place_in_lane(lanes, band, lane, tonumber(first))
    end
    if not score then
      local last = call('ZREVRANGEBYSCORE', line, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]
      score = place_after(tonumber(last), band, now)
    end
    score = behind_parked(score, there >= 6 and call('ZSCORE', parked, scope .. '\0:' .. group_of(ticket)), band)
    if text or lane ~= '' then
      take_place(lanes, band, lane, stride, score)
      note('Q' .. scope, lanes_text(lanes))
    end
    return score
  end
end

-- The scope's tag at the level of a rule, that it takes slots for where it has none.
local function tag_for(shares, name)
  local seat = held['S' .. scope]
  if seat then
    local its, rank = parts_of(seat)
    shares_of(shares, its, unpack7(rank, 4))
  else
    take_slots(shares)
  end
  return tag_at(shares, name)
end

-- Whether a task that is first may wait in the round of a name.
local function meets(rules, name)
  if #rules == 0 then
    return name ~= NO_RULE
  end
  for i = 1, #rules do
    if round_of(i) == name then
      return true
    end
  end
  return false
end

-- Gives the scope a seat, or a better one, with a rule of the task's own; returns in how many
-- µs to look at it.
local FOREVER, overdue = 9007199254740991, nil
local function sit(rules, shares, score, held_up, start, binding)
  local had, name, stamp = held['S' .. scope], NO_RULE, nil
  if had then
    local rank
    name, rank = parts_of(had)
    stamp = unpack7(rank, 4)
  end
  if not meets(rules, name) then
    name = round_of(held_up or overdue and binding or waits_for(rules, start, binding))
    stamp = tag_for(shares, name)
    save_shares(shares)
  end
  local seat = seat_of(name, rank_of(score, stamp), scope)
  comes[seat] = true
  if had and had ~= seat then
    comes[had] = false
  end
  note('S' .. scope, seat)
  write_round()
  write_at()
  if seat_after(name) ~= seat then
    return -1
  end
  local look = held_up and now or min(max(now, start - lead), overdue or FOREVER, heeds and now + TOLD_LOOK or FOREVER)
  call('ZADD', due, 'LT', whole(look), name)
  keep_waiting(start - now, due, round, at)
  return look - now
end

-- Has a round looked at whose time to look was lost, as a key is that somebody deletes or a
-- server evicts: without it nobody is woken, and tasks come back as this one has. And puts a
-- seat where it belongs that a worker of an earlier version took to a round by another's stamp.
local function heal(shares)
  local seat = held['S' .. scope]
  local name, rank = parts_of(seat)
  local band, stamp = numbers_of(rank)
  local tag = stamp
  if name ~= NO_RULE and #shares > 1 then
    tag = tag_for(shares, name)
    save_shares(shares)
  end
  if tag < stamp then
    comes[seat] = false
    seat = seat_of(name, rank_of((band - LOWEST) * BAND, tag), scope)
    comes[seat] = true
    note('S' .. scope, seat)
  end
  write_round()
  write_at()
  if call('ZSCORE', due, name) then
    return -1
  end
  call('ZADD', round, '0', seat)
  call('ZADD', due, whole(now), name)
  keep_waiting(0, round, due)
  return 0
end

local function join(rules, mine, held_up, start, binding)
  local stood, card, shares = call('ZSCORE', line, ticket), call('ZCARD', line), levels()
  sums((card == 0 or stood and #shares > 1) and shares)
  local score = stood and tonumber(stood) or parked_before and had_place or score_for(mine, card == 0)
  if not stood then
    call('ZADD', line, whole(score), ticket)
  end
  arrive()
  local place = call('ZRANK', line, ticket)
  local others = stood and card - 1 or card
  local expected = expected_in(rules, others > 0 and place / others or 0)
  local keeps = keep_waiting(max(0, expected), line)
  if not stood then
    count(1, card == 0 and 1 or 0)
    if left_out ~= '' then
      note(MIXED, '1')
    end
  end
  local look, seat = -1, held['S' .. scope]
  local name = seat and parts_of(seat) or NO_RULE
  local misplaced = name ~= NO_RULE and not meets(rules, name)
  if not seat or place == 0 and (not stood or misplaced) then
    look = sit(rules, shares, score, held_up, start, binding)
  elseif stood then
    look = heal(shares)
    if keeps then -- what all lines share lives no shorter, where nobody looks
      keep_waiting(max(0, expected), due, round, at)
    end
  end
  write_at()
  if mine then
    look = 0
    freed(due, at, names_of_rules(n, #provider), now) -- what was set aside for it may do for others
  end
  return place, expected, look
end

-- Adds the three numbers of a turn to a general reply.
local function with_turn(reply, place, expected, look)
  local last = #reply
  reply[last + 1], reply[last + 2], reply[last + 3] = place, expected, look
  return reply
end

local start, binding, sure = joint_start(rules, now + from)
local held_up = parked_before and 1 or nil
if not quiet and not held_up then
  held_up = not mine and waited_for() or nil
  overdue = not mine and not held_up and reserve(rules) or nil
  if overdue then
    start, binding, sure = joint_start(rules, now + from)
    binding = waits_for(rules, start, binding)
    rules = read_rules()
  end
end

if sure and not held_up and start - now <= ahead and again < '2' then
  local reply = grant(rules, start, binding)
  if reply then
    arrive()
    if not quiet and not released then
      leave()
    end
    return with_turn(reply, -1, 0, quiet and -1 or 0)
  end
  rules = read_rules()
end

-- What this attempt has been, as in decide.
local before = call('GET', attempt)
if before and sub(before, -#member) ~= member then
  before = nil
end
if before and #before == 7 * (n + 1) + #member then
  arrive()
  return with_turn(granted_before(rules, before), -1, 0, -1)
end
if from > 0 then
  start, binding = joint_start(rules, now)
end
mend(rules)
local reply = denied(rules, now, start, held_up or binding)
if before then
  arrive()
  return with_turn(reply, -1, -1, -1)
end
return with_turn(reply, join(rules, mine, held_up, start, binding))
