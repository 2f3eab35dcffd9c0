-- decide_many: admit attempts of one provider in one call, each as decide does, one after the other.
--
-- It knows no more than the fast path of decide and decide_queued. An attempt that takes anything else changes
-- nothing and is left to those: one that is denied, was granted or given back before, meets a rule that was not
-- used lately, or an API's pause or correction of its own path; one of a task that is in flight or parked, or
-- on whose path others wait. Sent again as a whole it changes nothing and answers as it did first.
--
-- KEYS[1]     batch     string, what the batch was answered and its id. What another one left there
--                       is written over.
-- KEYS[2]     upstream  hash, what the API has told of its limits. See include/upstream/upstream.lua.
-- KEYS[3]     meta      hash of nodes. See include/fairshare/tree.lua.
-- KEYS[4]     flight    hash of what was granted. See include/fairshare/flight.lua.
-- KEYS[5]     parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[6..n+5] keys     strings, each once: the states of the rules, and the records of the attempts
--                       that may be asked for singly, as decide has them; sorted sets of concurrency rules.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     id        the batch's.
-- ARGV[3]     calls     in bytes: 1 when the batch was sent before, else 0; 1 when some of it can wait for a turn,
--                       else 0; then each attempt: how many rules, how long its id is, 0 for none; two bytes
--                       each for how long its path and its ticket are, none for one that can't wait, for which
--                       of ARGV is its cost, and for which of KEYS is its record, 0 for one that is known with
--                       its batch alone; for each rule two each for which of KEYS is its state, and which of ARGV
--                       the rule; then the id, the path of the scope after the provider's name, and the ticket.
--                       Empty: nobody will use what the batch was or would be admitted to, which is
--                       over from now on.
-- ARGV[4..]   texts     each once: integer units > 0 that an attempt costs, and one for each rule. See
--                       include/core/rules.lua.
--
-- Returns  bytes: now and start, the clock of the call that decided, in seven each; then for each
--          attempt, in their order,
--          1, and two of seven bytes for each rule: place, as decide returns it, and what the rule
--             holds then: x of a token bucket, total, or count; see include/core/layout.lua. Of a concurrency rule
--             it is when its last lease ends, and how many places are taken.
--          0  left to decide
--
-- Writes   KEYS[1] and KEYS[6..n+5] of the attempts that are admitted, records last; the first alone when it is over,
--          or was sent before and admits nobody.
-- Source   docs/algorithms.md#one-decision

-- #include core/clock
-- #include core/pack
-- #include core/layout

-- All is read before anything is written. What a rule comes to is kept here for the
-- next attempt that meets it, and written once.
local call, format = redis.call, string.format
local kept, id, calls = call('MGET', unpack(KEYS)), ARGV[2], ARGV[3]
local moment, before = pack(now), kept[1]
if before and sub(before, -#id) == id then
  return moment .. sub(before, 1, -#id - 1)
elseif calls == '' then
  call('SET', KEYS[1], char(GIVEN_BACK) .. id, 'PX', '60000')
  return moment
end

-- What stands in an attempt's way, if anything does anywhere: most batches need no more than to see that
-- there is nothing.
local upstream, meta, flight, parked = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local there = call('EXISTS', upstream, parked, parked, flight, flight, flight, flight)
local free
if there > 0 or byte(calls, 2) == 1 then
  -- #include fastpath/free
end

-- Most attempts meet rules that others do, so each is read once.
local known, formats, sets = {}, {}, {}
local function read(i)
  local rule = ARGV[i]
  if #rule < 29 then
    known[i] = tonumber(rule)
    return known[i]
  end
  -- #include fastpath/rule
  known[i] = { algorithm, one, two, three, four }
  return known[i]
end

-- The runs under a concurrency rule, counted once; those that are admitted come to it.
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
    n, passed = 0, nil -- something stands in its way, or it was sent before
  end
  for i = 1, n do
    local k, x, a, t = byte(calls, at, at + 3)
    local key, rule = k * 256 + x, known[a * 256 + t] or read(a * 256 + t)
    local algorithm, one, two, three, four = rule[1], rule[2], rule[3], rule[4], rule[5]
    local place, holds, state, spare, v = now, nil, nil, nil, kept[key]
    if algorithm == TOKEN then
      -- #include fastpath/token_bucket
    elseif algorithm == SLIDING and two == 0 then
      -- #include fastpath/fixed_window
    elseif algorithm == SLIDING then
      -- #include fastpath/sliding_window
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

-- The states go first, and of them what may be refused where SET is not: whatever a
-- server refuses half-way, nobody has a record of what was not charged. Written
-- over, a state keeps its TTL, for half of what it costs to set it.
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
    -- #include fastpath/runs
  end
end
local answer = table.concat(out)
if runs or next(was) or byte(calls, 1) == 1 then
  -- Of a batch that admits nobody a send may yet arrive, and must not admit those
  -- whom decide has admitted meanwhile.
  call('SET', KEYS[1], answer .. id, 'PX', '31000')
  for i = 1, #records do
    call('SET', KEYS[records[i]], kept[records[i]], 'PX', '30000')
  end
end
return moment .. answer
