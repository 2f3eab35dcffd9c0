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

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may pass a number instead; production passes "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes: one by plain arithmetic, where "%" is an instruction and
-- math.floor a call, and several at once by Redis's struct library. '>BI7' is a byte and a number. On a
-- server without that library, such as miniredis, they are packed here.
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

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local i, numbers = 0, { ... }
    return (string.gsub(sub(format, 2), '[BI]7?', function(kind)
      i = i + 1
      return kind == 'B' and char(numbers[i]) or pack(numbers[i])
    end))
  end,
  unpack = function(format, text)
    local out, at = {}, 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      for i = at, last do
        n = n * 256 + byte(text, i)
      end
      out[#out + 1], at = n, last + 1
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
-- A rate rule's state is one string whose first byte is its layout, so that a rule
-- whose algorithm has changed still finds the units that were spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
--   O till per total head last tail count ahead log, as F: fixed window that opens on use
-- All are numbers of seven bytes, except the log, and `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
-- when the state was written. A start that is further ahead now was written by a clock that
-- has since stepped back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, OPENED, HELD, CALENDAR = 84, 83, 70, 79, 67, 75

-- The first byte of the record of an attempt that was given back: no start begins with it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So the TTL is set to end LONGER after the state means
-- nothing any more, and kept while it ends at least LEAST and at most MOST after that.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

local call, format = redis.call, string.format
local member, ticket, again = ARGV[2], ARGV[4], sub(ARGV[5], 1, 1)
local n, base = #KEYS - 9, 5
local attempt, schedule, heap, meta = KEYS[n + 1], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local flight, overdue, upstream, parked = KEYS[n + 6], KEYS[n + 7], KEYS[n + 8], KEYS[n + 9]
local provider = sub(schedule, 1, -10)
local scope = sub(KEYS[n + 2], #provider + 1, -7)
local late = string.match(ARGV[5], '^.([LF]%d+)')

-- A calendar rule is stale if the clock is outside its boundaries. No decision is made by it, and
-- no task loses a turn or a place: the caller asks again with other boundaries.
for i = 1, n do
  local rule = ARGV[base + 2 * i]
  local from, to = 0, now + 1
  if byte(rule) == CALENDAR then
    from, to = unpacked('>I7I7', sub(rule, 9))
  end
  if now < from or now >= to then
    local out = { 0, 0, now, 10000, i }
    for j = 6, 5 * n + 5 do
      out[j] = 0
    end
    out[5 * i + 1], out[5 * i + 3] = 1, 10000
    out[5 * n + 6], out[5 * n + 7], out[5 * n + 8], out[5 * n + 9] = -1, -1, -1, 0
    return out
  end
end

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
-- Whether the API has reported anything about the rules or a level of the call's own path: reports about other paths
-- do not matter. It needs call, n, upstream, provider, scope and reported.
if reported then
  local fields = {}
  for ends in string.gmatch(scope .. '/', '()/') do
    fields[#fields + 1] = 'P' .. sub(scope, 1, ends - 1)
  end
  for i = 1, n do
    fields[#fields + 1] = 'R' .. sub(KEYS[i], #provider + 1)
  end
  reported = false
  for _, v in ipairs(call('HMGET', upstream, unpack(fields))) do
    reported = reported or v
  end
end
local was_parked = parks and call('ZSCORE', parked, field)

if quiet and not value and not reported and not late and not was_parked and again < '2' then
-- The fast path, which most calls take: every rule was used recently under the
-- limits of this call, admits its cost now, and its key lives long enough. It is one
-- straight line without functions, since making one costs as much as evaluating a
-- rule. Every other call leaves it before anything is written, for the
-- general way below, which returns the same: a test runs both. It needs call, format,
-- member, attempt, n and base.
local out, states, places, passed = { now, 0, 0, 0 }, {}, { now }, 0
for i = 1, n do
  local key, rule, cost = KEYS[i], ARGV[base + 2 * i], ARGV[base + 2 * i + 1]
  cost = cost == '1' and 1 or tonumber(cost)
  local algorithm, one, two, three, four = unpacked('>BI7I7I7I7', rule)
  if sub(rule, 1, 1) == 'K' then
    break -- for the general way
  end
  local place, holds, state, remaining, reset, spare = now, nil, nil, nil, nil, nil
  local v = algorithm ~= HELD and call('GET', key)
  if algorithm == TOKEN then
    local p, q, cap, slack = one, two, three, four
    if byte(v or '') ~= TOKEN then
      break -- never used
    end
    local _, till, last, x, parts, since, low = unpacked('>BI7I7I7I7I7I7', v)
    local level = x - (now - last) * p
    if parts ~= q or p == 0 or cost > cap or last - now >= 250000 or level + slack * p + (cost - cap) * q > 0 then
      break -- its unit had other parts, or it does not admit the cost now
    end
    if level < 0 then
      level = 0
    end
    local notches = 0
    if last >= now then
      place, notches = last + 1, 1
    end
    if level < q then
      since, low = place, UNTOUCHED
    elseif level < low then
      low = level
    end
    level = level + cost * q
    holds = level - (place - now) * p
    if holds < 0 then
      holds, level = 0, (place - now) * p
    end
    state = packed('>BI7I7I7I7I7I7B', TOKEN, till, place, holds, q, since, low, notches)
    spare = till - now - level / p - slack
    remaining, reset = floor((cap * q - level - slack * p) / q), ceil(level / p + slack)
    if remaining < 0 then
      remaining = 0
    end
  elseif algorithm == SLIDING and (two == 0 or three == 0) then
    local cap, slack, layout, opens, length = one, four, FIXED, 0, three
    if three == 0 then
      layout, opens, length = OPENED, two, two - four / 2
    end
    if byte(v or '') ~= layout then
      break -- never used
    end
    local _, till, width, total, head, before, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    place = three == 0 and tail or tail * length
    local rest = place + opens - now
    if width ~= length or rest > two + three or rest <= slack or count + cost > cap then
      break -- its last window is not the current one, or does not admit the cost now
    elseif total > count and (three == 0 and head or head * three) + two + three <= now then
      break -- a window before it is over, and to be dropped
    end
    holds = count + cost
    state = packed('>BI7I7I7I7I7I7I7B', layout, till, width, total + cost, head, before, tail, holds, 0) .. sub(v, 52)
    spare = till - now - rest
    remaining, reset = cap - holds, rest
  elseif algorithm == SLIDING then
    local cap, per, grain = one, two, three
    if byte(v or '') ~= SLIDING then
      break -- never used
    end
    local _, till, width, total, head, before, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    local cell, gone = ceil(now / grain), floor((now - per) / grain)
    if width ~= grain or cost > cap or tail > cell or count == 0 then
      break -- in cells of another grain, or it does not admit the cost now
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
    holds = total + cost
    if holds > cap and tail > gone then
      break
    end
    local log = ''
    if tail <= gone then
      holds, head, before, count = cost, 0, 0, cost
    elseif tail == cell then
      log, count = sub(v, from), count + cost
    else
      log = sub(v, from)
      local steps = tail - before
      if log == '' then
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
      log = log .. char(count)
      before, count = tail, cost
    end
    state = packed('>BI7I7I7I7I7I7I7B', SLIDING, till, grain, holds, head, before, cell, count, 0) .. log
    place = cell * grain
    spare = till - place - per
    remaining, reset = cap - holds, place + per - now
  else
    local cap, lease = one, two
    local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
    local held = call('ZCOUNT', key, from, to)
    if held >= cap then
      break
    end
    local ends = now + lease
    local last = held > 0 and tonumber(call('ZREVRANGEBYSCORE', key, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
    place = 0
    remaining, reset = cap - held - 1, (ends > last and ends or last) - now
    state, spare = format('%.0f', ends), LEAST
  end
  if spare < LEAST or spare > MOST then
    break
  end
  local at = 3 * i
  out[at - 1], out[at], out[at + 1] = remaining, reset, place
  states[i], places[i + 1], passed = state, place, i
end
if passed == n then
  -- The record goes first: it is what makes the call repeatable.
  local record = packed('>' .. string.rep('I7', n + 1), unpack(places)) .. member
  local before = call('SET', attempt, record, 'PX', '30000', 'GET')
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
    return out
  end
  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
end
end

-- The general way.

local rank, ahead, near, lead = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+)')
ahead, near, lead = tonumber(ahead), tonumber(near), tonumber(lead)

-- Conversion of numbers to and from Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Whole numbers are converted to text by these formats alone, which keep every digit. %d takes a third of the time of
-- %.0f, but loses digits if the server's long has 32 bits.
local WHOLE, WHOLES = '%d', '%d %d %d %d %d'
if string.format(WHOLE, 4503599627370497) ~= '4503599627370497' then
  WHOLE, WHOLES = '%.0f', '%.0f %.0f %.0f %.0f %.0f'
end
local function whole(n)
  return string.format(WHOLE, n)
end

-- The TTL, in ms, of a key that means nothing any more us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- The rules of a call: each has a key, and two ARGV: the rule and its cost. A rule is a
-- letter and numbers of seven bytes each, as include/core/pack.lua writes them:
--   T token-bucket    p      q      cap    slack  most
--   S sliding-window  cap    per    grain  slack  most; fixed-window where per is 0,
--                     and where grain is 0 one that opens on use: its length with half of the slack is per
--   C concurrency     cap    lease  -      -      -
--   K calendar        cap    b0     b1     b2, and five more: slack, rollover, spread, a, b3; see
--                     include/algorithms/calendar.lua
-- The name of the unit that it counts may follow, if that is not requests, or "*": decisions get
-- the cost under each rule, and do not need the unit. p = 0 and cap = 0 suspend; slack < per, and
-- part of it in a sliding window. An API may raise a limit to `most` millionths of it, 0 for no
-- more than the limit. All times are whole microseconds.

-- Writes r's state, which means nothing any more after `lasts` µs. A call may write it twice: after its refunds, and
-- after its charges.
local function write(r, now, kind, state, lasts)
  lasts = ceil(lasts)
  local spare = r.till - now - lasts
  if spare >= LEAST and spare <= MOST then
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'KEEPTTL')
  else
    r.till = now + lasts + LONGER
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'PX', outlast(lasts + LONGER))
  end
end

-- How far the latest start of a state is ahead of the clock, and the steps of the clock that follow
-- from that. It is one table, since a chunk has few locals.
local stored = { known = {} }

-- The state of a rule. A call that needs many reads them at once.
function stored.get(key)
  local v = stored.known[key]
  if v == nil then
    return redis.call('GET', key)
  end
  return v
end

-- The byte `ahead` of the state.
function stored.ahead(now, latest)
  return char(min(255, max(0, ceil((latest - now) / 250000))))
end

-- By how many µs at least the clock has stepped back since the state was written; 0 for less than
-- a second, or less than `least`, for which the rule waits. With that subtracted, all times of the state
-- are, against the clock, no earlier than in truth, and no later than when the state was written.
function stored.stepped(now, latest, notches, least)
  local back = latest - notches * 250000 - now
  return back > max(1000000, least or 0) and back or 0
end

-- Calls visit(cell, units, entry, from, to, before) for each entry of a log of cells, oldest first,
-- until it returns true. A log is varints: units, then (cells since the one before, units) for each
-- next entry; head is the first cell. The entry begins at `entry` and its units at `from`, up to but
-- not including `to`; `before` is the cell before.
function stored.each(log, head, visit)
  if log == '' then
    return
  end
  local i = 1
  local function varint()
    local n, digit, b = 0, 1, byte(log, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(log, i)
    end
    i = i + 1
    return n + b * digit
  end
  local cell, before = head, nil
  while i <= #log do
    local entry = i
    cell = before and before + varint() or cell
    local from = i
    local units = varint()
    if visit(cell, units, entry, from, i, before) then
      return
    end
    before = cell
  end
end

-- The units of a state of another algorithm that still count under the rule: times and units by
-- turns, oldest first. A bucket knows no times: its units are the level as of its last decision,
-- which its rate has not drained. A fixed window counts at its end, or now. The
-- second result is by how many µs the clock has stepped back.
function stored.carried(v)
  local kind = byte(v, 1)
  if kind == TOKEN then
    local at = unpack7(v, 9)
    local back = stored.stepped(now, at, byte(v, 44))
    return { at - back, ceil(unpack7(v, 16) / unpack7(v, 23)) }, back
  elseif kind == CALENDAR then
    return { unpack7(v, 30), unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }, 0
  end
  local out, grain, tail = {}, unpack7(v, 9), unpack7(v, 37)
  local width = grain
  if kind == OPENED then -- its cells are beginnings, in µs, not ends
    grain, tail = 1, tail + width
  end
  local back = floor(stored.stepped(now, tail * grain - width, byte(v, 51)) / grain)
  local function add(cell, units)
    local t = (cell - back) * grain
    if kind ~= SLIDING then
      t = t - width > now and t - 1 or max(0, min(t - 1, now))
    end
    out[#out + 1], out[#out + 2] = t, units
  end
  stored.each(sub(v, 52), unpack7(v, 23) + (kind == OPENED and width or 0), add)
  add(tail, unpack7(v, 44))
  return out, back
end

-- The algorithms, by kind. Those that a call has no rule of are left out of its script, since
-- a short script spends most of its time on making functions. Each has
--   load(key, now, cost, a, b, c, d, member, whole, rule)  the current state of the rule; healed if
--                         it differs from what is stored, and stepped if the clock has
--                         stepped back since: then it must be stored, or each read would find
--                         the state as new as the first did
--   fit(r, t)             the first moment from t on at which it admits the cost, and
--                         true if it may be later; nil if unknown
--   charge(r, now, start) charges the cost at start, in r only; returns its place
--   refund(r, now, place) refunds it, in r only; returns the units that came back,
--                         and sets r.changed if anything did
--   save(r, now, start)   writes r
--   remaining(r, now)     units left
--   reset(r, now)         µs until it is as if unused; -1 if unknown
--   lasts(r, now)         µs until the state means nothing any more
-- Concurrency has no state but its places: it refunds at once and has no lasts.
local algorithms = {}
-- Keeps a key at least until it means nothing any more, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
-- token-bucket: at most cap + p/q * t units start in any interval of t µs. They also
-- arrive within that limit if their delays differ by up to slack µs.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains at p parts a µs. x is the level at
-- the decision `at`, which never repeats, so that it also identifies the grant. `low`
-- is the lowest level that any charge after `since` met: no grant since
-- then can have been refilled below it, so a refund up to `low` is exact.
do
  -- The highest level after a change of a limit: sums must stay exact.
  local MOST_PARTS = 4503599627370496

  -- How many µs, at most, a bucket waits for a clock that has stepped back.
  local TO_AND_FRO = 10000000

  -- The level at t, negative if the bucket has been full for a while.
  local function level(r, t)
    return r.x - (t - r.at) * r.p
  end

  -- x parts, of which q are a unit, converted to parts of this rule's own unit.
  local function convert(r, x, q, round)
    local rest = x % q
    return min(MOST_PARTS, (x - rest) / q * r.q + round(rest / q * r.q))
  end

  -- Drops the part of the level that a changed limit puts beyond full: after a limit was lowered,
  -- a request would wait until that part has drained at the new rate. Units granted ahead
  -- are kept on top. A correction of the rate by an API drops nothing, not even
  -- debts under another burst: `whole` is the rate without the correction.
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
      -- What the bucket would hold, had it existed at the time: no more than that is spent.
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
    local _, till, at, x, before, since, low = unpacked('>BI7I7I7I7I7I7', v)
    r.till, r.at, r.x, r.since, r.low = till, at, x, since, low
    if before ~= q and p > 0 then
      r.x = convert(r, r.x, before, ceil)
      r.low = r.low < UNTOUCHED and max(0, convert(r, r.low, before, floor) - 1) or r.low
      -- A bucket that was corrected before counted in finer parts of the same unit.
      clip(r, whole or before > q and before % q == 0 and p)
    end
    -- A clock that steps back and forth would fill the bucket each time that it steps forward. So the
    -- bucket waits for the clock, if that takes no longer than filling does.
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
    -- A corrected rate may be whole before the start comes, or be raised by then, and must not
    -- drain what is taken at the start: the level is kept as of the start.
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

  -- A bucket that has been full for less than slack is not yet as if unused.
  local function lasts(r, now)
    return max(0, level(r, now) / r.p + r.slack)
  end

  local function save(r, now)
    write(r, now, TOKEN, packed('>I7I7I7I7I7', r.at, r.x, r.q, r.since, r.low) .. stored.ahead(now, r.at), lasts(r, now))
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
-- sliding-window and fixed-window: never more than cap units in any window of `per` µs, in each
-- window of `grain` µs since the epoch, or in each window of `per` µs that opens on use.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves
-- `per` after the end of its cell: less than a grain late and never early, so
-- that per/grain + 1 cells are enough whatever the limit. Cells are numbered by
-- their ends. The last one (tail) is stored apart, since it grows most; `log` holds
-- the cells before it that have units, oldest first: see each in state.lua.
--
-- Fixed windows are cells with a per of 0. A fixed window begins with its first moment, whereas a
-- cell of a sliding window ends with its last. Only its own units count in it. The window
-- before is kept for as long, for a clock that steps back. The last `slack` µs of a
-- window admit nothing: a late start must not land in the next window.
--
-- A window that opens on use is a fixed window whose cell is its beginning, in µs: that of its first
-- start. It is `opens` µs long, half of its slack included. If a window was opened ahead of now, an
-- earlier start gets a window of its own only where that window ends before the other begins. Otherwise
-- the earlier start belongs to the window ahead, and waits for it to begin.
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

  -- When the window begins, of those that open on use, to which a start belongs.
  local function begin_of(r, t)
    local begins = r.total > 0 and r.tail + r.opens > t and r.tail or t
    stored.each(r.log, r.head, function(at)
      if at + r.opens > t then
        begins = at
        return true
      end
    end)
    return begins < t + r.opens and begins or t
  end

  -- The cell of a start.
  local function cell_of(r, t)
    if r.opens then
      return begin_of(r, t)
    end
    return r.per > 0 and ceil(t / r.grain) or floor(t / r.grain) + 1
  end

  -- When the fixed window ends to which a start belongs: later than that.
  local function end_of(r, t)
    return r.opens and begin_of(r, t) + r.opens or t - t % r.grain + r.grain
  end

  local function clear(r)
    r.total, r.head, r.last, r.tail, r.count, r.log = 0, 0, 0, 0, 0, ''
  end

  -- Adds units to a cell after all cells of the log.
  local function append(r, cell, units)
    if r.log == '' then
      r.head, r.log = cell, varint(units)
    else
      r.log = r.log .. varint(cell - r.last) .. varint(units)
    end
    r.last = cell
  end

  -- Adds units to a cell before the last cell of the log.
  local function insert(r, cell, units)
    stored.each(r.log, r.head, function(at, had, entry, from, to, before)
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

  -- Removes the units that have left the window.
  local function expire(r, now)
    local gone = floor((now - r.window) / r.grain)
    if r.tail <= gone then
      clear(r)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      stored.each(r.log, r.head, function(cell, units, _, from)
        if cell > gone then
          rest, head = sub(r.log, from), cell
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  -- The units of a state of another kind, or in other cells. A bucket does not know when its
  -- latest grant starts: within a second at most. Units that count as of now must be
  -- written, or else they would count as of now at each read.
  local function take_over(r, v, now)
    local units, back = stored.carried(v)
    local later = byte(v, 1) == TOKEN and 1000000 or 0
    for i = 1, #units, 2 do
      if units[i + 1] > 0 then
        local t = units[i] + later
        put(r, cell_of(r, min(t, r.per > 0 and now + FAR_AHEAD or now)), units[i + 1])
      end
    end
    r.healed = byte(v, 1) ~= SLIDING or r.per == 0 or back > 0
  end

  -- When the last cell begins.
  local function last_begins(r)
    return r.opens and r.tail or (r.tail - 1) * r.grain
  end

  -- The clock has stepped back by at least `cells` cells. All units of windows since the epoch then
  -- count in the current one.
  local function step_back(r, now, cells)
    local units = r.total
    r.healed, r.stepped = true, true
    if r.per == 0 and not r.opens then
      clear(r)
      return put(r, cell_of(r, now), units)
    end
    r.tail = r.tail - cells
    if r.log ~= '' then
      r.head, r.last = r.head - cells, r.last - cells
    end
  end

  local function load(key, now, cost, cap, per, grain, slack)
    local opens, width, layout = nil, grain, per > 0 and SLIDING or FIXED
    if grain == 0 then
      opens, width, layout = per, per - slack / 2, OPENED
      per, grain = 0, 1
    end
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain, slack = min(slack, (opens or grain) - 1),
      opens = opens, width = width, layout = layout, window = per > 0 and per or opens or grain, total = 0, head = 0, last = 0, tail = 0, count = 0, log = '', till = 0,
      found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= layout or unpack7(v, 9) ~= width then
      take_over(r, v, now)
      expire(r, now)
      return r
    end
    local _, till, _, total, head, last, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    r.till, r.total, r.head, r.last, r.tail, r.count, r.log = till, total, head, last, tail, count, sub(v, 52)
    local back = floor(stored.stepped(now, last_begins(r), byte(v, 51)) / grain)
    if back > 0 then
      step_back(r, now, back)
    end
    expire(r, now)
    return r
  end

  -- The moment by which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    stored.each(r.log, r.head, function(cell, units)
      need = need - units
      if need <= 0 then
        at = cell
        return true
      end
    end)
    return at * r.grain + r.per
  end

  -- The units that count together with those of a start at t: in a fixed window its own.
  local function held(r, t)
    if r.per > 0 then
      return r.total
    end
    local cell, units = cell_of(r, t), 0
    if cell == r.tail then
      return r.count
    end
    stored.each(r.log, r.head, function(at, had)
      units = units + (at == cell and had or 0)
    end)
    return units
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local need = held(r, t) + r.cost - r.cap
    if r.per > 0 then
      return need <= 0 and t or max(t, leave(r, need))
    end
    local ends = end_of(r, t)
    while need > 0 or ends - t <= r.slack do
      t = ends
      ends, need = end_of(r, t), held(r, t) + r.cost - r.cap
    end
    return max(t, ends - r.window)
  end

  local function charge(r, _, start)
    local cell = cell_of(r, start)
    put(r, cell, r.cost)
    return cell * r.grain
  end

  -- Takes units out of the cell that they were charged in.
  local function refund(r, _, place)
    local before, less, back = { log = r.log, head = r.head, tail = r.tail, count = r.count }, place / r.grain, 0
    if r.total == 0 or r.healed then
      return 0
    end
    local function keep(cell, units)
      if cell == ceil(less) then
        back = min(units, r.cost)
        units = units - back
      end
      if units > 0 then
        put(r, cell, units)
      end
    end
    clear(r)
    stored.each(before.log, before.head, keep)
    keep(before.tail, before.count)
    r.changed = back > 0
    return back
  end

  local function lasts(r, now)
    return r.total == 0 and 0 or max(0, r.tail * r.grain + (r.opens or r.per) - now)
  end

  local function save(r, now)
    write(r, now, r.layout, packed('>I7I7I7I7I7I7', r.width, r.total, r.head, r.last, r.tail, r.count)
      .. stored.ahead(now, last_begins(r)) .. r.log, lasts(r, now))
  end

  local function remaining(r, now)
    return max(0, r.cap - held(r, now))
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
-- concurrency: at most cap runs at once, each holding a place under its attempt
-- id until the place is released or its lease expires.
-- Source: docs/algorithms.md#concurrency
--
-- The state is a sorted set of attempt ids by the end of their lease.
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

  -- The end of one of the current leases, after skipping the `skip` that end first
  -- (ZRANGEBYSCORE) or last (ZREVRANGEBYSCORE). Nil if there are fewer: some places are only
  -- reserved.
  local function ends(command, key, a, b, skip)
    return tonumber(redis.call(command, key, a, b, 'WITHSCORES', 'LIMIT', whole(skip), 1)[2] or '')
  end

  -- A full rule has a free place once enough leases have ended to be below cap, unless they are
  -- renewed.
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
-- A period begins at b0, and the next one at b1; the one before began at a, and the next two
-- end at b2 and b3. These boundaries come from the caller, whose clock or memory may be wrong: if
-- the clock is not between b0 and b1, the rule is stale, and admits nothing until the caller
-- sends others.
--
-- The state is the latest period that has units and the one before it, each by the
-- last of its starts, as with fixed windows: whatever the boundaries are by now, none
-- of its units started later. `from` is no later than any start of the latest period, `since`
-- than any start of both. A start ahead may be in the next period while this one still
-- has room. `carry` is what was rolled over into the period before; the units rolled over into
-- the latest follow from it, so that late refunds roll over too. The
-- last `slack` µs of a period admit nothing. If the units that are left are spread, nothing
-- starts before `next`; `was` is `next` before the last charge.
do
  local EXACT = 9007199254740991

  -- How soon to check a stale rule again.
  local SOON = 10000

  -- units/of of a time, rounded up; no more than the time. All are whole.
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

  -- The units that the period before the latest has left over, once it has ended.
  local function left_over(r)
    if r.prior == 0 or r.prior >= r.b0 then
      return 0
    end
    return min(r.rollover, max(0, r.cap + min(r.carry, r.rollover) - r.before))
  end

  -- Begins a period: the latest becomes the one before; if it ended sooner than at `from`, the one
  -- before is a period that passed without a unit. Units that were rolled over into that period
  -- roll over again; several such periods in a row count as one.
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

  -- Adjusts the state to now: r.idle if the current period has no units, r.ahead if the latest is
  -- the next one, r.gone if the units of the current period are unknown, since the clock has
  -- stepped back into it.
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

  -- The units of another algorithm that belong to the current period. What the period before left
  -- over is unknown.
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

  local function load(key, now, cost, cap, b0, b1, b2, _, _, rule)
    local slack, rollover, spread, a, b3 = unpacked('>I7I7I7I7I7', sub(rule, 30))
    local r = { kind = 'K', key = key, cost = cost, cap = cap, a = a, b0 = b0, b1 = b1, b2 = b2, b3 = b3, slack = slack,
      rollover = rollover, spread = spread == 1, stale = now < b0 or now >= b1, last = b0, from = b0, count = 0, prior = 0,
      before = 0, carry = 0, since = now, next = 0, was = 0, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = not r.stale or byte(v, 1) == CALENDAR
    if byte(v, 1) ~= CALENDAR then
      take_over(r, v, now)
      return r
    end
    r.till, r.raw = unpack7(v, 2), sub(v, 9)
    r.ends = r.till - LONGER
    r.last, r.from, r.count, r.prior, r.before, r.carry, r.since, r.next, r.was = unpacked('>I7I7I7I7I7I7I7I7I7', r.raw)
    if not r.stale then
      settle(r, now)
    end
    return r
  end

  -- The units of the current period, and of the next. If the boundaries have changed, units that
  -- may belong to either count in both.
  local function used(r)
    return r.ahead and r.before or r.count + (r.prior >= r.b0 and r.before or 0)
  end

  local function used_next(r)
    return r.last >= r.b1 and r.count + (r.prior >= r.b1 and r.before or 0) or 0
  end

  -- The units that are left in the current period, and in the next one, into which nothing is
  -- rolled over before it has begun.
  local function room(r)
    return r.gone and 0 or r.cap + (r.ahead and min(r.carry, r.rollover) or left_over(r)) - used(r)
  end

  local function room_next(r)
    return r.cap - used_next(r)
  end

  -- From b2 on the answer is unknown here, except that nothing is admitted sooner.
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

  -- A refund sets the pace back if its charge was the last one.
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

  -- µs until the state means nothing any more: if units roll over, not before another period
  -- has passed.
  local function lasts(r, now)
    if r.stale then
      return max(0, (r.ends or r.b1) - now)
    elseif r.rollover == 0 then
      return reset(r, now)
    elseif r.idle then
      return r.gap and 0 or r.b2 - now -- how long ago the period before a gap was is unknown
    end
    return r.b3 + (r.ahead and r.b3 - r.b2 or 0) - now
  end

  local function save(r, now)
    write(r, now, CALENDAR, r.idle and r.raw or packed('>I7I7I7I7I7I7I7I7I7', r.last, r.from, r.count, r.prior, r.before, r.carry, r.since,
      r.next, r.was), lasts(r, now))
  end

  local function remaining(r)
    return (r.stale or r.cap == 0) and 0 or max(0, room(r))
  end

  -- When `units` before it and then the cost will have been admitted: an estimate, which assumes
  -- that later periods are as long as the next.
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

-- Returns a rule's numbers as an API corrects them, if it has reported anything: see include/upstream/upstream.lua.
local corrected

local function most_of(rule)
  return max(1000000, #rule > 35 and unpack7(rule, 30) or 0)
end

-- Rule i, parsed from its text.
local function load_rule(i, rule, cost, member, now)
  local kind, _, a, b, c, d = sub(rule, 1, 1), unpacked('>BI7I7I7I7', rule)
  local changed, whole, burst
  if corrected then
    a, b, changed, whole, burst = corrected(KEYS[i], rule, kind, a, b, c, d)
  end
  local r = algorithms[kind].load(KEYS[i], now, cost, a, b, c, d, member, whole, rule)
  r.corrected, r.cap, r.raises = changed, burst or r.cap, kind == 'T' and most_of(rule) > 1000000
  return r
end
-- µs from now until a rule alone would admit its cost; -1 if unknown.
local function retry_of(r, now)
  local t = algorithms[r.kind].fit(r, now)
  return t and t - now or -1
end

-- The first moment from now on at which every rule with a known moment admits its cost,
-- the rule that asked for it, and whether that is sure. A suspended rule has no known moment;
-- a full concurrency rule expects leases to end. Fixed windows that are out of step may take
-- long to agree; then the result is only a lower bound.
local function joint_start(rules, now)
  local start, binding, sure = now, 0, true
  local many, agree, i = #rules, 0, 0
  for _ = 1, 50 * many do
    i = i % many + 1
    local t, hope = algorithms[rules[i].kind].fit(rules[i], start)
    if not t or hope then
      sure = false
    end
    agree = agree + 1
    if t and t > start then
      start, binding, agree = t, i, 1
    end
    if agree == many then
      return start, binding, sure
    end
  end
  return start, binding, sure and many == 0
end

-- Adds the report of rule i to the reply: limited, remaining, retry, reset, place.
local function report(out, i, r, now, retry, place)
  local n, algorithm = 5 * i, algorithms[r.kind]
  out[n + 1] = retry == 0 and 0 or 1
  out[n + 2] = algorithm.remaining(r, now)
  out[n + 3] = retry
  out[n + 4] = algorithm.reset(r, now)
  out[n + 5] = place
end

-- A denial: how long until all rules would admit it, and the report of each rule. An unknown time
-- (-1) outlasts every wait. A pause in addition to it is subtracted from -1: a pause by hand, whose
-- end no script knows, may be over sooner. A pause binds unless a rule's time is unknown.
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
-- What an API has reported about the scopes of a provider. It needs call, now and upstream, and
-- reported: whether there are any reports. Source: docs/vendor.md#pauses
--
-- upstream  hash: P<level> the pause of a level and of all below it: when it ends, when it
--        began, and its length if the API did not give one. A level is the path of a
--        scope after the provider's name. R<rule> the correction of a rule: see
--        include/upstream/correction.lua. #<level> how many of both there are below a name of the
--        second or third level; @ how far report_upstream has scanned them for what is over.
--
-- A pause is one more rule of a path, after the others: it admits nothing before it ends,
-- is charged nothing, and has a node of its own, under a name that no rule can have. A pause that
-- has ended stays until it is swept, since tasks may have waited for it.
algorithms.P = {
  fit = function(r, t)
    return max(t, r.ends)
  end,
  charge = function()
    return 0
  end,
}

-- While there are reports, waiting tasks are checked this soon: a correction may end, and will grow
-- back, before its rule admits more by itself.
local UPSTREAM_LOOK = 1000000

-- The correction of a rule by an API: a part of the rule's limit, which is cut when calls are refused
-- and grows with time, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; a moment, the part at that moment, in millionths, and by how
-- much it grows in a second; a limit, 0 for none, its window in µs, and until when it is valid; until
-- when the part may be above the whole, since calls succeed; when it was cut.
local WHOLE = 1000000

-- One table, since a chunk has few locals.
local corrections = {}

-- The present value of a pause (P) or a correction (R) of upstream. If the clock has stepped back behind the
-- moment at which it was written, its times step back too, or else it would last longer by the step. The
-- second result reports that.
function corrections.by_now(field, v)
  local back = v and unpack7(v, 8) - now or 0
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs(byte(field) == 80 and { 1, 8 } or { 1, 8, 43, 50, 57 }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

local NUMBERS = { 'ends', 'since', 'part', 'grows', 'limit', 'per', 'till', 'raised', 'cut' }

-- Parses a correction from its text. Without a text, nothing is corrected.
function corrections.read(v)
  local r = { ends = 0, since = 0, part = WHOLE, grows = 1, limit = 0, per = 0, till = 0, raised = 0, cut = 0 }
  for i, name in ipairs(v and NUMBERS or {}) do
    r[name] = unpack7(v, 7 * i - 6)
  end
  if r.till <= now then
    r.limit = 0
  end
  return r
end

function corrections.text(r)
  local out = {}
  for i, name in ipairs(NUMBERS) do
    out[i] = pack(r[name])
  end
  return table.concat(out)
end

-- The present part, at most `most`. While the API's own limit counts, it is at most the whole: after that
-- it grows on from there.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end

-- pauses are by level, false for none. stepped has what a step of the clock has changed, as fields and texts by turns;
-- a script that may write writes it, or else each read would find a pause as new as the first did.
local pauses, stepped = {}, {}

local function save_stepped()
  if #stepped > 0 then
    call('HSET', upstream, unpack(stepped))
  end
end

-- The present value of a field of upstream, if any.
local function upstream_field(field)
  local v, is_new = corrections.by_now(field, call('HGET', upstream, field))
  if is_new then
    stepped[#stepped + 1], stepped[#stepped + 2] = field, v
  end
  return v
end

-- Adds the pauses of a scope and of all levels above it to the rules of its path.
local function add_pauses(path, scope)
  for ends in string.gmatch(reported and scope .. '/' or '', '()/') do
    local level = sub(scope, 1, ends - 1)
    if pauses[level] == nil then
      local v = upstream_field('P' .. level)
      pauses[level] = v and { kind = 'P', name = level .. ':!stop', ends = unpack7(v, 1), unit = '', cost = 1 }
    end
    path[#path + 1] = pauses[level] or nil
  end
end

-- A bucket whose rate is corrected counts in parts that are FINER times as fine, as far as its numbers
-- allow, so that only p changes from read to read: its level is rewritten when the first
-- correction comes and when the last one goes, and no unit is lost or gained between. There is
-- room for later changes of its rate; a rate near MOST_RATE grows no further.
local FINER, MOST_RATE, MOST_LEVEL = 1000, 33554432, 4503599627370495

-- `part` millionths of n, rounded down: exact below 10^13 of them.
local function part_of(n, part)
  local rest = n % WHOLE
  return (n - rest) / WHOLE * part + floor(rest * part / WHOLE)
end

-- The limit that counts: a part of the rule's limit, or the API's own, 0 for none. Refusals lower the API's own too,
-- if it is the larger. Never more than `most`.
local function counts(limit, own, part, most)
  if own == 0 then
    return min(most, part_of(limit, part))
  end
  own = min(own, most)
  return min(own, part_of(max(limit, own), min(part, WHOLE)))
end

if reported then
  corrected = function(key, rule, kind, a, b, c, d)
    local v = (kind == 'T' or kind == 'S') and a > 0 and upstream_field('R' .. sub(key, #upstream - 8))
    local r = v and corrections.read(v)
    if not r or r.ends <= now then
      return a, b
    end
    local most = most_of(rule)
    local part = corrections.part_at(r, most)
    if kind ~= 'T' then
      -- An own limit belongs to its window: the policy may have given the rule another since.
      local own = r.per == (c == 0 and b - d / 2 or b > 0 and b - d or c) and r.limit or 0
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
-- How a decision is made under the rules of its path. It needs n, member, attempt and
-- scope, and late, what came too late before or nil; rule i is ARGV[base + 2 * i], and pauses follow the n rules.

local function read_rules()
  local rules = {}
  for i = 1, n do
    rules[i] = load_rule(i, ARGV[base + 2 * i], tonumber(ARGV[base + 2 * i + 1]), member, now)
  end
  add_pauses(rules, scope)
  return rules
end

-- By how much the run may begin after its start, and how far ahead the start must be.
local leeway = late and byte(late) == 76 and tonumber(sub(late, 2)) or 0
local from = late and leeway == 0 and tonumber(sub(late, 2)) or 0

-- Charges every rule at start. The record goes first, here too. Nil, with nothing
-- changed, for an attempt that was decided before. An attempt with leeway may begin later by as
-- much: windows and buckets count it at the last moment at which it may begin.
local function grant(rules, start, binding)
  save_stepped()
  local out, record = { 1, 0, now, start - now, binding }, pack(start)
  local retries, places = {}, {}
  for i = 1, n do
    local r = rules[i]
    retries[i] = start == now and 0 or retry_of(r, now)
    local counts = (r.kind == 'T' or r.kind == 'S' and r.per > 0) and start + leeway or start
    places[i] = algorithms[r.kind].charge(r, now, counts)
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

-- The reply for an attempt that was granted before.
local function granted_before(rules, record)
  local left = unpack7(record, 1) - now
  local out, wait = { 1, 1, now, left, 0 }, max(0, left)
  for i = 1, n do
    -- Its own units are among those that it would have to wait for.
    local retry = wait > 0 and retry_of(rules[i], now) or 0
    if retry < 0 or retry > wait then
      retry = wait
    end
    report(out, i, rules[i], now, retry, unpack7(record, 7 * i + 1))
  end
  return out
end

-- Mends what would not heal by itself: a key without a TTL, or with a TTL that is too short after a
-- change of a limit; a state from the future, or of another algorithm, whose units would seem
-- to be spent anew at each read.
local function mend(rules)
  save_stepped()
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
-- What a waiting task takes, and its place in the queue of its scope. It needs call and the numbers.
-- Source: docs/turns.md#queues
--
-- queue  sorted set of each scope: the tickets of its tasks, by priority and order. A ticket is
--        "cost:name", without the cost when it is 1, or by unit "requests=1,tokens=1500:name".
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local REQUESTS = 'requests'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- How much longer than their expected wait the keys of waiting tasks are kept: they have a meaning until
-- asynq brings the task back by itself.
local STAY = 86400000000

-- The first place of an empty band, or the place after its last. Places follow the clock, in ms: a task that
-- comes back to its place is before the tasks that came since.
local function place_after(last, band, now)
  local first = band + MIDDLE / 2 + floor(now / 1000) % MIDDLE
  return last and min(max(last + 1, first), band + BAND - 1) or first
end

-- The number that sorts bands: 0 for the highest priority.
local function band_of(score)
  local band = floor(score / BAND) + LOWEST
  if not (band >= 0 and band < 2 * LOWEST) then
    error('a score is damaged')
  end
  return band
end

local known_costs = {}

-- The cost of a task: a number, under every rule, or a table by unit. Each ticket is parsed once.
local function costs_of(ticket)
  local costs = known_costs[ticket]
  if not costs then
    local text = string.match(ticket, '^(%d*):')
    costs = text and (tonumber(text) or 1) or {}
    if not text then
      for unit, units in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
        costs[unit] = tonumber(units)
      end
    end
    known_costs[ticket] = costs
  end
  return costs
end

-- How many units of a kind a task takes, '' for places.
local function cost_of(ticket, unit)
  local costs = costs_of(ticket)
  if type(costs) == 'number' then
    return costs
  end
  return costs[unit] or (unit == '' or unit == REQUESTS) and 1 or 0
end

-- The unit that a rule counts, '' for places and for a rule that counts each task: it follows the
-- numbers of the rule's text.
local function unit_of(rule)
  local kind = byte(rule)
  local unit = kind == HELD and '*' or sub(rule, kind == CALENDAR and 65 or 37)
  if unit == '*' then
    return ''
  end
  return unit == '' and REQUESTS or unit
end

-- The signature of tasks that take only these units, and so not all rules of their path.
local function signature(units)
  local names = {}
  for unit in pairs(units) do
    names[#names + 1] = unit
  end
  table.sort(names)
  return table.concat(names, ',') .. ','
end

-- The rules of a path that a task takes units of, each with that cost; and the task's
-- signature, '' if those are all rules.
local function counted(path, ticket)
  local costs = costs_of(ticket)
  if type(costs) == 'number' and costs > 0 then
    for i = 1, #path do
      path[i].cost = costs
    end
    return path, ''
  end
  local some, units = {}, {}
  for _, r in ipairs(path) do
    r.cost = cost_of(ticket, r.unit)
    if r.cost > 0 then
      some[#some + 1], units[r.unit] = r, true
    end
  end
  return some, #some == #path and '' or signature(units)
end

-- The rule of a path that a task waits for, and until when, nil if unknown: a rule with no known moment, or the
-- rule that alone would admit the task last. Units that come free of other rules cannot start the task sooner.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return path[i], nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return path[last or max(1, binding)], at or start
end

-- The group of a task: the beginning of its name, up to and including the first slash; '' if it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end

-- The level of a rule, by its name: the path of its scope.
local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The numbers of a path's rules, and the weight of the scope under each rule that has
-- one: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

-- Runs a command on any number of members of a key, in several calls.
local function in_parts(command, key, list)
  for i = 1, #list, 500 do
    call(command, key, unpack(list, i, min(#list, i + 499)))
  end
end

-- The values of any number of fields of a hash, false for none.
local function values_of(key, fields)
  local values = #fields > 0 and call('HMGET', key, unpack(fields, 1, min(#fields, 500))) or {}
  for i = 501, #fields, 500 do
    for _, value in ipairs(call('HMGET', key, unpack(fields, i, min(#fields, i + 499)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Keeps keys at least us µs more, and after that until asynq brings the tasks back: it does so half as
-- late again as expected.
local function keep_waiting(us, ...)
  us = us + us / 2
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
    end
  end
end
-- The order of waiting scopes. It needs call, now, heap, schedule, meta, pack and the numbers.
-- Source: docs/turns.md#the-tree
--
-- A node is a name of a path: '' the provider, '/a', '/a/x', and, as a leaf, the queue of a scope:
-- '/a/' for the queue of '/a'. Each node has a tag, a time in the virtual clock of its parent, and
-- siblings take turns by their tags: start-time fair queueing at each level. A node with
-- waiting tasks is either listed or blocked, for each signature of the tasks:
--
-- heap      sorted set, all of score 0: the listed nodes, as parent, 0, signature, 0, rank, node. A rank is
--           the band of the first task and the tag, in 7 and 16 digits. With '!' as signature: empty nodes
--           whose tag is ahead of their parent's time. Such a node is forgotten once that time has passed its tag.
-- schedule  sorted set: the blocked nodes, as node, 0, signature, by the µs at which their rules admit the
--           first task below. The provider is never listed: while a node can be checked, the provider is here.
-- meta      hash. n<node>: its tag, its time, how many nodes below have tasks, how many '!' there are,
--           and the requests that wait below; after these, as "tokens=1500", the units other than requests that
--           tasks below with a cost by unit take, and under '*' their requests: a task whose cost is a number takes
--           that of each unit. Then a line for each signature: the signature, the band, and, if it is blocked, the
--           cost that blocks and its unit, and after "=" the signature of the tasks that units coming free are saved
--           for. A leaf whose queue has lanes has 1 for '!'. Q<scope> the lanes of a queue: lanes.lua.
--           @ the µs of the last dispatch. * the cursor of a scan of all of schedule, from ZSCAN.
--
-- Changes are kept until tree.save: `comes` of the heap and `times` of the schedule, each with its score, or false to
-- remove. `through` has by signature how many tasks had been granted when a dispatch found no more to grant.
local tree = { records = {}, nodes = {}, comes = {}, times = {}, through = {}, at_once = 16 }
do
  local format = string.format
  local SLOT, LATEST, MOST_OF_A_TURN, SWEPT = 100000, 9007199254740991, 10000, 50
  local PAST, NONE = '!', {}
  local RANK = WHOLE == '%d' and '%07d%016d' or '%07.0f%016.0f'

  local chains, ups = {}, {}

  -- The parent of a node, false for the provider.
  local function up_of(id)
    local up = ups[id]
    if up == nil then
      up = string.match(id, '^(.*)/') or false
      ups[id] = up
    end
    return up
  end

  -- The nodes from a leaf up to the provider.
  function tree.chain(leaf)
    local ids, id = chains[leaf], leaf
    if not ids then
      ids = {}
      while id do
        ids[#ids + 1] = id
        id = up_of(id)
      end
      chains[leaf] = ids
    end
    return ids
  end

  -- Parses a node from its record: `up` is its parent, false for the provider.
  local function read_record(id, v)
    local nd = { id = id, up = up_of(id), tag = 0, time = 0, kids = 0, past = 0, units = 0, states = {}, stored = v and true or false }
    if not v then
      return nd
    end
    local tag, time, kids, past, units, sums, all = string.match(v, '^(%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)(.*)')
    nd.tag, nd.time, nd.kids = tonumber(tag), tonumber(time), tonumber(kids)
    nd.past, nd.units = tonumber(past), tonumber(units)
    if sums ~= '' then
      nd.sums = {}
      for unit, sum in string.gmatch(sums, ' ([^=]+)=(%d+)') do
        nd.sums[unit] = tonumber(sum)
      end
    end
    local one, its = string.match(all, '^\n([^ \n]*) (%d+)$')
    if one then -- most nodes have one signature
      nd.states[one] = { band = tonumber(its) }
      return nd
    end
    for sig, band, cost, unit, is, behind in string.gmatch(v, '\n([^ ]*) (%d+) ?(%d*) ?([^=\n]*)(=?)([^\n]*)') do
      nd.states[sig] = { band = tonumber(band), cost = tonumber(cost), unit = cost ~= '' and unit or nil, behind = is == '=' and behind or nil }
    end
    return nd
  end

  local function record(nd)
    local text = format(WHOLES, nd.tag, nd.time, nd.kids, nd.past, nd.units)
    if nd.sums then
      for unit, sum in pairs(nd.sums) do
        text = sum > 0 and text .. ' ' .. unit .. '=' .. whole(sum) or text
      end
    end
    for sig, state in pairs(nd.states) do
      text = text .. '\n' .. sig .. ' ' .. whole(state.band)
      if state.cost then
        local behind = state.behind and '=' .. sub(state.behind, 1) or ''
        text = text .. ' ' .. whole(state.cost) .. ' ' .. state.unit .. behind
      end
    end
    return text
  end

  -- Reads nodes that are not known yet. They are parsed when they are used.
  function tree.read(ids)
    local unknown, fields = {}, {}
    for _, id in ipairs(ids) do
      if not tree.nodes[id] and tree.records[id] == nil then
        tree.records[id] = false
        unknown[#unknown + 1], fields[#fields + 1] = id, 'n' .. id
      end
    end
    local values = values_of(meta, fields)
    for i = 1, #values do
      tree.records[unknown[i]] = values[i]
    end
  end

  local function node(id)
    local nd = tree.nodes[id]
    if not nd then
      tree.read({ id })
      nd = read_record(id, tree.records[id])
      tree.nodes[id] = nd
    end
    return nd
  end
  tree.node = node

  -- Returns a node and marks it to be written.
  local function changed(id)
    local nd = node(id)
    nd.changed, nd.gone = true, nil
    return nd
  end

  -- Writes the changes of a key: first the additions, since an empty key has no TTL. No change is left after it.
  local function write_changes(key, changes)
    local come, go = {}, {}
    for member, score in pairs(changes) do
      if score then
        come[#come + 1], come[#come + 2] = score, member
      else
        go[#go + 1] = member
      end
    end
    in_parts('ZADD', key, come)
    in_parts('ZREM', key, go)
    return {}
  end

  -- Whether the first of two siblings has its turn before the second.
  local function sooner(a, b)
    return a.band < b.band or a.band == b.band and a.tag < b.tag
  end
  tree.sooner = sooner

  -- The children of a node for a signature: the first of them, once they are read.
  local function children(nd, sig)
    nd.sets = nd.sets or {}
    local set = nd.sets[sig] or { key = nd.id .. '\0' .. sig .. '\0', hidden = {}, many = 0 }
    nd.sets[sig] = set
    return set
  end

  -- The members of the heap that begin with the key of a set, at most `most`, in their order.
  function tree.members(key, most)
    tree.comes = write_changes(heap, tree.comes)
    return call('ZRANGEBYLEX', heap, '[' .. key, '(' .. sub(key, 1, -2) .. '\1', 'LIMIT', '0', whole(most))
  end

  local function read_children(set)
    local most = tree.at_once + set.many
    local got, list, from = tree.members(set.key, most), {}, #set.key
    for _, member in ipairs(got) do
      local id = sub(member, from + 24)
      if not set.hidden[id] then
        list[#list + 1] = { id = id, band = tonumber(sub(member, from + 1, from + 7)),
          tag = tonumber(sub(member, from + 8, from + 23)), member = member }
      end
    end
    set.list, set.whole = list, #got < most
  end

  -- Sets the children of a node without reading them, if its own queue is the only child.
  local function know_children(set, nd, sig)
    local leaf = sub(nd.id, -1) ~= '/' and sig ~= PAST and nd.kids == 1 and node(nd.id .. '/')
    if leaf and leaf.kids == 1 then
      local state = leaf.states[sig]
      set.list, set.whole = { state and { band = state.band, tag = leaf.tag, id = leaf.id } or nil }, true
    end
  end

  -- The first child that this call has not hidden, if any.
  local function first(nd, sig)
    local set = children(nd, sig)
    if not set.list and set.many == 0 then
      know_children(set, nd, sig)
    end
    while not set.list or #set.list == 0 and not set.whole do
      read_children(set)
    end
    return set.list[1]
  end
  tree.first = first

  -- The member of the heap for a node, from a band and its tag.
  local function member_of(set, nd, band)
    return set.key .. format(RANK, band, nd.tag) .. nd.id
  end

  local function put(nd, sig, band)
    local set = children(node(nd.up), sig)
    local list, e = set.list, { id = nd.id, band = band, tag = nd.tag, member = member_of(set, nd, band) }
    tree.comes[e.member] = '0'
    if nd.up == '' then
      tree.through[sig] = nil
    end
    if list and not set.hidden[nd.id] and (set.whole or #list > 0 and sooner(e, list[#list])) then
      local i = #list
      while i > 0 and sooner(e, list[i]) do
        i = i - 1
      end
      table.insert(list, i + 1, e)
    end
  end

  -- Takes a node out of the siblings that were read, and returns it if it was there.
  local function take_out(set, id)
    for i, e in ipairs(set.list or NONE) do
      if e.id == id then
        return table.remove(set.list, i)
      end
    end
  end

  local function drop(nd, sig, band)
    local set = children(node(nd.up), sig)
    local e = take_out(set, nd.id)
    tree.comes[e and e.member or member_of(set, nd, band)] = false
  end

  -- Makes a node wait until a moment; false ends the wait.
  local function wait_until(nd, sig, t)
    tree.times[nd.id .. '\0' .. sig] = t and whole(t)
  end

  -- Until when a node waits, nil if it does not.
  function tree.waits_until(id, sig)
    local key = id .. '\0' .. sig
    return tonumber(tree.times[key] or call('ZSCORE', schedule, key) or nil)
  end

  -- Has the nodes checked now that wait behind a signature.
  local function pass_on(nd, sig)
    for its, state in pairs(nd.states) do
      if its ~= sig and state.cost and state.behind == sig then
        wait_until(nd, its, now)
      end
    end
  end

  -- Lists a hidden node again: it has a child that is not hidden.
  local function show(nd, sig)
    local set = children(node(nd.up), sig)
    if set.hidden[nd.id] then
      set.hidden[nd.id], set.many, set.list, set.whole = nil, set.many - 1, nil, nil
      if nd.up == '' then
        tree.through[sig] = nil
      else
        show(node(nd.up), sig)
      end
    end
  end

  -- Makes a node listed or not, according to its children.
  local function rise(id, sig)
    local nd = node(id)
    local child, state, set = first(nd, sig), nd.states[sig], nd.sets[sig]
    if not child and set.many > 0 then -- all others are hidden
      return nd.up and state and not state.cost and tree.hide(id, sig)
    elseif child and state and (state.cost or state.band == child.band or set.many > 0) then
      return nd.up and not state.cost and show(nd, sig)
    end
    if state and state.cost then
      wait_until(nd, sig, false)
      pass_on(nd, sig)
    elseif state then
      drop(nd, sig, state.band)
    end
    changed(id).states[sig] = child and { band = child.band } or nil
    if child and not nd.up then
      nd.states[sig].cost, nd.states[sig].unit = 0, ''
      wait_until(nd, sig, now)
    elseif child then
      put(nd, sig, child.band)
    end
    if nd.up then
      rise(nd.up, sig)
    end
  end

  -- Blocks a node until t, when its rule admits the cost of a unit; or, behind another signature, as long as that
  -- signature waits for the same.
  function tree.block(id, sig, t, cost, unit, behind)
    local nd = changed(id)
    local state = nd.states[sig]
    if nd.up and not state.cost then
      drop(nd, sig, state.band)
    end
    state.cost, state.unit, state.behind = cost, unit, behind
    wait_until(nd, sig, t)
    if nd.up then
      rise(nd.up, sig)
    end
  end

  -- Lists a blocked node. The provider is to be checked.
  function tree.unblock(id, sig)
    local nd = changed(id)
    local state = nd.states[sig]
    local child = first(nd, sig)
    if child and not state then
      error('a node is lost')
    elseif not child and state and nd.sets[sig].many > 0 then -- all below are hidden
      if nd.up and state.cost then
        wait_until(nd, sig, false)
        nd.states[sig] = { band = state.band }
        put(nd, sig, state.band)
        rise(nd.up, sig)
        tree.hide(id, sig)
      end
      return
    end
    pass_on(nd, sig)
    if not state or state.cost then
      wait_until(nd, sig, false)
      nd.states[sig] = nil
      rise(id, sig)
    end
  end

  -- Has the nodes of a level checked now: units of its rules have come free.
  function tree.look_at(id)
    local nd = node(id)
    for sig, state in pairs(nd.states) do
      if state.cost and tree.times[id .. '\0' .. sig] ~= false then
        wait_until(nd, sig, now)
      end
    end
  end

  -- Has all nodes above a leaf checked now: its first task has gone, and the next one may need less.
  function tree.look_above(leaf)
    for _, id in ipairs(tree.chain(leaf)) do
      tree.look_at(id)
    end
  end

  -- Hides a listed node until the end of this call, and its parents if all nodes below them are hidden.
  function tree.hide(id, sig)
    local up = node(node(id).up)
    local set = children(up, sig)
    if first(up, sig) and take_out(set, id) then
      set.hidden[id], set.many = true, set.many + 1
    end
    if up.up and not first(up, sig) then
      tree.hide(up.id, sig)
    end
  end

  -- Has the blocked parents of a leaf checked now, if its first task may start sooner than the tasks that they
  -- are blocked for.
  function tree.hurry(leaf, sig, band, ticket)
    for _, id in ipairs(tree.chain(leaf)) do
      local state = node(id).states[sig]
      if state and state.cost then
        if band < state.band or cost_of(ticket, state.unit) < state.cost then
          wait_until(node(id), sig, now)
        end
        return
      end
    end
  end

  -- Counts a task that joins a queue (1) or leaves it (-1), at each level.
  function tree.count(leaf, ticket, sign)
    local costs = costs_of(ticket)
    local by_unit = type(costs) == 'table'
    local cost = by_unit and cost_of(ticket, REQUESTS) or costs
    for _, id in ipairs(tree.chain(leaf)) do
      local nd = changed(id)
      nd.units = max(0, nd.units + sign * cost)
      if by_unit then
        nd.sums = nd.sums or {}
        for unit, units in pairs(costs) do
          nd.sums[unit] = unit ~= REQUESTS and max(0, (nd.sums[unit] or 0) + sign * units) or nil
        end
        nd.sums['*'] = max(0, (nd.sums['*'] or 0) + sign * cost)
      end
    end
  end

  -- How many units of a kind wait below a node.
  function tree.units(id, unit)
    local nd = node(id)
    local sums = unit ~= '' and unit ~= REQUESTS and nd.sums or NONE
    return max(0, nd.units - (sums['*'] or 0) + (sums[unit] or 0))
  end

  -- Opens a leaf that has its first task, and its parents. A node saves up no turns: its tag is at least its
  -- parent's time.
  local function open(nd)
    nd.kids = 1
    while nd.up do
      local p = changed(nd.up)
      if nd.stored then
        drop(nd, PAST, 0)
        p.past = max(0, p.past - 1)
      end
      nd.tag, p.kids = max(nd.tag, p.time), p.kids + 1
      if p.kids > 1 then
        return
      end
      nd = p
    end
  end

  -- Forgets an empty node and all below it.
  local function forget(nd)
    nd.gone, nd.stored = true, false
    while nd.past > 0 do
      local e = first(nd, PAST)
      if not e then
        return
      end
      drop(node(e.id), PAST, 0)
      nd.past = nd.past - 1
      forget(node(e.id))
    end
  end

  -- Closes a leaf that has no more tasks, and the parents that have none. By how much they are ahead of others
  -- is kept.
  local function close(nd)
    while nd.up do
      local p = changed(nd.up)
      nd.kids, nd.units, nd.sums, nd.past = 0, 0, nil, sub(nd.id, -1) == '/' and 0 or nd.past
      p.kids = max(0, p.kids - 1)
      if nd.tag > p.time then
        put(nd, PAST, 0)
        p.past, nd.stored = p.past + 1, true
      else
        forget(nd)
      end
      if p.kids > 0 then
        return
      end
      nd = p
    end
  end

  -- Puts a queue in the tree by its first task: the task's signature and band; nil for an empty
  -- queue.
  function tree.stand(leaf, sig, band)
    local nd = node(leaf)
    if sig and nd.kids == 0 then
      open(changed(leaf))
    end
    for its, state in pairs(nd.states) do
      if its ~= sig or state.band ~= band then
        changed(leaf).states[its] = nil
        drop(nd, its, state.band)
        if its ~= sig then
          rise(nd.up, its)
        end
      end
    end
    if sig and not nd.states[sig] then
      changed(leaf).states[sig] = { band = band }
      put(nd, sig, band)
      rise(nd.up, sig)
    elseif not sig and nd.kids > 0 then
      close(changed(leaf))
    end
  end

  -- Advances the tags of a path whose leaf has had a turn: units and weights by level.
  function tree.turn(leaf, units, weights)
    local nd = changed(leaf)
    while nd.up do
      local p = changed(nd.up)
      p.time = max(p.time, nd.tag)
      local took = max(1, min(units[p.id] or 1, MOST_OF_A_TURN))
      local tag = min(LATEST, p.time + max(1, floor(SLOT * took / (weights[p.id] or 1) + 0.5)))
      for sig, state in pairs(nd.states) do
        if not state.cost then
          drop(nd, sig, state.band)
        end
      end
      nd.tag, p.passed = tag, p.past > 0
      for sig, state in pairs(nd.states) do
        if not state.cost then
          put(nd, sig, state.band)
        end
      end
      nd = p
    end
  end

  -- Removes empty nodes whose tags the time has passed: some in each call, however many there are.
  local function sweep()
    local passed, left = {}, SWEPT
    for _, nd in pairs(tree.nodes) do
      passed[#passed + 1] = nd.passed and not nd.gone and nd or nil
    end
    for _, nd in ipairs(passed) do
      local e = first(nd, PAST)
      while e and e.tag <= nd.time and left > 0 do
        left = left - 1
        drop(node(e.id), PAST, 0)
        nd.past = max(0, nd.past - 1)
        forget(node(e.id))
        e = first(nd, PAST)
      end
    end
  end

  function tree.write_times()
    tree.times = write_changes(schedule, tree.times)
  end

  -- Writes the tree. `set` has more fields and values of meta, by turns, and `gone` fields to remove.
  -- When no task waits, the keys of the tree are deleted.
  function tree.save(set, gone)
    if node('').kids == 0 then
      if node('').changed then
        call('UNLINK', heap, schedule, meta) -- there may be many nodes
      end
      return
    end
    sweep()
    for id, nd in pairs(tree.nodes) do
      if nd.gone then
        gone[#gone + 1] = 'n' .. id
      elseif nd.changed then
        set[#set + 1], set[#set + 2] = 'n' .. id, record(nd)
      end
    end
    tree.comes = write_changes(heap, tree.comes)
    tree.write_times()
    in_parts('HSET', meta, set)
    in_parts('HDEL', meta, gone)
  end
end
-- Grants in flight: given, and not yet come. It needs call, now, flight, overdue, pack, the numbers, tasks.lua
-- and tree.lua. Source: docs/turns.md#in-flight
--
-- flight   hash: scope, 0, ticket. Its value: the start, the score in the queue, when it was granted, and the id of
--          the grant; then for each rule its name, "=" and where its units were charged. Under "=" and the beginning
--          of a caller's ids: its last call that granted anything.
-- overdue  sorted set of the same fields by when they were granted; by HANDED less until a
--          caller that serves their group has fetched them.
local flights = {}

-- After STALE a task that has not come is not on its way.
local STALE, HANDED = 3000000, 4503599627370496

function flights.read(v)
  local start, score, at, id = string.match(v, '^(%-?%d+) (%-?%d+) (%d+) (%S+)')
  local g = { start = tonumber(start), score = tonumber(score), at = tonumber(at), id = id, places = {}, many = 0 }
  for name, place in string.gmatch(v, ' (%S+)=(%d+)') do
    g.places[name], g.many = tonumber(place), g.many + 1
  end
  return g
end

-- Whether a value is the grant with this id, '' for any.
function flights.is(value, id)
  return id == '' or string.match(value, '^%S+ %S+ %S+ (%S+)') == id
end

function flights.parts(field)
  local zero = string.find(field, '\0', 1, true)
  return sub(field, 1, zero - 1), sub(field, zero + 1)
end

function flights.forget(field)
  call('HDEL', flight, field)
  call('ZREM', overdue, field)
end

-- Refunds the grant of a task, under the rules that the call knows by name, and has the nodes checked that
-- wait for them.
function flights.refund(g, ticket, named)
  for name, place in pairs(g.places) do
    local r = named(name)
    if r then
      r.cost, r.member = cost_of(ticket, r.unit), g.id
      if r.kind == 'C' then -- an expired lease is not counted
        local ends = tonumber(call('ZSCORE', r.key, g.id) or nil)
        r.held, r.free = r.held - (ends and ends > now and 1 or 0), nil
      end
      algorithms[r.kind].refund(r, now, place)
      r.dirty = r.dirty or r.changed
      tree.look_at(level_of(name))
    end
  end
end
-- The place of a task in its queue by its lane. It needs now, pack, the numbers and tasks.lua.
-- Source: docs/turns.md#lanes
--
-- Start-time fair queueing within a queue: the place of a lane's next task is a stride behind that of
-- its last one, and never before the first task of the queue, which stands for the virtual time. A
-- task without a lane goes to the end, and the next task of every lane behind it.
-- Q<scope> keeps these places as long as the queue is not empty and a task has named a lane: seven
-- bytes, the next place, and the lane with a zero byte after it. Under '' is the place that no lane of
-- the same priority is before.
--
-- Below FRONT are the tasks that came back to the front: they do not stand for the virtual time. If
-- more than LANES lanes have tasks in a queue, the other lanes count as none.
local FRONT = MIDDLE / 2

-- The priority of a task, and its stride and lane if it has one: "0" or "-1:6:low".
local function priority_of(text)
  local priority, stride, lane = string.match(text, '^([^:]*):?([^:]*):?(.*)$')
  return tonumber(priority), tonumber(stride) or 1, lane
end

-- The place of a task that was to start, did not, and had no place before: no place at the end of a queue is
-- before it. So the tasks that come back keep their order, whichever comes first.
local function front_place(rank, start)
  return -priority_of(rank) * BAND + floor(start / 1000) % FRONT
end

local function lane_key(band, name)
  return whole(band + 0) .. ':' .. name -- never "-0"
end

-- The next places of a queue's lanes, by lane_key.
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

  -- Whether there is room to keep a place for a lane. A lane whose next place is its turn needs none.
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

  -- The place of a lane's next task; `first` is the first task of its priority in the queue, if any. Nil
  -- for the end of the queue.
  function place_in_lane(lanes, band, lane, first)
    local least = lanes[lane_key(band, '')]
    if not least or not has_room(lanes, band, lane, first) then
      return nil
    end
    least = max(least, first and first + 1 or place_after(nil, band, now))
    return min(max(least, lanes[lane_key(band, lane)] or least), band + BAND - 1)
  end

  -- Notes where lanes continue after a task that has got its place.
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
-- When a waiting task is expected to start: an estimate, which no decision depends on. It needs now, tasks.lua and
-- tree.lua.

-- When the `units` before it and then the rule's cost will have been admitted, as
-- far as a clock can predict; nil if unknown.
local function after_units(r, now, units)
  if r.kind == 'P' then
    return max(now, r.ends)
  end
  if r.kind == 'K' then
    return algorithms.K.after(r, now, units)
  end
  local whole_windows, field = 0, r.kind == 'T' and 'x' or r.kind == 'S' and (r.per > 0 and 'total' or 'count')
  if not field then
    return algorithms[r.kind].fit(r, now) and now
  elseif r.kind == 'T' then
    units = units * r.q
  elseif r.cap > 0 then
    whole_windows = floor(units / r.cap)
    units = units - whole_windows * r.cap
  end
  local was = r[field]
  -- A bucket that has been full for a while is no fuller than full.
  r[field] = (r.kind == 'T' and max(was, (now - r.at) * r.p) or was) + units
  local t = algorithms[r.kind].fit(r, now)
  r[field] = was
  return t and t + whole_windows * (r.window or 0)
end

-- How long until the turn of a task in its queue, from its place and the length of the queue, and the rule that it
-- waits for; -1 if no clock predicts it. Each scope that shares a level with it has a turn for each turn that the
-- queue has, if its weight is 1; and the scopes that are `before` it at a level, or all of them, one more. `places` gets two
-- numbers for each concurrency rule of the path: how many tasks take a place up to and including it, and how many runs hold one.
local function expected_in(l, path, place, card, before, places)
  local latest, binding, full = now, 0, nil
  for i, r in ipairs(path) do
    local level, mine = level_of(r.name), tree.units(l.leaf, r.unit)
    local own = card > 1 and floor(max(0, mine - r.cost) * place / (card - 1)) or 0
    local cost = r.cost
    if r.kind == 'C' then -- each task takes one place
      own, cost = place, min(cost, 1)
    end
    if own + cost > 0 then
      local others = max(0, tree.node(level).kids - 1) / (l.weights and l.weights[level] or 1)
      local turns = own * others + (before and before(level) or others) * max(1, cost)
      local units = own + min(max(0, tree.units(level, r.unit) - mine), ceil(turns))
      local t = after_units(r, now, units)
      if not t then
        return -1, i
      elseif t > latest then
        latest, binding = t, i
      end
      if r.kind == 'C' then
        full = full or place + 1 > r.cap - r.held and i
        if places then
          local last = #places
          places[last + 1], places[last + 2] = units + 1, r.held
        end
      end
    end
  end
  if binding == 0 and full then
    return -1, full
  end
  return latest - now, binding
end
-- How a task joins a queue, for tasks that ask and tasks that are planned. It needs queues.lua, lanes.lua,
-- expect.lua, parked and parks. Source: docs/turns.md#join

-- Reads the state of a queue before a task of a band joins it. It is read once: nothing else changes it meanwhile.
local function look_into(l, band)
  if not l.card then
    local empty = tree.node(l.leaf).kids == 0
    l.card, l.lasts, l.firsts = empty and 0 or call('ZCARD', l.key), {}, {}
    l.bottom = not empty and tonumber(call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2] or nil)
    l.lanes = read_lanes(tree.node(l.leaf).past > 0 and call('HGET', meta, 'Q' .. l.scope) or '')
  end
  if l.lasts[band] == nil then
    local last = l.bottom and l.bottom >= band and l.bottom
    if last and last >= band + BAND then
      last = call('ZREVRANGEBYSCORE', l.key, '(' .. whole(band + BAND), whole(band), 'WITHSCORES', 'LIMIT', '0', '1')[2]
    end
    l.lasts[band] = tonumber(last or nil) or false
  end
end

-- The first task of a band that stands for the virtual time of its lanes, if any.
local function first_of(l, band)
  if l.firsts[band] == nil then
    local first = call('ZRANGEBYSCORE', l.key, whole(band + FRONT), '(' .. whole(band + BAND), 'WITHSCORES', 'LIMIT', '0', '1')[2]
    l.firsts[band] = tonumber(first or nil) or false
  end
  return l.firsts[band] or nil
end

-- The place of a task that asks for the first time: at the end of its queue or where its lane continues, and
-- behind the parked tasks of its group.
local function place_in(l, ticket, band, lane)
  local score = lane ~= '' and next(l.lanes) and place_in_lane(l.lanes, band, lane, first_of(l, band))
    or place_after(l.lasts[band] or nil, band, now)
  local last = parks and call('ZSCORE', parked, l.scope .. '\0:' .. group_of(ticket))
  return last and max(score, min(band + tonumber(last) + 1, band + BAND - 1)) or score
end

-- Notes that a task has joined a queue. Returns how many tasks are before it.
local function took(l, ticket, band, score)
  local place = l.card
  if l.bottom and score <= l.bottom then
    place = call('ZRANK', l.key, ticket)
  end
  l.card, l.bottom = l.card + 1, max(l.bottom or score, score)
  l.lasts[band] = max(l.lasts[band] or score, score)
  if l.firsts[band] ~= nil and score >= band + FRONT then
    l.firsts[band] = min(l.firsts[band] or score, score)
  end
  return place
end

-- Whether a task that comes is behind others: tasks of its own queue, parked tasks of its group, or tasks that wait
-- for units that it takes too, at any level.
local function held_up(l, sig, ticket)
  tree.read(tree.chain(l.leaf))
  if tree.node(l.leaf).kids > 0 or parks and call('ZSCORE', parked, l.scope .. '\0:' .. group_of(ticket)) then
    return true
  end
  for _, id in ipairs(tree.chain(l.leaf)) do
    for its, state in pairs(tree.node(id).states) do
      if its == sig or not state.cost or state.cost == 0 or cost_of(ticket, state.unit) > 0 then
        return true
      end
    end
  end
  return false
end

-- Whether a leaf has the next turn of all that wait, even if it or its parents are blocked.
local function is_next(l, sig)
  local nd = tree.node(l.leaf)
  local state = nd.states[sig]
  while state and nd.up do
    local first = tree.first(tree.node(nd.up), sig)
    if first and first.id ~= nd.id and tree.sooner(first, { band = state.band, tag = nd.tag }) then
      return false
    end
    nd = tree.node(nd.up)
  end
  return state ~= nil
end

-- When the queue of a leaf is checked next, if it or a parent is blocked.
local function blocked_until(l)
  for sig in pairs(tree.node(l.leaf).states) do
    for _, id in ipairs(tree.chain(l.leaf)) do
      local state = tree.node(id).states[sig]
      if state and state.cost then
        return tree.waits_until(id, sig)
      end
    end
  end
end

-- Puts a queue in the tree by a task that has come to its front.
local function come_first(l, ticket, sig, band, by, t, lead)
  tree.stand(l.leaf, sig, band)
  local level = t and t > now and level_of(by.name)
  local state, at = level and tree.node(level).states[sig], level
  while at and at ~= l.leaf do
    local first = tree.first(tree.node(at), sig)
    at = first and first.id
  end
  if at and (not state.cost or state.cost == 0) then
    tree.block(level, sig, max(now + 1, t - lead), by.cost, by.unit)
  else
    tree.hurry(l.leaf, sig, band, ticket)
  end
end

-- Puts a task in its queue, at a score if it has one, and the queue in the tree. `by` is the rule that it waits
-- for and `t` until when, if no task is before it. Returns how many tasks are before it, how many the queue has, and
-- whether it was there before.
local function enter(l, ticket, rank, sig, score, by, t, lead)
  local priority, stride, lane = priority_of(rank)
  local at = score and floor(score / BAND) * BAND or -priority * BAND
  look_into(l, at)
  local its = score or place_in(l, ticket, at, lane)
  if call('ZADD', l.key, 'NX', whole(its), ticket) == 0 then
    return call('ZRANK', l.key, ticket), l.card, true
  end
  local place = took(l, ticket, at, its)
  if not score and (lane ~= '' or next(l.lanes)) then
    take_place(l.lanes, at, lane, stride, its)
    l.laned, tree.node(l.leaf).past = true, 1
  end
  tree.count(l.leaf, ticket, 1)
  if place == 0 then
    come_first(l, ticket, sig, band_of(its), by, t, lead)
  end
  return place, l.card
end

-- Writes the changes of enter to the queues that it has met; the tasks wait us µs at most, as far as is
-- known.
local function save_entered(list, us)
  local set = {}
  for _, l in ipairs(list) do
    if l.card then
      keep_waiting(us, l.key)
    end
    if l.laned then
      set[#set + 1], set[#set + 2] = 'Q' .. l.scope, lanes_text(l.lanes)
    end
  end
  tree.save(set, {})
  keep_waiting(us, schedule, heap, meta)
end

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
  return out
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
  flights.refund(g, ticket, function(name)
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
