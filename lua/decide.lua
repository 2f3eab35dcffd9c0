-- decide: admit one attempt under every rule on its path, or say when to come back.
--
-- All rules pass and all are charged, at one start moment at most `ahead` from
-- now, or none is. Sent again under the same attempt key it is not charged again
-- and answers with the first grant. A denial changes nothing, but for mending a
-- key that has lost its TTL, or was written by a clock that has since stepped
-- back or under limits that have since changed.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 1. See include/state.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id: start and places.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ahead     integer µs >= 0, at most 60000000. How far ahead a start may be charged.
-- ARGV[4..]   rules     six for each rule: kind, cost, a, b, c, d. See include/rules.lua.
--
-- Returns  {allowed, replayed, now, wait, binding, then five for each rule:
--           limited, remaining, retry, reset, place}
--          allowed    1 or 0
--          replayed   1 when this attempt had been granted before
--          now        integer µs, the clock of this call
--          wait       integer µs, rounded up. Allowed: until the start. Denied: until it
--                     would be allowed if nobody else came; -1 when that can't be told
--          binding    which rule (from 1) asks for the longest wait; 0 for none
--          limited    1 when this rule alone would not have admitted the cost now
--          remaining  integer units left after this call, rounded down
--          retry      integer µs until this rule alone would admit the cost; -1 can't be told
--          reset      integer µs until the rule is as if unused; -1 can't be told
--          place      where the units were put, for give_back; 0 when nothing was charged
--
-- Writes   KEYS[1..n+1] when allowed and not replayed. Nothing otherwise, but for the mending.
-- Source   docs/algorithms.md#one-decision

-- #include clock
-- #include pack
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include fixed_window when F
-- #include concurrency when C
-- #include rules
-- #include answer

local now = read_clock(ARGV[1])
local member, ahead = ARGV[2], tonumber(ARGV[3])
local n = #KEYS - 1
local attempt = KEYS[n + 1]

local function read_rules()
  local rules = {}
  for i = 1, n do
    rules[i] = read_rule(i, 6 * i - 2, member, now)
  end
  return rules
end

-- Charges every rule at start, or finds that this attempt was charged before and
-- charges nothing. The record goes first: it is what makes the call repeatable.
local function grant(rules, start, binding)
  local out, record = { 1, 0, now, start - now, binding }, pack(start)
  local retries, places = {}, {}
  for i = 1, n do
    local r = rules[i]
    retries[i] = start == now and 0 or retry_of(r, now)
    places[i] = algorithms[r.kind].charge(r, now, start)
    record = record .. pack(places[i])
  end
  if not redis.call('SET', attempt, record, 'NX', 'PX', 30000) then
    return nil
  end
  for i = 1, n do
    local r = rules[i]
    algorithms[r.kind].save(r, now, start)
    report(out, i, r, now, retries[i], places[i])
  end
  return out
end

-- The grant that this attempt had before, if it stands: one that was given back
-- is over and stays denied.
local function granted_before(rules)
  local record = redis.call('GET', attempt)
  if not record or #record ~= 7 * (n + 1) then
    return nil
  end
  local wait = max(0, unpack7(record, 1) - now)
  local out = { 1, 1, now, wait, 0 }
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
        algorithm.save(r, now)
      end
    end
  end
end

local rules = read_rules()
local start, binding, sure = joint_start(rules, now)
if sure and start - now <= ahead then
  local answer = grant(rules, start, binding)
  if answer then
    return answer
  end
  rules = read_rules()
end
local answer = granted_before(rules)
if answer then
  return answer
end
mend(rules)
return denied(rules, now, start, binding)
