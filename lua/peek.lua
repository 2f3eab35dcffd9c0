-- peek: what decide would say now, changing nothing at all.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 1.
-- KEYS[n+1]   told      hash, what the API has told of its limits. See include/told.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    an attempt id: its own place under a concurrency rule counts as free.
-- ARGV[3]     scope     the path of the scope after the provider's name.
-- ARGV[4..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/rules.lua.
--
-- Returns  {allowed, 0, now, wait, binding, then five for each rule:
--           limited, remaining, retry, reset, 0}, as decide does.
--
-- Writes   nothing.
-- Source   docs/algorithms.md#one-decision

-- #include clock
-- #include pack
-- #include layout
-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include concurrency when C
-- #include calendar when K
-- #include rules
-- #include answer

local call, n, told = redis.call, #KEYS - 1, KEYS[#KEYS]
local heeds = call('EXISTS', told) == 1

-- #include told

local rules = {}
for i = 1, n do
  rules[i] = read_rule(i, 2 * i + 2, ARGV[2], now)
end
add_pauses(rules, ARGV[3])
local start, binding, sure = joint_start(rules, now)
if start > now or not sure then
  return denied(rules, now, start, binding)
end
local out = { 1, 0, now, 0, 0 }
for i = 1, n do
  report(out, i, rules[i], now, 0, 0)
end
return out
