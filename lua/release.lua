-- release: free the places of a run. Harmless when it holds none.
--
-- KEYS[1..n]  lease     sorted set of a concurrency rule: attempt ids by the end of their lease; n = #KEYS - 2.
-- KEYS[n+1]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[n+2]   meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
--
-- Returns  {freed, waits}: how many places it held, and 1 if tasks wait for such places, else 0
--
-- Writes   KEYS[1..n], and KEYS[n+1] if tasks wait for them.
-- Source   docs/algorithms.md#concurrency

-- #include core/clock
-- #include core/pack
-- #include core/numbers
-- #include fairshare/freed

local n, places = #KEYS - 2, 0
local provider = string.match(KEYS[n + 1], '^(.*)![^!]*$')
for i = 1, n do
  places = places + redis.call('ZREM', KEYS[i], ARGV[2])
end
local waits = freed(KEYS[n + 1], KEYS[n + 2], names_of_rules(n, #provider), now)
return { places, waits and 1 or 0 }
