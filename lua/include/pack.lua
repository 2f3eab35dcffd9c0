-- Whole numbers below 2^53 as seven big-endian bytes, by Redis's struct library: '>BI7' is a
-- byte and a number. A server without that library, as miniredis, does it here.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local out, i = {}, 0
    for kind in string.gmatch(format, '[BI]') do
      i = i + 1
      local n = select(i, ...)
      for place = kind == 'B' and 0 or 6, 0, -1 do
        out[#out + 1] = char(floor(n / 256 ^ place) % 256)
      end
    end
    return table.concat(out)
  end,
  unpack = function(format, text, at)
    local out = {}
    at = at or 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      while at <= last do
        n, at = n * 256 + byte(text, at), at + 1
      end
      out[#out + 1] = n
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack

local function pack(n)
  return packed('>I7', n)
end
