-- heartbeat: count the live members of a group and be one of them for a while.
--
-- KEYS[1]  key     a sorted set of member ids by the end of their stay.
-- ARGV[1]  clock   as in include/base.lua. ARGV[2] is the id of the caller, and
-- ARGV[3]  stay    integer µs > 0 that it counts as live; 0 leaves.
-- Returns  {live}, how many members there are, the caller included while it stays
-- Writes   the key.
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
