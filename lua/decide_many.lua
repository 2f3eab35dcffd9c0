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

-- #include core/clock
-- #include core/pack
-- #include core/layout

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
  -- #include fastpath/free
end

-- Most attempts share rules with others, so each rule is read once.
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
      -- #include fastpath/token_bucket
    elseif algorithm == SLIDING and (two == 0 or three == 0) then
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
    -- #include fastpath/runs
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
