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

-- #include clock
-- #include pack
-- #include layout

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
  -- #include express/rule
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
      -- #include express/token_bucket
    elseif algorithm == SLIDING then
      -- #include express/sliding_window
    elseif algorithm == FIXED then
      -- #include express/fixed_window
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
