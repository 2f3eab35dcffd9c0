-- Whole numbers below 2^53 as seven big-endian bytes: one by plain arithmetic, where "%" is an instruction and
-- math.floor a call, and several at once by Redis's struct library. '>BI7' is a byte and a number. A
-- server without that library, as miniredis, does it here.
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
    local out, numbers = {}, { ... }
    for i = 2, #format do
      local kind = byte(format, i)
      if kind == 66 then
        out[#out + 1] = char(numbers[#out + 1])
      elseif kind == 73 then
        out[#out + 1] = pack(numbers[#out + 1])
      end
    end
    return table.concat(out)
  end,
  unpack = function(format, text)
    local out, at = {}, 1
    for i = 2, #format do
      local kind = byte(format, i)
      if kind == 66 then
        out[#out + 1], at = byte(text, at), at + 1
      elseif kind == 73 then
        local a, b, c, d, e, f, g = byte(text, at, at + 6)
        out[#out + 1], at = (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g, at + 7
      end
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
