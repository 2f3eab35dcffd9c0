-- token-bucket: at most cap + p/q * t units start in any interval of t µs. They also arrive within that limit if their
-- delays differ by up to slack µs.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains at p parts a µs. x is the level at `at`, the latest start so far, which
-- never repeats, so that it also identifies the charge. `low` is the lowest level that any charge after `since` met: no charge
-- since then can have been refilled below it, so a refund up to `low` is exact.
algorithms.T = function()
  -- The highest level: sums must stay exact.
  local MOST, UNTOUCHED = 4503599627370496, EXACT

  -- The level at t, negative if the bucket has been full for a while.
  local function level(r, t) return r.x - (t - r.at) * r[1] end

  -- x parts, of which `was` were a unit, in parts of this rule.
  local function convert(r, x, was, round)
    local rest = x % was
    return min(MOST, (x - rest) / was * r[2] + round(rest / was * r[2]))
  end

  -- The first moment from t on at which c more units fit after others.
  local function fit(r, t, c, others)
    local p, q, cap = r[1], r[2], r[3]
    if p == 0 or c > cap then return nil end
    local over = level(r, t) + r[4] * p + (c + (others or 0) - cap) * q
    return over <= 0 and t or t + ceil(over / p)
  end

  return {
    load = function(r, v)
      local p, q, cap, slack = r[1], r[2], r[3], r[4]
      r.at, r.x, r.since, r.low, r.written = now - slack - 1, 0, now, UNTOUCHED, now
      if not v or byte(v, 1) ~= 84 then return end
      local _, written, at, x, was, since, low = unpacked('>BI7I7I7I7I7I7', v)
      local back = max(0, written - now)
      r.written, r.at, r.x, r.since, r.low = written - back, at - back, x, since - back, back > 0 and 0 or low
      if was ~= q and p > 0 then
        r.x = convert(r, x, was, ceil)
        r.low = low < UNTOUCHED and max(0, convert(r, low, was, floor) - 1) or low
        -- A changed limit drops what is beyond full, but not what starts ahead.
        local most = cap * q + max(0, r.at - now) * p
        if r.x > most then r.x, r.since, r.low = most, r.at + 1, 0 end
      end
    end,

    fit = function(r, t, c) return fit(r, t, c) end,

    charge = function(r, start, c)
      local p, met, mark = r[1], max(0, level(r, start)), max(start, r.at + 1)
      local x = max(level(r, now), (start - now) * p) + c * r[2]
      if met < r[2] then
        r.since, r.low = mark, UNTOUCHED
      else
        r.low = min(r.low, met)
      end
      r.x, r.at, r.written = max(0, x - (mark - now) * p), mark, now
      return mark
    end,

    refund = function(r, mark, c)
      if r[1] == 0 or mark > r.at or mark < r.since then return 0 end
      local back = max(0, min(c * r[2], level(r, now), r.x))
      if mark < r.at and r.low < UNTOUCHED then
        back = min(back, r.low)
        r.low = r.low - back
      end
      r.x = r.x - back
      return floor(back / r[2])
    end,

    -- A bucket that has been full for less than slack is not yet as if unused.
    save = function(r)
      local lasts = r[1] > 0 and max(0, level(r, now) / r[1] + r[4]) or EXACT / 1000
      return packed('>BI7I7I7I7I7I7', 84, r.written, r.at, r.x, r[2], r.since, r.low), lasts
    end,

    left = function(r) return r[1] == 0 and 0 or max(0, floor((r[3] * r[2] - max(0, level(r, now) + r[4] * r[1])) / r[2])) end,
    room = function(r) return max(0, floor((min(2 * r[3] * r[2], MOST) - max(0, level(r, now))) / r[2])) end,
    reset = function(r) return r[1] == 0 and EXACT or ceil(max(0, level(r, now) / r[1] + r[4])) end,

    -- A bucket that has been full for a while is no fuller than full.
    after = function(r, t, units, c)
      local full = min(0, level(r, t))
      return fit(r, t, c, units - full / r[2])
    end,
  }
end
