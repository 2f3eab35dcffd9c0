-- reset: make rate rules as if unused, and return how many units they had counted.
--
-- Tasks that wait for the rules are checked now.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 2. See include/core/layout.lua.
-- KEYS[n+1]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[n+2]   meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2..]   rules     one for each rule: the rule, which is never a concurrency rule. See include/core/rules.lua.
--
-- Returns  {now, then one for each rule, then waits}: used for each rule
--          now    integer µs, the clock of this call
--          used   integer units that still counted, rounded up, starts ahead included: what a bucket lacked,
--                 what was in a window, what was spent of a calendar's period
--          waits  1 if tasks wait for one of the rules, else 0
--
-- Writes   KEYS[1..n+1], the last only if tasks wait for the rules.
-- Source   docs/limits.md#what-is-in-force-and-who-set-it

-- #include core/clock
-- #include core/pack
-- #include core/layout
-- #include core/numbers
-- #include core/rules
-- #include fairshare/freed

local n = #KEYS - 2
local schedule, meta = KEYS[n + 1], KEYS[n + 2]
local provider = string.match(schedule, '^(.*)![^!]*$')

local used = {}

function used.T(r)
  return max(0, ceil((r.x - (now - r.at) * r.p) / r.q))
end

-- The state of a fixed window has the previous window too, which no longer counts.
function used.S(r)
  local units, from = 0, r.per > 0 and 0 or floor(now / r.grain) + 1
  stored.each(r.log, r.head, function(cell, some)
    units = units + (cell >= from and some or 0)
  end)
  return units + (r.tail >= from and r.count or 0)
end

-- If the latest period of the state is the next one, the current one is the one before it.
function used.K(r)
  return r.count + ((r.ahead or not r.stale and r.prior >= r.b0) and r.before or 0)
end

local out = { now }
for i = 1, n do
  local r = load_rule(i, ARGV[i + 1], 1, '', now)
  out[i + 1] = used[r.kind](r)
  redis.call('DEL', KEYS[i])
end
out[n + 2] = freed(schedule, meta, names_of_rules(n, #provider), now) and 1 or 0
return out
