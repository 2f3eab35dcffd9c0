-- token-bucket: at most cap + p/q * t units start in any interval of t µs. They also
-- arrive within that limit if their delays differ by up to slack µs.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains at p parts a µs. x is the level at
-- `at`, the latest start so far, which never repeats, so that it also identifies the grant. `low`
-- is the lowest level that any charge after `since` met: no grant since
-- then can have been refilled below it, so a refund up to `low` is exact.
do
  -- The highest level after a change of a limit: sums must stay exact.
  local MOST_PARTS = 4503599627370496

  -- How many µs, at most, a bucket waits for a clock that has stepped back.
  local TO_AND_FRO = 10000000

  -- The level at t, negative if the bucket has been full for a while.
  local function level(r, t)
    return r.x - (t - r.at) * r.p
  end

  -- x parts, of which q are a unit, converted to parts of this rule's own unit.
  local function convert(r, x, q, round)
    local rest = x % q
    return min(MOST_PARTS, (x - rest) / q * r.q + round(rest / q * r.q))
  end

  -- Drops the part of the level that a changed limit puts beyond full: after a limit was lowered,
  -- a request would wait until that part has drained at the new rate. Units granted ahead
  -- are kept on top. A correction of the rate by an API drops nothing, not even
  -- debts under another burst: `whole` is the rate without the correction.
  local function clip(r, whole)
    local most = (whole and 2 or 1) * r.cap * r.q + FAR_AHEAD * max(r.p, whole or 0)
    if r.p > 0 and r.x > most then
      r.x, r.since, r.low = most, r.at + 1, 0
    end
  end

  local function load(key, now, cost, p, q, cap, slack, _, whole)
    local r = { kind = 'T', key = key, cost = cost, p = p, q = q, cap = cap, slack = slack,
      at = now - slack - 1, x = 0, since = now, low = UNTOUCHED, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= TOKEN then
      -- What the bucket would hold, had it existed at the time: no more than that is spent.
      local units = stored.carried(v)
      r.at, r.low, r.healed = min(units[1], now), 0, true
      for i = 1, #units, 2 do
        local t = min(units[i], now)
        r.x = max(0, r.x - (t - r.at) * p)
        r.x, r.at = min(MOST_PARTS, r.x + min(MOST_PARTS, units[i + 1] * q)), t
      end
      clip(r)
      return r
    end
    local _, till, at, x, before, since, low = unpacked('>BI7I7I7I7I7I7', v)
    r.till, r.at, r.x, r.since, r.low = till, at, x, since, low
    if before ~= q and p > 0 then
      r.x = convert(r, r.x, before, ceil)
      r.low = r.low < UNTOUCHED and max(0, convert(r, r.low, before, floor) - 1) or r.low
      -- A bucket that was corrected before counted in finer parts of the same unit.
      clip(r, whole or before > q and before % q == 0 and p)
    end
    -- A clock that steps back and forth would fill the bucket each time that it steps forward. So the
    -- bucket waits for the clock, if that takes no longer than filling does.
    local back = stored.stepped(now, r.at, byte(v, 44), p > 0 and min(TO_AND_FRO, cap * q / p) or 0)
    if back > 0 then
      r.at, r.low, r.healed, r.stepped = r.at - back, 0, true, true
      r.since = r.at
    end
    return r
  end

  local function fit(r, t)
    if r.p == 0 or r.cost > r.cap then
      return nil
    end
    local over = level(r, t) + r.slack * r.p + (r.cost - r.cap) * r.q
    return over <= 0 and t or t + ceil(over / r.p)
  end

  local function charge(r, now, start)
    local p, at_start = r.p, max(0, level(r, start))
    -- The level is kept as of the latest start: a corrected rate may be whole before the start comes, or be
    -- raised by then, and must not drain what is taken at the start; and no start is later than `at`.
    local mark = max(start, r.at + 1)
    local x = max(level(r, now), (start - now) * p) + r.cost * r.q
    if at_start < r.q then
      r.since, r.low = mark, UNTOUCHED
    elseif at_start < r.low then
      r.low = at_start
    end
    r.x, r.at = max(0, x - (mark - now) * p), mark
    return mark
  end

  -- What the level at any start up to a moment was made of, at least, by the charge at r.started: it drains at p. 0 where
  -- that start is not known, or the rate has changed since.
  local function left_by(r, upto)
    return r.started and max(0, r.cost * r.q - (upto - r.started) * r.p) or 0
  end

  local function refund(r, now, mark)
    if r.p == 0 or not r.found or r.healed or mark > r.at then
      return 0
    end
    local back = max(0, min(r.cost * r.q, level(r, now), r.x))
    if mark < r.since then
      back = min(back, r.low, left_by(r, r.since))
    elseif mark < r.at then
      back = min(back, max(r.low, left_by(r, r.at)))
    end
    if mark < r.at and r.low < UNTOUCHED then
      r.low = max(0, r.low - back)
      if back > 0 and r.low < r.cost * r.q and 2 * left_by(r, r.at) > r.cost * r.q then
        r.since, r.low = r.at, UNTOUCHED -- by that, grants of about the same age lose less
      end
    end
    r.x, r.changed = r.x - back, back > 0
    return floor(back / r.q)
  end

  -- After charges of some units at one moment, the first of which met little: each later charge meets what they left,
  -- so that they are best told from it by time.
  local function close(r, units)
    if r.low < units * r.q then
      r.since, r.low = r.at, UNTOUCHED
    end
  end

  -- A bucket that has been full for less than slack is not yet as if unused.
  local function lasts(r, now)
    return max(0, level(r, now) / r.p + r.slack)
  end

  local function save(r, now)
    write(r, now, TOKEN, packed('>I7I7I7I7I7', r.at, r.x, r.q, r.since, r.low) .. stored.ahead(now, r.at), lasts(r, now))
  end

  local function remaining(r, now)
    return r.p == 0 and 0 or max(0, floor((r.cap * r.q - max(0, level(r, now) + r.slack * r.p)) / r.q))
  end

  local function reset(r, now)
    return r.p == 0 and -1 or ceil(lasts(r, now))
  end

  algorithms.T = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts, close = close }
end
