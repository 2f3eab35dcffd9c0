-- Writes r's state, which means nothing any more lasts µs from now. A call may write it twice: what it gave back, and
-- what it took then.
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

-- How far the latest start of a state is ahead of the clock, and what that tells of steps of the
-- clock. It is one table, since locals are few.
local stored = { known = {} }

-- The state of a rule: a call that needs many reads them at once.
function stored.get(key)
  local v = stored.known[key]
  if v == nil then
    return redis.call('GET', key)
  end
  return v
end

-- The byte of the state.
function stored.ahead(now, latest)
  return char(min(255, max(0, ceil((latest - now) / 250000))))
end

-- By how many µs the clock has stepped back since the state was written, at least; 0 for less than
-- a second, or than `least`, which is waited for. With so much taken off, all its times are no earlier
-- against the clock than they are in truth, and no later than when it was written.
function stored.stepped(now, latest, notches, least)
  local back = latest - notches * 250000 - now
  return back > max(1000000, least or 0) and back or 0
end

-- Calls visit(cell, units, entry, from, to, before) for each entry of a log of cells, oldest first,
-- until it returns true. A log is varints: units, then (cells since the one before, units) for each
-- next; head is the first cell. The entry begins at `entry` and its units stand at `from`, up to but
-- not at `to`; `before` is the cell before.
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

-- What a state of another algorithm still holds against the rule: times and units by
-- turns, oldest first. Of a bucket, which knows no times, it is the level as of its last
-- decision: all that its rate has not let go. Of a fixed window it is the end, or now. The
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
  local back = floor(stored.stepped(now, (tail - 1) * grain, byte(v, 51)) / grain)
  local function add(cell, units)
    local t = (cell - back) * grain
    if kind == FIXED then
      t = t - grain > now and t - 1 or max(0, min(t - 1, now))
    end
    out[#out + 1], out[#out + 2] = t, units
  end
  stored.each(sub(v, 52), unpack7(v, 23), add)
  add(tail, unpack7(v, 44))
  return out, back
end

-- The algorithms, by kind; those that a call has no rule of are left out of its
-- script, since making functions is what a short script spends most on. Each has
--   load(key, now, cost, a, b, c, d, member, whole, rule)  the rule as it stands; healed where
--                         that is no longer what is stored, and stepped where the clock has
--                         stepped back since: it must be stored, or each look would find the
--                         state as new as the first one did
--   fit(r, t)             the first moment from t on at which it admits the cost, and
--                         true where it may be later; nil can't tell
--   charge(r, now, start) takes the cost at start, in r only; returns its place
--   refund(r, now, place) takes it back, in r only; returns the units that came
--                         back, and says in r.changed whether anything did
--   save(r, now, start)   writes r
--   remaining(r, now)     units left
--   reset(r, now)         µs until it is as if unused; -1 can't tell
--   lasts(r, now)         µs until the state means nothing any more
-- Concurrency keeps no state but its places: it refunds at once and has no lasts.
local algorithms = {}
