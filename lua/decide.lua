-- decide: admit one attempt under every rule on its path, or say when to come back.
--
-- All rules pass and all are charged, at one start moment at most `ahead` from
-- now, or none is. Sent again under the same attempt key it is not charged again
-- and answers with the first grant. A denial changes nothing, but for mending a
-- key that has lost its TTL, or was written by a clock that has since stepped
-- back or under limits that have since changed.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 1. See include/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id: start, places, the id. What another
--                       attempt left there is written over.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ahead     integer µs >= 0, at most 60000000. How far ahead a start may be charged.
-- ARGV[4..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/rules.lua.
--
-- Returns  {allowed, replayed, now, wait, binding, then five for each rule:
--           limited, remaining, retry, reset, place}, or, allowed from now on, shorter:
--          {now, then three for each rule: remaining, reset, place}
--          allowed    1 or 0
--          replayed   1 when this attempt had been granted before
--          now        integer µs, the clock of this call
--          wait       integer µs, rounded up. Allowed: until the start, below 0 when that of a
--                     replayed one is over. Denied: until it would be allowed if nobody else
--                     came; -1 when that can't be told
--          binding    which rule (from 1) asks for the longest wait; 0 for none
--          limited    1 when this rule alone would not have admitted the cost now
--          remaining  integer units left after this call, rounded down
--          retry      integer µs until this rule alone would admit the cost; -1 can't be told
--          reset      integer µs until the rule is as if unused; -1 can't be told
--          place      where the units were put, for give_back; 0 when nothing was charged
--
-- Writes   KEYS[1..n+1] when allowed, the last as it was when replayed. Nothing otherwise, but for the mending.
-- Source   docs/algorithms.md#one-decision

-- #include clock
-- #include pack
-- #include layout

local call, format = redis.call, string.format
local member = ARGV[2]
local n = #KEYS - 1
local attempt = KEYS[n + 1]

-- The express way, which most calls go: every rule has been used lately under the
-- limits of this call, admits its cost now, and its key lives long enough. One
-- straight line without a function, since to make one costs as much as to add up a
-- rule. Whatever is different leaves it before anything is written, for the
-- general way below, which answers the same: a test runs both.
local out, states, moment, passed = { now, 0, 0, 0 }, {}, pack(now), 0
local record = moment
for i = 1, n do
  local key, rule, cost = KEYS[i], ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3])
  local algorithm = byte(rule, 1)
  local place, stamp, state, remaining, reset, spare = now, moment, nil, nil, nil, nil
  if algorithm == TOKEN then
    -- #include express/token_bucket when T
  elseif algorithm == SLIDING then
    -- #include express/sliding_window when S
  elseif algorithm == FIXED then
    -- #include express/fixed_window when F
  else
    -- #include express/concurrency when C
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
      if byte(ARGV[2 * i + 2], 1) ~= HELD then
        call('SET', KEYS[i], states[i], 'KEEPTTL')
      else
        -- #include express/hold when C
      end
    end
    return out
  end
  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
end

-- The general way.

local ahead = tonumber(ARGV[3])

-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include fixed_window when F
-- #include concurrency when C
-- #include rules
-- #include answer

local function read_rules()
  local rules = {}
  for i = 1, n do
    rules[i] = read_rule(i, 2 * i + 2, member, now)
  end
  return rules
end

-- Charges every rule at start. The record goes first, here too.
local function grant(rules, start, binding)
  local out, record = { 1, 0, now, start - now, binding }, pack(start)
  local retries, places = {}, {}
  for i = 1, n do
    local r = rules[i]
    retries[i] = start == now and 0 or retry_of(r, now)
    places[i] = algorithms[r.kind].charge(r, now, start)
    record = record .. pack(places[i])
  end
  call('SET', attempt, record .. member, 'PX', '30000')
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

-- What this attempt has been: nil none, or a record that is none any more when it
-- was given back, or granted under other rules.
local before = call('GET', attempt)
if before and sub(before, -#member) ~= member then
  before = nil
end
local rules = read_rules()
local start, binding, sure = joint_start(rules, now)
if before and #before == 7 * (n + 1) + #member then
  return granted_before(rules, before)
elseif sure and start - now <= ahead and not before then
  return grant(rules, start, binding)
end
mend(rules)
return denied(rules, now, start, binding)
