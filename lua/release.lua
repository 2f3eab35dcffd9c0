-- release: free the places of a run. Harmless when it holds none.
--
-- KEYS[1..n]  lease     sorted set of a concurrency rule: attempt ids by the end of their lease.
--
-- ARGV[1]     member    the attempt id.
--
-- Returns  {freed}, how many places it held
--
-- Writes   KEYS[1..n].
-- Source   docs/algorithms.md#concurrency

local freed = 0
for i = 1, #KEYS do
  freed = freed + redis.call('ZREM', KEYS[i], ARGV[1])
end
return { freed }
