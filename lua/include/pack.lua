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
