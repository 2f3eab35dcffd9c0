-- release: free the places of a run, and note how long it held them. Harmless when it holds none.
--
-- KEYS[1..n]  lease     sorted set of a concurrency rule: attempt ids by the end of their lease; n = (#KEYS - 2) / 2.
-- KEYS[n+1..] runs      string, one for each rule: how long its runs take. See include/core/run_times.lua.
-- KEYS[n+n+1] schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[n+n+2] meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3]     took      integer µs for which it held its places.
--
-- Returns  {freed, waits}: how many places it held, and 1 if tasks wait for such places, else 0
--
-- Writes   KEYS[1..n], KEYS[n+1..n+n] of those that it held, and KEYS[n+n+1] if tasks wait for them.
-- Source   docs/algorithms.md#concurrency

-- #include core/clock
-- #include core/pack
-- #include core/numbers
-- #include core/run_times
-- #include fairshare/freed

local n, places = (#KEYS - 2) / 2, 0
local schedule, meta = KEYS[2 * n + 1], KEYS[2 * n + 2]
local provider = string.match(schedule, '^(.*)![^!]*$')
for i = 1, n do
  if redis.call('ZREM', KEYS[i], ARGV[2]) == 1 then
    places = places + 1
    note_run(KEYS[n + i], tonumber(ARGV[3]))
  end
end
local waits = freed(schedule, meta, names_of_rules(n, #provider), now)
return { places, waits and 1 or 0 }
