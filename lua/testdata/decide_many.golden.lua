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
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
-- All are numbers of seven bytes, but for the log, and for `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
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
local known, heeds = {}, redis.call('EXISTS', KEYS[2]) == 1
local function read(i)
  local rule = ARGV[i]
  if #rule < 29 then
    known[i] = tonumber(rule)
    return known[i]
  end
  local algorithm, b, c, d, e, f, g, h = byte(rule, 1, 8)
  local one = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 9, 15)
  local two = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 16, 22)
  local three = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  b, c, d, e, f, g, h = byte(rule, 23, 29)
  local four = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
  local unit = algorithm == TOKEN and sub(rule, 9, 15) or sub(rule, 16, 22)
  known[i] = { algorithm, one, two, three, four, unit }
  return known[i]
end

local out, met, states, was, records, last, at, size = { moment }, {}, {}, {}, {}, 1, 2, #calls
while at <= size do
  local n, length, c, d = byte(calls, at, at + 3)
  local text, passed, cost = last + 1, 0, known[c * 256 + d] or read(c * 256 + d)
  local path = at + 4
  at, out[text] = path, '\1'
  for i = 1, heeds and 0 or n do
    local k, x, a, t = byte(calls, at, at + 3)
    local key, rule = k * 256 + x, known[a * 256 + t] or read(a * 256 + t)
    local algorithm, one, two, three, four, unit = rule[1], rule[2], rule[3], rule[4], rule[5], rule[6]
    local place, stamp, holds, state, spare, v = now, moment, nil, nil, nil, kept[key]
    if algorithm == TOKEN then
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
    elseif algorithm == SLIDING and two == 0 then
    local cap, grain, slack = one, three, four
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= FIXED or sub(v, 9, 15) ~= unit then
      break -- never used, or of another length
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local total = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 37, 43)
    local tail = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 44, 50)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local rest = grain - now % grain
    if tail * grain ~= now + rest or rest <= slack or count + cost > cap then
      break -- its last window is not at hand, or does not admit the cost now
    end
    count, place = count + cost, now + rest
    holds, stamp = pack(count), pack(place)
    state = sub(v, 1, 15) .. pack(total + cost) .. sub(v, 23, 43) .. holds .. '\0' .. sub(v, 52)
    spare = till - place
    elseif algorithm == SLIDING then
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
    else
      break
    end
    if spare < LEAST or spare > MOST then
      break
    end
    out[text + 1], out[text + 2] = stamp, holds
    met[i], states[i], passed, text, at = key, state, i, text + 2, at + 4
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
    if attempt then
      local record = moment
      for i = last + 2, text, 2 do
        local stamp = out[i]
        record = record .. stamp
      end
      kept[attempt] = record .. member
      records[#records + 1] = attempt
    end
    for i = 1, n do
      local key = met[i]
      was[key], kept[key] = was[key] or #kept[key], states[i]
    end
    last = text
  else
    last = last + 1
    out[last] = '\0'
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
local answer = table.concat(out, '', 1, last)
if next(was) or byte(calls, 1) == 1 then
  -- Of a batch that admits nobody a send may yet arrive, and must not admit those
  -- whom decide has admitted meanwhile.
  redis.call('SET', KEYS[1], answer .. id, 'PX', '31000')
  for i = 1, #records do
    redis.call('SET', KEYS[records[i]], kept[records[i]], 'PX', '30000')
  end
end
return moment .. answer
