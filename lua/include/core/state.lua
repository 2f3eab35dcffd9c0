-- Writes r's state, which means nothing any more after `lasts` µs. A call may write it twice: after its refunds, and
-- after its charges.
local function write(r, now, kind, state, lasts)
  lasts = ceil(lasts)
  local spare = r.till - now - lasts
  if spare >= LEAST and spare <= MOST then
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'KEEPTTL')
  else
    r.till = now + lasts + LONGER
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'PX', outlast(lasts + LONGER))
  end
end

-- How far the latest start of a state is ahead of the clock, and the steps of the clock that follow
-- from that. It is one table, since a chunk has few locals.
local stored = { known = {} }

-- The state of a rule. A call that needs many reads them at once.
function stored.get(key)
  local v = stored.known[key]
  if v == nil then
    return redis.call('GET', key)
  end
  return v
end

-- The byte `ahead` of the state.
function stored.ahead(now, latest)
  return char(min(255, max(0, ceil((latest - now) / 250000))))
end

-- By how many µs at least the clock has stepped back since the state was written; 0 for less than
-- a second, or less than `least`, for which the rule waits. With that subtracted, all times of the state
-- are, against the clock, no earlier than in truth, and no later than when the state was written.
function stored.stepped(now, latest, notches, least)
  local back = latest - notches * 250000 - now
  return back > max(1000000, least or 0) and back or 0
end

-- Calls visit(cell, units, entry, from, to, before) for each entry of a log of cells, oldest first,
-- until it returns true. A log is varints: units, then (cells since the one before, units) for each
-- next entry; head is the first cell. The entry begins at `entry` and its units at `from`, up to but
-- not including `to`; `before` is the cell before.
function stored.each(log, head, visit)
  if log == '' then
    return
  end
  local i = 1
  local function varint()
    local n, digit, b = 0, 1, byte(log, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(log, i)
    end
    i = i + 1
    return n + b * digit
  end
  local cell, before = head, nil
  while i <= #log do
    local entry = i
    cell = before and before + varint() or cell
    local from = i
    local units = varint()
    if visit(cell, units, entry, from, i, before) then
      return
    end
    before = cell
  end
end

-- The units of a state of another algorithm that still count under the rule: times and units by
-- turns, oldest first. A bucket knows no times: its units are the level as of its last decision,
-- which its rate has not drained. A fixed window counts at its end, or now. The
-- second result is by how many µs the clock has stepped back.
function stored.carried(v)
  local kind = byte(v, 1)
  if kind == TOKEN then
    local at = unpack7(v, 9)
    local back = stored.stepped(now, at, byte(v, 44))
    return { at - back, ceil(unpack7(v, 16) / unpack7(v, 23)) }, back
  elseif kind == CALENDAR then
    return { unpack7(v, 30), unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }, 0
  end
  local out, grain, tail = {}, unpack7(v, 9), unpack7(v, 37)
  local width = grain
  if kind == OPENED then -- its cells are beginnings, in µs, not ends
    grain, tail = 1, tail + width
  end
  local back = floor(stored.stepped(now, tail * grain - width, byte(v, 51)) / grain)
  local function add(cell, units)
    local t = (cell - back) * grain
    if kind ~= SLIDING then
      t = t - width > now and t - 1 or max(0, min(t - 1, now))
    end
    out[#out + 1], out[#out + 2] = t, units
  end
  stored.each(sub(v, 52), unpack7(v, 23) + (kind == OPENED and width or 0), add)
  add(tail, unpack7(v, 44))
  return out, back
end

-- The algorithms, by kind. Those that a call has no rule of are left out of its script, since
-- a short script spends most of its time on making functions. Each has
--   load(key, now, cost, a, b, c, d, member, whole, rule)  the current state of the rule; healed if
--                         it differs from what is stored, and stepped if the clock has
--                         stepped back since: then it must be stored, or each read would find
--                         the state as new as the first did
--   fit(r, t)             the first moment from t on at which it admits the cost, and
--                         true if it may be later; nil if unknown
--   charge(r, now, start) charges the cost at start, in r only; returns its place
--   refund(r, now, place) refunds it, in r only; returns the units that came back,
--                         and sets r.changed if anything did
--   save(r, now, start)   writes r
--   remaining(r, now)     units left
--   reset(r, now)         µs until it is as if unused; -1 if unknown
--   lasts(r, now)         µs until the state means nothing any more
-- Concurrency has no state but its places: it refunds at once and has no lasts.
local algorithms = {}
