-- What every script has: the clock, the names of keys, conversions.
--
-- KEYS[1] is the prefix of a provider's keys, such as "hw:{acme}:". All other keys are built from it, so they share its slot.
-- KEYS[2] does not exist, and no script reads it: with two keys a cluster refuses the call while it moves their slot.
-- ARGV[1] is "" for the server's clock, or integer µs since the epoch (tests).
--
-- A node is the provider, '', or a name of a path, '/acme' or '/acme/refunds'. Names are escaped: they contain no ':', '/'
-- or control character, and nor do the names of rules and queues. Source: docs/keys.md
local call, P, now = redis.call, KEYS[1], tonumber(ARGV[1])
if not now then
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local sub, byte, char, match = string.sub, string.byte, string.char, string.match

-- The largest number below which whole numbers are exact. It means never.
local EXACT = 9007199254740991

-- Whole numbers are stored big-endian, most in seven bytes. A server without Redis's struct library, such as miniredis, has the
-- formats that are used here: "B" is a byte, "I7" a number of seven.
local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local i, numbers = 0, { ... }
    return (string.gsub(sub(format, 2), '[BI](%d?)', function(size)
      i = i + 1
      local n, text = numbers[i], ''
      for _ = 1, tonumber(size) or 1 do text, n = char(n % 256) .. text, floor(n / 256) end
      return text
    end))
  end,
  unpack = function(format, text, at)
    local out = {}
    at = at or 1
    for size in string.gmatch(format, '[BI](%d?)') do
      local n, after = 0, at + (tonumber(size) or 1)
      for i = at, after - 1 do n = n * 256 + byte(text, i) end
      out[#out + 1], at = n, after
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
local function whole(n) return string.format('%.0f', n) end -- as Redis's commands take whole numbers

-- The TTL of a key that means nothing any more us µs from now, in ms: a second more.
local function outlast(us) return whole(min(EXACT, ceil(us / 1000) + 1000)) end
