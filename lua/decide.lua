-- decide: admit one attempt under every rule on its path, or say when to come back.
--
-- All rules pass and all are charged, at one start moment at most `ahead` from
-- now, or none is. Sent again under the same attempt key it is not charged again
-- and answers with the first grant. A denial changes nothing, but for mending a
-- key that has lost its TTL, or was written by a clock that has since stepped
-- back or under limits that have since changed.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 2. See include/core/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id: start, places, the id. What another
--                       attempt left there is written over.
-- KEYS[n+2]   upstream  hash, what the API has told of its limits. See include/upstream/upstream.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       integer µs >= 0, at most 60000000, how far ahead a start may be charged; behind it
--                       the path of the scope after the provider's name: "0/acme/refunds". Before it may
--                       stand what was too late before: leeway, how much later than its start the run may
--                       begin, "L20000 0/acme/refunds", or how far ahead the start must be at least,
--                       "F20000 30000/acme/refunds", both integer µs > 0. "?/acme/refunds" only asks what
--                       would be said now, changes nothing at all, and has the longer reply.
-- ARGV[4..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/core/rules.lua.
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
--          binding    which rule (from 1) asks for the longest wait; 0 for none, n+1 for a pause
--          limited    1 when this rule alone would not have admitted the cost now
--          remaining  integer units left after this call, rounded down
--          retry      integer µs until this rule alone would admit the cost; -1 can't be told
--          reset      integer µs until the rule is as if unused; -1 can't be told
--          place      where the units were put, for settle; 0 when nothing was charged
--
-- Writes   KEYS[1..n+1] when allowed, the last as it was when replayed. Nothing otherwise, but for the mending.
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
local ahead = tonumber((string.match(ask or ARGV[3], '^%d+'))) -- nil for one who only asks

-- #include core/numbers
-- #include core/rules
-- #include core/answer
-- #include upstream/upstream
-- #include core/grant

-- What one who only asks is told where all rules admit the cost now.
local function asked(rules)
  local out = { 1, 0, now, 0, 0 }
  for i = 1, n do
    report(out, i, rules[i], now, 0, 0)
  end
  return out
end

-- What this attempt has been: nil none, or a record that is none any more when it
-- was given back, or granted under other rules.
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
