-- heartbeat: count the live members of a group and be one of them for a while.
--
-- KEYS[1]  key     members
--
-- ARGV[1]  clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]  member  id of the caller.
-- ARGV[3]  stay    integer µs > 0 that the caller counts as live; 0 leaves.
--
-- Returns  {live}, how many members there are, the caller included while it stays
--
-- Writes   the key, a sorted set of member ids by the end of their stay.
-- Source   docs/operations.md#when-redis-cannot-answer

-- #include base

local key, stay = P, tonumber(ARGV[3]) -- P is KEYS[1]
call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
if stay == 0 then
  call('ZREM', key, ARGV[2])
else
  call('ZADD', key, whole(now + stay), ARGV[2])
  if call('PTTL', key) < stay / 1000 then call('PEXPIRE', key, outlast(stay)) end
end
return { call('ZCARD', key) }
