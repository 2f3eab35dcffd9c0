-- join: count the live members of a group and be one of them for a while.
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

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may hand in a number instead; production hands in "".
local function read_clock(override)
  if override ~= '' then
    return tonumber(override)
  end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- A state written further ahead than this was written by a clock that has since
-- stepped back: no charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes. Plain arithmetic: not every
-- server has a struct library, and "%" is an instruction where math.floor is a
-- call.
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local char, byte = string.char, string.byte

local function pack(n)
  local low = n % 16777216
  local high = (n - low) / 16777216
  local g, d = low % 256, high % 256
  low, high = (low - g) / 256, (high - d) / 256
  local f, c = low % 256, high % 256
  high = (high - c) / 256
  local b = high % 256
  return char((high - b) / 256, b, c, d, (low - f) / 256, f, g)
end

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Numbers leave for Redis as text through this alone: %.0f keeps every digit.
local function whole(n)
  return string.format('%.0f', n)
end

-- The TTL, in ms, of a key whose meaning ends us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

-- Keeps the key at least until its meaning ends, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end

local now = read_clock(ARGV[1])
local stay = tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))
if stay == 0 then
  redis.call('ZREM', KEYS[1], ARGV[2])
else
  redis.call('ZADD', KEYS[1], whole(now + stay), ARGV[2])
  keep(KEYS[1], stay)
end
return { redis.call('ZCARD', KEYS[1]) }
