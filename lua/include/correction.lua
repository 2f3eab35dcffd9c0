-- What an API has made of a rule: a part of its limit, which was cut when calls were refused
-- and grows back by the clock, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Seven numbers: when all of it is over; the part, in millionths, of when it was cut, and by
-- how many it grows in a second; a limit, 0 for none, its window in µs, and until when it holds.
local WHOLE = 1000000

local function read_correction(v)
  local r = { ends = unpack7(v, 1), since = unpack7(v, 8), part = unpack7(v, 15), grows = unpack7(v, 22),
    limit = unpack7(v, 29), per = unpack7(v, 36), till = unpack7(v, 43) }
  if r.till <= now then
    r.limit = 0
  end
  return r
end

local function part_at(r)
  return min(WHOLE, r.part + floor(max(0, now - r.since) * r.grows / 1000000))
end
