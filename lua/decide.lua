-- decide: admit one attempt under every rule on its path, or return when to try again.
--
-- Either all rules admit it and all are charged, at one start moment at most `ahead` from now, or
-- no rule is charged. Sent again under the same attempt key, it is not charged again and returns the
-- first grant. A denial changes nothing but damaged keys: it mends a key that has lost its TTL, and a
-- state that was written by a clock that has since stepped back or under limits that have since
-- changed.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 2. See include/core/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id: start, places, the id. The record of
--                       another attempt there is overwritten.
-- KEYS[n+2]   upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       integer µs >= 0, at most 60000000, how far ahead a start may be charged; then the
--                       path of the scope after the provider's name: "0/acme/refunds". A prefix is for a
--                       start that came too late before: the leeway, by how much the run may begin after
--                       its start, "L20000 0/acme/refunds", or how far ahead the start must be at least,
--                       "F20000 30000/acme/refunds", both integer µs > 0. "?/acme/refunds" only asks for
--                       the answer of this moment, changes nothing at all, and gets the longer reply.
-- ARGV[4..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/core/rules.lua.
--
-- Returns  {allowed, replayed, now, wait, binding, then five for each rule:
--           limited, remaining, retry, reset, place}, or, allowed from now on, shorter:
--          {now, then three for each rule: remaining, reset, place}
--          allowed    1 or 0
--          replayed   1 when this attempt had been granted before
--          now        integer µs, the clock of this call
--          wait       integer µs, rounded up. Allowed: until the start, negative if the start of a
--                     replayed grant has passed. Denied: until it would be allowed if no other
--                     attempt came; -1 if unknown
--          binding    which rule (from 1) asks for the longest wait; 0 for none, n+1 for a pause
--          limited    1 when this rule alone would not have admitted the cost now
--          remaining  integer units left after this call, rounded down
--          retry      integer µs until this rule alone would admit the cost; -1 if unknown
--          reset      integer µs until the rule is as if unused; -1 if unknown
--          place      where the units were charged, for settle; 0 when nothing was charged
--
-- Writes   KEYS[1..n+1] when allowed; when replayed, the last gets the value that it had. Nothing otherwise, except to mend.
-- Source   docs/algorithms.md#one-decision

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call, format = redis.call, string.format
local member = ARGV[2]
local n, base = #KEYS - 2, 2
local attempt, upstream = KEYS[n + 1], KEYS[n + 2]
local provider, scope = sub(upstream, 1, -10), string.match(ARGV[3], '/.*$') or ''
local reported = call('EXISTS', upstream) == 1

-- #include fastpath/upstream

if not reported and byte(ARGV[3]) < 58 then -- a digit, and no lateness
  -- #include fastpath/decide
end

-- The general way.

local late, ask = string.match(ARGV[3], '^([LF]%d+) (.*)$')
local ahead = tonumber((string.match(ask or ARGV[3], '^%d+'))) -- nil for a call that only asks

-- #include core/numbers
-- #include core/rules
-- #include core/answer
-- #include upstream/upstream
-- #include core/grant

-- The reply to a call that only asks, when all rules admit the cost now.
local function asked(rules)
  local out = { 1, 0, now, 0, 0 }
  for i = 1, n do
    report(out, i, rules[i], now, 0, 0)
  end
  return out
end

-- The record of this attempt, nil for none. It no longer counts as a grant if the attempt was given
-- back, or was granted under other rules.
local before = ahead and call('GET', attempt)
if before and sub(before, -#member) ~= member then
  before = nil
end
local rules = read_rules()
local start, binding, sure = joint_start(rules, now + from)
if not ahead then
  return sure and start == now and asked(rules) or denied(rules, now, start, binding)
elseif before and #before == 7 * (n + 1) + #member then
  return granted_before(rules, before)
elseif sure and start - now <= ahead and not before then
  return grant(rules, start, binding)
end
if from > 0 then
  start, binding = joint_start(rules, now)
end
mend(rules)
return denied(rules, now, start, binding)
