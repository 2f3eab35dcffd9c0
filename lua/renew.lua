-- renew: keep the places of a run for another lease, if it still holds them all.
--
-- KEYS[1..n]  lease     sorted set of a concurrency rule: attempt ids by the end of their lease.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3..]   lease     integer µs for each rule.
--
-- Returns  {held, ends}
--          held  1, or 0 when any place was lost; then no lease is renewed
--          ends  integer µs until the first of the leases ends
--
-- Writes   KEYS[1..n] when held == 1.
-- Source   docs/algorithms.md#concurrency

-- #include core/clock
-- #include core/pack
-- #include core/layout
-- #include core/numbers
-- #include core/lease

for i = 1, #KEYS do
  local score = redis.call('ZSCORE', KEYS[i], ARGV[2])
  if not score or tonumber(score) <= now then
    return { 0, 0 }
  end
end
local ends = LONGEST_LEASE
for i = 1, #KEYS do
  local lease = tonumber(ARGV[i + 2])
  redis.call('ZADD', KEYS[i], whole(now + lease), ARGV[2])
  keep(KEYS[i], lease)
  ends = min(ends, lease)
end
return { 1, ends }
