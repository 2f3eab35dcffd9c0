-- Writes r's state, which means nothing any more lasts µs from now.
local function write(r, now, kind, state, lasts)
  lasts = ceil(lasts)
  local spare = r.till - now - lasts
  if spare >= LEAST and spare <= MOST then
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'KEEPTTL')
  else
    redis.call('SET', r.key, char(kind) .. pack(now + lasts + LONGER) .. state, 'PX', outlast(lasts + LONGER))
  end
end

-- What a state of another algorithm still holds against the rule: times and units by
-- turns, oldest first. Of a bucket, which knows no times, it is the level as of its last
-- decision: all that its rate has not let go.
local function carried(v)
  local kind = byte(v, 1)
  if kind == TOKEN then
    return { unpack7(v, 9), ceil(unpack7(v, 16) / unpack7(v, 23)) }
  elseif kind == FIXED then
    return { unpack7(v, 23), unpack7(v, 30), unpack7(v, 9), unpack7(v, 16) }
  elseif kind == CALENDAR then
    return { unpack7(v, 30), unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }
  end
  local out, grain, cell, i = {}, unpack7(v, 9), unpack7(v, 23), 51
  local function unvarint()
    local n, digit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(v, i)
    end
    i = i + 1
    return n + b * digit
  end
  while i <= #v do
    cell = i > 51 and cell + unvarint() or cell
    out[#out + 1], out[#out + 2] = cell * grain, unvarint()
  end
  out[#out + 1], out[#out + 2] = unpack7(v, 37) * grain, unpack7(v, 44)
  return out
end

-- The algorithms, by kind; those that a call has no rule of are left out of its
-- script, since making functions is what a short script spends most on. Each has
--   load(key, now, cost, a, b, c, d, member)  the rule as it stands; healed where
--                         that is no longer what is stored
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
