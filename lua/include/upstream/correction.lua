-- The correction of a rule by an API: a part of the rule's limit, which is cut when calls are refused
-- and grows with time, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Ten numbers: when all of it is over; a moment, the part at that moment, in millionths, and by how
-- much it grows in a second; a limit, 0 for none, its window in µs, and until when it is valid; until
-- when the part may be above the whole, since calls succeed; when it was cut; the most that a bucket holds
-- under the limit, 0 for what the rule says.
local WHOLE = 1000000

-- One table, since a chunk has few locals.
local corrections = {}

-- The present value of a pause (P) or a correction (R) of upstream. If the clock has stepped back behind the
-- moment at which it was written, its times step back too, or else it would last longer by the step. The
-- second result reports that.
function corrections.by_now(field, v)
  local back = v and unpack7(v, 8) - now or 0
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs(byte(field) == 80 and { 1, 8, 22 } or { 1, 8, 43, 50, 57 }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

local NUMBERS = { 'ends', 'since', 'part', 'grows', 'limit', 'per', 'till', 'raised', 'cut', 'burst' }

-- Parses a correction from its text. Without a text, nothing is corrected.
function corrections.read(v)
  local r = { ends = 0, since = 0, part = WHOLE, grows = 1, limit = 0, per = 0, till = 0, raised = 0, cut = 0, burst = 0 }
  for i, name in ipairs(v and NUMBERS or {}) do
    r[name] = unpack7(v, 7 * i - 6)
  end
  if r.till <= now then
    r.limit = 0
  end
  return r
end

function corrections.text(r)
  local out = {}
  for i, name in ipairs(NUMBERS) do
    out[i] = pack(r[name])
  end
  return table.concat(out)
end

-- The present part, at most `most`. While the API's own limit counts, it is at most the whole: after that
-- it grows on from there.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end
