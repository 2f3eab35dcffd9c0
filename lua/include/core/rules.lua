-- The rules of a call: each has a key, and two ARGV: the rule and its cost. A rule is a
-- letter and numbers of seven bytes each, as include/core/pack.lua writes them:
--   T token-bucket    p      q      cap    slack  most
--   S sliding-window  cap    per    grain  slack  most; fixed-window where per is 0,
--                     and where grain is 0 one that opens on use: its length with half of the slack is per
--   C concurrency     cap    lease  -      -      -
--   K calendar        cap    b0     b1     b2, and five more: slack, rollover, spread, a, b3; see
--                     include/algorithms/calendar.lua
-- The name of the unit that it counts may follow, if that is not requests, or "*": decisions get
-- the cost under each rule, and do not need the unit. p = 0 and cap = 0 suspend; slack < per, and
-- part of it in a sliding window. An API may raise a limit to `most` millionths of it, 0 for no
-- more than the limit. All times are whole microseconds.

-- #include core/state
-- #include core/lease
-- #include algorithms/token_bucket when T
-- #include algorithms/sliding_window when S
-- #include algorithms/concurrency when C
-- #include algorithms/calendar when K

-- Returns a rule's numbers as an API corrects them, if it has reported anything: see include/upstream/upstream.lua.
local corrected

local function most_of(rule)
  return max(1000000, #rule > 35 and unpack7(rule, 30) or 0)
end

-- Rule i, parsed from its text.
local function load_rule(i, rule, cost, member, now)
  local kind, _, a, b, c, d = sub(rule, 1, 1), unpacked('>BI7I7I7I7', rule)
  local changed, whole, burst
  if corrected then
    a, b, changed, whole, burst = corrected(KEYS[i], rule, kind, a, b, c, d)
  end
  local r = algorithms[kind].load(KEYS[i], now, cost, a, b, c, d, member, whole, rule)
  r.corrected, r.cap, r.raises = changed, burst or r.cap, kind == 'T' and most_of(rule) > 1000000
  return r
end
