-- heartbeat: count the live members of a group and be one of them for a while.
--
-- KEYS[1]  members  sorted set of member ids by the end of their stay, µs.
--
-- ARGV[1]  clock    "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]  member   id of the caller.
-- ARGV[3]  stay     integer µs > 0 that the caller counts as live; 0 leaves.
--
-- Returns  {live}, how many members there are, the caller included while it stays
--
-- Writes   KEYS[1].
-- Source   docs/operations.md#when-redis-cannot-answer

-- #include core/clock
-- #include core/pack
-- #include core/layout
-- #include core/numbers
-- #include core/lease

local stay = tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
if stay == 0 then
  redis.call('ZREM', KEYS[1], ARGV[2])
else
  redis.call('ZADD', KEYS[1], whole(now + stay), ARGV[2])
  keep(KEYS[1], stay)
end
return { redis.call('ZCARD', KEYS[1]) }
