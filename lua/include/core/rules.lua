-- The rules of a call: a key each, and two ARGV: the rule and its cost. A rule is a
-- letter and numbers of seven bytes each, as include/core/pack.lua writes them:
--   T token-bucket    p      q      cap    slack  most
--   S sliding-window  cap    per    grain  slack  most; fixed-window where per is 0
--   C concurrency     cap    lease  -      -      -
--   K calendar        cap    b0     b1     b2, and five more: slack, rollover, spread, a, b3; see
--                     include/algorithms/calendar.lua
-- The name of what it counts may follow, where that is not requests, or "*": decisions are told
-- what each rule costs, and have no need of it. p = 0 and cap = 0 suspend; slack < per, and part
-- of it in a sliding window. What an API says may make most millionths of a limit, 0 for no more
-- than it is. All times are whole microseconds.

-- #include core/state
-- #include core/lease
-- #include algorithms/token_bucket when T
-- #include algorithms/sliding_window when S
-- #include algorithms/concurrency when C
-- #include algorithms/calendar when K

-- What an API makes of a rule's numbers, where it has told anything: see include/upstream/upstream.lua.
local corrected

local function most_of(rule)
  return max(1000000, #rule > 35 and unpack7(rule, 30) or 0)
end

-- Rule i, which a text describes.
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
