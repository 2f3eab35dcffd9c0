-- What an API has made of a rule: a part of its limit, which was cut when calls were refused
-- and grows by the clock, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; the part, in millionths, of a moment, and by how many
-- it grows in a second; a limit, 0 for none, its window in µs, and until when it holds; until
-- when the part may be above the whole, since calls go through; when it was cut. One that a
-- worker of an earlier version has written ends with the first seven.
local WHOLE = 1000000

local function read_correction(v)
  local r = { ends = unpack7(v, 1), since = unpack7(v, 8), part = unpack7(v, 15), grows = unpack7(v, 22),
    limit = unpack7(v, 29), per = unpack7(v, 36), till = unpack7(v, 43), raised = 0, cut = 0 }
  if r.till <= now then
    r.limit = 0
  end
  if #v > 49 then
    r.raised, r.cut = unpack7(v, 50), unpack7(v, 57)
  else
    r.cut = r.since
  end
  return r
end

-- The part by now, `most` at the most; while the API's own limit counts, the whole: from there
-- it grows on when that is over.
local function part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end
