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
-- How long the runs under a concurrency rule take: an estimate, which no decision depends on. It needs floor and the numbers.
--
-- runs  string "runs mean deviation": how many runs it stands for, and their mean and standard deviation in µs. Once it
--       stands for a hundred, each later run takes a hundredth of it.
-- Source: docs/algorithms.md#run-times
local MOST_RUNS, LONGEST_RUN = 100, 4503599627370496
local RUNS_STAY = 86400000 -- ms: the next day's first forecast reads it, too

local function note_run(key, took)
  local v = redis.call('MGET', key)[1] -- no error from a key of another type: what is damaged is written anew
  local runs, mean, deviation = string.match(v or '', '^(%d+) (%d+) (%d+)$')
  runs, mean, deviation = tonumber(runs), tonumber(mean), tonumber(deviation)
  if not (runs and mean and deviation and max(mean, deviation) <= LONGEST_RUN) then
    runs, mean, deviation = 0, 0, 0
  end
  runs = min(runs + 1, MOST_RUNS)
  local off, variance = took - mean, deviation * deviation
  mean = mean + off / runs
  variance = max(0, variance + (off * (took - mean) - variance) / runs)
  local text = whole(runs) .. ' ' .. whole(floor(mean + 0.5)) .. ' ' .. whole(floor(math.sqrt(variance) + 0.5))
  redis.call('SET', key, text, 'PX', whole(RUNS_STAY))
end
-- Has the waiting tasks of some levels checked now: units of their rules have come free, or the rules have
-- changed. It needs sub and whole; names are those of the rules. Returns whether any tasks wait there.
-- Source: docs/turns.md#the-tree
local function freed(schedule, meta, names, now)
  if #names == 0 or redis.call('EXISTS', schedule) == 0 then
    return false
  end
  local fields = {}
  for i = 1, #names do
    fields[i] = 'n' .. string.match(names[i], '^[^:]*')
  end
  local nodes, any = redis.call('HMGET', meta, unpack(fields)), false
  for i = 1, #fields do
    for sig in string.gmatch(nodes[i] or '', '\n([^ ]*)') do -- the record of a node: see tree.lua
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), sub(fields[i], 2) .. '\0' .. sig)
      any = true
    end
  end
  return any
end

-- The names of rules 1 to n; `length` is the length of the provider's prefix of their keys.
local function names_of_rules(n, length)
  local names = {}
  for i = 1, n do
    names[i] = sub(KEYS[i], length + 1)
  end
  return names
end

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
