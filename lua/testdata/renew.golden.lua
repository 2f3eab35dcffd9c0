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

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may pass a number instead; production passes "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes: one by plain arithmetic, where "%" is an instruction and
-- math.floor a call, and several at once by Redis's struct library. '>BI7' is a byte and a number. On a
-- server without that library, such as miniredis, they are packed here.
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

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local i, numbers = 0, { ... }
    return (string.gsub(sub(format, 2), '[BI]7?', function(kind)
      i = i + 1
      return kind == 'B' and char(numbers[i]) or pack(numbers[i])
    end))
  end,
  unpack = function(format, text)
    local out, at = {}, 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      for i = at, last do
        n = n * 256 + byte(text, i)
      end
      out[#out + 1], at = n, last + 1
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
-- A rate rule's state is one string whose first byte is its layout, so that a rule
-- whose algorithm has changed still finds the units that were spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
--   O till per total head last tail count ahead log, as F: fixed window that opens on use
-- All are numbers of seven bytes, except the log, and `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
-- when the state was written. A start that is further ahead now was written by a clock that
-- has since stepped back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, OPENED, HELD, CALENDAR = 84, 83, 70, 79, 67, 75

-- The first byte of the record of an attempt that was given back: no start begins with it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So the TTL is set to end LONGER after the state means
-- nothing any more, and kept while it ends at least LEAST and at most MOST after that.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000
-- Conversion of numbers to and from Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Whole numbers are converted to text by these formats alone, which keep every digit. %d takes a third of the time of
-- %.0f, but loses digits if the server's long has 32 bits.
local WHOLE, WHOLES = '%d', '%d %d %d %d %d'
if string.format(WHOLE, 4503599627370497) ~= '4503599627370497' then
  WHOLE, WHOLES = '%.0f', '%.0f %.0f %.0f %.0f %.0f'
end
local function whole(n)
  return string.format(WHOLE, n)
end

-- The TTL, in ms, of a key that means nothing any more us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- Keeps a key at least until it means nothing any more, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end

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
