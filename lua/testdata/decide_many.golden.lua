-- decide_many: admit attempts of one provider in one call, each as decide does, one after the other.
--
-- It knows no more than the express way of decide, for rules that count units. An
-- attempt that takes anything else changes nothing and is left to decide: one that
-- is denied, was granted or given back before, or meets a rule that was not used
-- lately. Sent again as a whole it changes nothing and answers as it did first.
--
-- KEYS[1]     batch     string, what the batch was answered and its id. What another one left there
--                       is written over.
-- KEYS[2]     told      hash, what the API has told of its limits: while there is any, all attempts are
--                       left to decide. See include/told.lua.
-- KEYS[3..n+2] keys     strings, each once: the states of the rules, and the records of the attempts
--                       that may be asked for singly, as decide has them.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     id        the batch's.
-- ARGV[3]     calls     in bytes: 1 when the batch was sent before, else 0; for each attempt how many
--                       rules, how long its id is, 0 for one that is only known with its batch; two
--                       for which of ARGV is its cost; for each rule two each for which of KEYS is its
--                       state, and which of ARGV the rule; where there is an id, two for which of KEYS
--                       is its record, and the id. Empty: nobody will use what the batch was or would
--                       be admitted to, which is over from now on.
-- ARGV[4..]   texts     each once: integer units > 0 that an attempt costs, and one for each rule. See
--                       include/rules.lua.
--
-- Returns  bytes: now and start, the clock of the call that decided, in seven each; then for each
--          attempt, in their order,
--          1, and two of seven bytes for each rule: place, as decide returns it, and what the rule
--             holds then: x of a token bucket, total, or count; see include/layout.lua
--          0  left to decide
--
-- Writes   KEYS[1] and KEYS[3..n+2] of the attempts that are admitted, records last; the first alone when it is over,
--          or was sent before and admits nobody.
-- Source   docs/algorithms.md#one-decision

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
-- Whole numbers below 2^53 as seven big-endian bytes, by Redis's struct library: '>BI7' is a
-- byte and a number. A server without that library, as miniredis, does it here.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local out, i = {}, 0
    for kind in string.gmatch(format, '[BI]') do
      i = i + 1
      local n = select(i, ...)
      for place = kind == 'B' and 0 or 6, 0, -1 do
        out[#out + 1] = char(floor(n / 256 ^ place) % 256)
      end
    end
    return table.concat(out)
  end,
  unpack = function(format, text, at)
    local out = {}
    at = at or 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      while at <= last do
        n, at = n * 256 + byte(text, at), at + 1
      end
      out[#out + 1] = n
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack

local function pack(n)
  return packed('>I7', n)
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

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So one is set for LONGER than the state
-- means anything, and kept while it is no less than LEAST and no more than MOST.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

-- All is read before anything is written. What a rule comes to is kept here for the
-- next attempt that meets it, and written once.
local kept, id, calls = redis.call('MGET', unpack(KEYS)), ARGV[2], ARGV[3]
local moment, before = pack(now), kept[1]
if before and sub(before, -#id) == id then
  return moment .. sub(before, 1, -#id - 1)
elseif calls == '' then
  redis.call('SET', KEYS[1], char(GIVEN_BACK) .. id, 'PX', '60000')
  return moment
end

-- Most attempts meet rules that others do, so each is read once.
local known, formats, heeds = {}, {}, redis.call('EXISTS', KEYS[2]) == 1
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

local out, met, states, places, was, records, at, size = { moment }, {}, {}, {}, {}, {}, 2, #calls
while at <= size do
  local n, length, c, d = byte(calls, at, at + 3)
  local passed, cost = 0, known[c * 256 + d] or read(c * 256 + d)
  local path = at + 4
  at = path
  for i = 1, heeds and 0 or n do
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
    elseif algorithm == FIXED then
    local cap, per, slack = one, two, three
    if byte(v or '') ~= FIXED then
      break
    end
    local _, till, last, count, prior, before, since = unpacked('>BI7I7I7I7I7I7', v)
    local window, rest = now - now % per, per - now % per
    if last < window or last >= window + per or prior >= window or rest <= slack
      or count + cost > cap then
      break
    end
    local notches = 0
    if last > now then
      notches = ceil((last - now) / 250000)
      notches = notches < 255 and notches or 255
    else
      last = now
    end
    count = count + cost
    holds = count
    state = packed('>BI7I7I7I7I7I7B', FIXED, till, last, count, prior, before, since, notches)
    spare = till - now - rest
    else
      break
    end
    if spare < LEAST or spare > MOST then
      break
    end
    places[2 * i - 1], places[2 * i] = place, holds
    met[i], states[i], passed, at = key, state, i, at + 4
  end
  at = path + 4 * n
  local attempt, member
  if length > 0 then
    local k, x = byte(calls, at, at + 1)
    attempt, member = k * 256 + x, sub(calls, at + 2, at + 1 + length)
    at = at + 2 + length
    if kept[attempt] and sub(kept[attempt], -length) == member then
      passed = nil -- sent before
    end
  end
  if passed == n then
    local format = formats[n]
    if not format then
      format = '>B' .. string.rep('I7', 2 * n)
      formats[n] = format
    end
    local text = packed(format, 1, unpack(places, 1, 2 * n))
    out[#out + 1] = text
    if attempt then
      local record = moment
      for i = 2, 14 * n, 14 do
        record = record .. sub(text, i, i + 6)
      end
      kept[attempt] = record .. member
      records[#records + 1] = attempt
    end
    for i = 1, n do
      local key = met[i]
      was[key], kept[key] = was[key] or #kept[key], states[i]
    end
  else
    out[#out + 1] = '\0'
  end
end

-- The states go first, and of them what may be refused where SET is not: whatever a
-- server refuses half-way, nobody has a record of what was not charged. Written
-- over, a state keeps its TTL, for half of what it costs to set it.
for key, length in pairs(was) do
  if #kept[key] == length then
    redis.call('SETRANGE', KEYS[key], '0', kept[key])
  end
end
for key, length in pairs(was) do
  if #kept[key] ~= length then
    redis.call('SET', KEYS[key], kept[key], 'KEEPTTL')
  end
end
local answer = table.concat(out)
if next(was) or byte(calls, 1) == 1 then
  -- Of a batch that admits nobody a send may yet arrive, and must not admit those
  -- whom decide has admitted meanwhile.
  redis.call('SET', KEYS[1], answer .. id, 'PX', '31000')
  for i = 1, #records do
    redis.call('SET', KEYS[records[i]], kept[records[i]], 'PX', '30000')
  end
end
return moment .. answer
