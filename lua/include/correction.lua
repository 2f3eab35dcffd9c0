-- What an API has made of a rule: a part of its limit, which was cut when calls were refused
-- and grows by the clock, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; the part, in millionths, of a moment, and by how many
-- it grows in a second; a limit, 0 for none, its window in µs, and until when it holds; until
-- when the part may be above the whole, since calls go through; when it was cut. One that a
-- worker of an earlier version has written ends with the first seven.
local WHOLE = 1000000

-- One table, since locals are few.
local corrections = {}

-- What says by its moment i when it was written, with the moments at all of a list of places as
-- they are since the clock has stepped back behind that: or else it would hold longer by the step.
-- The second result says so.
function corrections.brought_back(v, i, ...)
  local back = unpack7(v, i) - now
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs({ ... }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

-- The second result is the text of one that a step of the clock has changed.
function corrections.read(v)
  local changed
  if #v > 49 then
    v, changed = corrections.brought_back(v, 8, 1, 8, 43, 50, 57)
  end
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
  return r, changed and v or nil
end

-- The part by now, `most` at the most; while the API's own limit counts, the whole: from there
-- it grows on when that is over.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end
