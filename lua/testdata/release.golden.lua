-- release: free the places of a run. Harmless when it holds none.
--
-- KEYS[1..n]  lease     sorted set of a concurrency rule: attempt ids by the end of their lease; n = #KEYS - 1.
-- KEYS[n+1]   due       sorted set of rules that tasks wait for, by the time to look. See
--                       include/turns/lines.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
--
-- Returns  {freed}, how many places it held
--
-- Writes   KEYS[1..n], and KEYS[n+1] where tasks wait for them.
-- Source   docs/algorithms.md#concurrency

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may hand in a number instead; production hands in "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes. Plain arithmetic: not every
-- server has a struct library, and "%" is an instruction where math.floor is a
-- call.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

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
-- Numbers on their way out of and into Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Numbers leave as text through this alone: %.0f keeps every digit.
local function whole(n)
  return string.format('%.0f', n)
end

-- The TTL, in ms, of a key whose meaning ends us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- Lets the rounds of rules 1 to n be looked at now, where tasks wait for them:
-- something of them has become free.
local function freed(due, n, now)
  if redis.call('EXISTS', due) == 1 then
    for i = 1, n do
      redis.call('ZADD', due, 'XX', 'LT', whole(now), sub(KEYS[i], #due - 3))
    end
  end
end

local n, places = #KEYS - 1, 0
for i = 1, n do
  places = places + redis.call('ZREM', KEYS[i], ARGV[2])
end
if places > 0 then
  freed(KEYS[n + 1], n, now)
end
return { places }
