-- decide_many: admit attempts of one provider in one call, each as decide does, one after the other.
--
-- It does only what the fast paths of decide and decide_queued do. Any other attempt changes nothing and is left to
-- those scripts: one that is denied, was granted or given back before, meets a rule that was not used recently, or a
-- pause or correction by the API on its own path; also one of a task that is in flight or parked, or on whose path
-- other tasks wait. Sent again as a whole, it changes nothing and returns the first reply.
--
-- KEYS[1]     batch     string, the reply to the batch and its id. The value that another batch left there
--                       is overwritten.
-- KEYS[2]     upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
-- KEYS[3]     meta      hash of nodes. See include/fairshare/tree.lua.
-- KEYS[4]     flight    hash of what was granted. See include/fairshare/flight.lua.
-- KEYS[5]     parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[6..n+5] keys     strings, each once: the states of the rules, and the records of the attempts
--                       that may be sent again singly, as decide has them; sorted sets of concurrency rules.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     id        the batch's.
-- ARGV[3]     calls     in bytes: 1 when the batch was sent before, else 0; 1 when an attempt of it can wait for a
--                       turn, else 0; then each attempt: the number of its rules and the length of its id, 0 for
--                       none; in two bytes each, the length of its path, the length of its ticket, 0 for an attempt
--                       that can't wait, the place of its cost in ARGV, and the place of its record in KEYS, 0 for
--                       an attempt that is recorded with its batch alone; for each rule, in two bytes each, the
--                       place of its state in KEYS and of the rule in ARGV; then the id, the path of the scope
--                       after the provider's name, and the ticket. Empty: the caller will not use what the batch was
--                       or would be admitted to. The batch is over from now on.
-- ARGV[4..]   texts     each once: integer units > 0 that an attempt costs, and one for each rule. See
--                       include/core/rules.lua.
--
-- Returns  bytes: now and start, both the clock of the call that decided, in seven bytes each; then for each
--          attempt, in their order,
--          1, and two of seven bytes for each rule: place, as decide returns it, and what the rule
--             then holds: x of a token bucket, total, or count; see include/core/layout.lua. For a concurrency
--             rule they are when its last lease ends, and how many places are taken.
--          0  left to decide
--
-- Writes   KEYS[1] and KEYS[6..n+5] of the attempts that are admitted, records last; the first alone when the batch is
--          over, or was sent before and admits no attempt.
-- Source   docs/algorithms.md#one-decision

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

-- Everything is read before anything is written. The new state of a rule is kept here for the next
-- attempt that meets the rule, and written once.
local call, format = redis.call, string.format
local kept, id, calls = call('MGET', unpack(KEYS)), ARGV[2], ARGV[3]
local moment, before = pack(now), kept[1]
if before and sub(before, -#id) == id then
  return moment .. sub(before, 1, -#id - 1)
elseif calls == '' then
  call('SET', KEYS[1], char(GIVEN_BACK) .. id, 'PX', '60000')
  return moment
end

-- What prevents an attempt, if anything in the batch is prevented: for most batches this check finds nothing, and is
-- all that they need.
local upstream, meta, flight, parked = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local there = call('EXISTS', upstream, parked, parked, flight, flight, flight, flight)
local free
if there > 0 or byte(calls, 2) == 1 then
-- Which attempts of a batch nothing prevents: free[i], for the attempt whose id begins at byte i
-- of calls; free is nil if nothing prevents any of them. It needs calls, there, upstream, meta, flight and parked, and
-- reads each of those once.
do
  local provider, reported, parks, flies = sub(upstream, 1, -10), there % 2 == 1, there % 4 >= 2, there >= 4
  local asked, levels, attempts, at = { P = {}, R = {}, n = {}, task = {} }, {}, {}, 3

  -- The levels of a path, from the provider's own.
  local function levels_of(path)
    local ids = {}
    for ends in string.gmatch(path .. '/', '()/') do
      ids[#ids + 1] = sub(path, 1, ends - 1)
    end
    levels[path] = ids
    return ids
  end

  -- Reads the fields of a key that are a prefix and each of the names, into names.
  local function fetch(key, begins, names)
    local list, fields = {}, {}
    for name in pairs(names) do
      list[#list + 1], fields[#fields + 1] = name, begins .. name
    end
    for i = 1, #list, 1000 do
      local values = call('HMGET', key, unpack(fields, i, i + 999 < #list and i + 999 or #list))
      for j = 1, #values do
        names[list[i + j - 1]] = values[j]
      end
    end
  end

  -- Whether the API has reported anything about a level or rule of this batch. Reports about others do not matter, and
  -- most batches need no more than this check.
  local function is_reported()
    for i = 6, #KEYS do
      asked.R[sub(KEYS[i], #provider + 1)] = false
    end
    local i = 3
    while i <= #calls do
      local n, length, k, x, a, t = byte(calls, i, i + 5)
      i = i + 10 + 4 * n + length
      local path = sub(calls, i, i + k * 256 + x - 1)
      if not levels[path] then
        for _, level in ipairs(levels_of(path)) do
          asked.P[level] = false
        end
      end
      i = i + k * 256 + x + a * 256 + t
    end
    fetch(upstream, 'P', asked.P)
    fetch(upstream, 'R', asked.R)
    for _, its in ipairs({ asked.P, asked.R }) do
      for _, v in pairs(its) do
        if v then
          return true
        end
      end
    end
    return false
  end

  reported = reported and is_reported()
  if reported or byte(calls, 2) == 1 then
    free = {}
  end
  while free and at <= #calls do
    local n, length, k, x, a, t = byte(calls, at, at + 5)
    local path_at = at + 10 + 4 * n + length
    local ticket_at, size = path_at + k * 256 + x, a * 256 + t
    local path = sub(calls, path_at, ticket_at - 1)
    local one = { at = path_at - length, levels = levels[path] or levels_of(path), keys = {} }
    one.task = size > 0 and path .. '\0' .. sub(calls, ticket_at, ticket_at + size - 1)
    if one.task then
      asked.task[one.task] = false
      for _, level in ipairs(one.levels) do
        asked.n[level] = false
      end
    end
    for i = 1, reported and n or 0 do
      k, x = byte(calls, at + 6 + 4 * i, at + 7 + 4 * i)
      one.keys[i] = sub(KEYS[k * 256 + x], #provider + 1)
    end
    attempts[#attempts + 1], at = one, ticket_at + size
  end
  fetch(meta, 'n', asked.n)
  if flies then
    fetch(flight, '', asked.task)
  end
  for _, one in ipairs(attempts) do
    local stands = one.task and (asked.task[one.task] or parks and call('ZSCORE', parked, one.task))
    for _, level in ipairs(one.levels) do
      local waits = one.task and asked.n[level]
      stands = stands or asked.P[level] or waits and string.find(waits, '\n', 1, true)
    end
    for _, key in ipairs(one.keys) do
      stands = stands or asked.R[key]
    end
    free[one.at] = not stands
  end
end
end

-- Most attempts share rules with others, so each rule is read once.
local known, formats, sets = {}, {}, {}
local function read(i)
  local rule = ARGV[i]
  if #rule < 29 then
    known[i] = tonumber(rule)
    return known[i]
  end
  local algorithm, one, two, three, four = unpacked('>BI7I7I7I7', rule)
  known[i] = { algorithm, one, two, three, four }
  return known[i]
end

-- The runs under a concurrency rule, counted once. Attempts that are admitted are added to it.
local function places_of(key)
  local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
  local set = { held = call('ZCOUNT', KEYS[key], from, to), last = 0 }
  if set.held > 0 then
    set.last = tonumber(call('ZREVRANGEBYSCORE', KEYS[key], to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2])
  end
  sets[key] = set
  return set
end

local out, met, states, places, was, records, at, size = { moment }, {}, {}, {}, {}, {}, 3, #calls
while at <= size do
  local n, length, k, x, a, t, c, d, e, f = byte(calls, at, at + 9)
  local passed, cost, tail = 0, known[c * 256 + d] or read(c * 256 + d), at + 10 + 4 * n
  at = at + 10
  local attempt, member, next_at = e * 256 + f, length > 0 and sub(calls, tail, tail + length - 1), tail + length + k * 256 + x + a * 256 + t
  if free and not free[tail] or attempt > 0 and kept[attempt] and sub(kept[attempt], -length) == member then
    n, passed = 0, nil -- something prevents it, or it was sent before
  end
  for i = 1, n do
    local k, x, a, t = byte(calls, at, at + 3)
    local key, rule = k * 256 + x, known[a * 256 + t] or read(a * 256 + t)
    local algorithm, one, two, three, four = rule[1], rule[2], rule[3], rule[4], rule[5]
    local place, holds, state, spare, v = now, nil, nil, nil, kept[key]
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
    elseif algorithm == HELD then
      local set = sets[key] or places_of(key)
      if set.held >= one then
        break
      end
      state, holds, spare = now + two, set.held + 1, LEAST
      place = state > set.last and state or set.last
    else
      break
    end
    if spare < LEAST or spare > MOST then
      break
    end
    places[2 * i - 1], places[2 * i] = place, holds
    met[i], states[i], passed, at = key, state, i, at + 4
  end
  if passed == n then
    local fields = formats[n]
    if not fields then
      fields = '>B' .. string.rep('I7', 2 * n)
      formats[n] = fields
    end
    out[#out + 1] = packed(fields, 1, unpack(places, 1, 2 * n))
    for i = 1, n do
      local key = met[i]
      local set = sets[key]
      if set then
        set.held, set.last = places[2 * i], places[2 * i - 1]
        set[#set + 1], set[#set + 2] = states[i], member
        places[2 * i - 1] = 0
      else
        was[key], kept[key] = was[key] or #kept[key], states[i]
      end
    end
    if attempt > 0 then
      local record = moment
      for i = 1, n do
        record = record .. pack(places[2 * i - 1])
      end
      kept[attempt] = record .. member
      records[#records + 1] = attempt
    end
  else
    out[#out + 1] = '\0'
  end
  at = next_at
end

-- States are written before records, and first among them those that a server may refuse where it
-- would accept SET: if it refuses a command half-way, no record exists of units that were not charged.
-- A state that is overwritten in place keeps its TTL, at half the cost of a SET.
for key, length in pairs(was) do
  if #kept[key] == length then
    call('SETRANGE', KEYS[key], '0', kept[key])
  end
end
for key, length in pairs(was) do
  if #kept[key] ~= length then
    call('SET', KEYS[key], kept[key], 'KEEPTTL')
  end
end
local runs = false
for key, set in pairs(sets) do
  if #set > 0 then
    runs = true
    local ends = {}
    for i = 1, #set, 2 do
      ends[i], ends[i + 1] = format('%.0f', set[i]), set[i + 1]
    end
    call('ZREMRANGEBYSCORE', KEYS[key], '-inf', format('%.0f', now))
    call('ZADD', KEYS[key], unpack(ends))
    local ttl = ceil((set.last - now) / 1000) + 1000
    if call('PTTL', KEYS[key]) < ttl then
      call('PEXPIRE', KEYS[key], format('%.0f', ttl))
    end
  end
end
local answer = table.concat(out)
if runs or next(was) or byte(calls, 1) == 1 then
  -- A batch that admits no attempt may arrive a second time. It must not admit then the attempts that
  -- decide has admitted in the meantime.
  call('SET', KEYS[1], answer .. id, 'PX', '31000')
  for i = 1, #records do
    call('SET', KEYS[records[i]], kept[records[i]], 'PX', '30000')
  end
end
return moment .. answer
