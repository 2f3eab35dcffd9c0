-- token-bucket: at most cap + p/q * t units start in any interval of t µs. They also arrive within that limit if their delays differ
-- by up to slack µs. Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains at p parts a µs. x is the level at `at`, the latest start so far, which
-- never repeats, so that it also identifies the charge; at any time t it is x - (t - at) * p, negative if the bucket has been full
-- for a while. `low` is the lowest level that a charge after `since` met whose start was the latest: no charge since then can have
-- been refilled below it, so a refund up to `low` is exact.
function algorithms.T()
  local TOKEN, UNTOUCHED = 84, EXACT
  return {
    load = function(of, key, numbers, v)
      local p, q, cap, slack = unpacked('>I7I7I7I7', numbers)
      local r = { of = of, key = key, p = p, q = q, cap = cap, slack = slack, at = now - slack - 1, x = 0, since = now, low = UNTOUCHED, written = now, till = 0, size = 0 }
      if v and byte(v) == TOKEN then
        local _, till, at, lead, x, was, age, low = unpacked('>BI6I7I4I7I7I5I7', v)
        r.till, r.size, r.written, r.at, r.x, r.since, r.low = till, #v, at - lead, at, x, at - age, low
        if r.written > now then r.stepped = true end
        if r.stepped or was ~= q and p > 0 then algorithm('T', 'rare').adjust(r, was) end
      end
      return r
    end,
    fit = function(r, t, c)
      local p = r.p
      if p == 0 or c > r.cap then return nil end
      local over = r.x - (t - r.at - r.slack) * p + (c - r.cap) * r.q
      return over <= 0 and t or t + ceil(over / p)
    end,
    charge = function(r, start, c)
      local p, q, x, at = r.p, r.q, r.x, r.at
      local met, mark = x - (start - at) * p, start > at and start or at + 1
      -- Between two starts of one moment nothing drains.
      if start > at and met < q then r.since, r.low = mark, UNTOUCHED elseif start > at then r.low = min(r.low, met) end
      r.x = max(0, max(x - (now - at) * p, (start - now) * p) + c * q - (mark - now) * p)
      r.at, r.written = mark, now
      return mark
    end,
    -- A bucket that has been full for less than slack is not yet as if unused.
    save = function(r)
      local lasts = r.p > 0 and max(0, (r.x - (now - r.at) * r.p) / r.p + r.slack) or EXACT / 1000
      local till, age = expires(r, lasts), r.at - r.since
      if age >= 1099511627776 then age = 0 end -- what is from before the latest start does not come back then
      return packed('>BI6I7I4I7I7I5I7', TOKEN, till, r.at, max(0, r.at - r.written), r.x, r.q, max(0, age), r.low)
    end,
    -- #for decide
    -- The units left, and µs until it is as if unused.
    show = function(r)
      local p, q = r.p, r.q
      if p == 0 then return 0, EXACT end
      local level = r.x - (now - r.at) * p + r.slack * p
      return max(0, floor((r.cap * q - max(0, level)) / q)), ceil(max(0, level / p))
    end,
    -- #end
  }
end

function rare.T()
  -- The highest level: sums must stay exact.
  local MOST, UNTOUCHED = 4503599627370496, EXACT

  local function level(r, t) return r.x - (t - r.at) * r.p end

  -- x parts, of which `was` were a unit, in parts of this rule.
  local function convert(r, x, was, round)
    local rest = x % was
    return min(MOST, (x - rest) / was * r.q + round(rest / was * r.q))
  end

  return {
    -- After a change of the limit, or a step of the clock. A changed limit drops what is beyond full, but not what starts ahead.
    adjust = function(r, was)
      local back = max(0, r.written - now)
      r.written, r.at, r.since, r.low = r.written - back, r.at - back, r.since - back, back > 0 and 0 or r.low
      if was ~= r.q then
        r.x = convert(r, r.x, was, ceil)
        r.low = r.low < UNTOUCHED and max(0, convert(r, r.low, was, floor) - 1) or r.low
        local most = r.cap * r.q + max(0, r.at - now) * r.p
        if r.x > most then r.x, r.since, r.low = most, r.at + 1, 0 end
      end
    end,
    -- #for ack, decide, inspect, join, reset, settle
    -- What no later moment has refilled: as much as all later charges met, or all but what drains in so long. MOMENT is more than the
    -- marks of one moment are apart.
    refund = function(r, mark, c)
      if r.p == 0 or mark > r.at then return 0 end
      local MOMENT, known = 100000, mark >= r.since
      local held = not known and 0 or mark < r.at and r.low or UNTOUCHED
      local since = max(mark - MOMENT, known and r.since or 0)
      local back = max(0, min(c * r.q, level(r, now), r.x, max(held, c * r.q - (max(now, r.at) - since) * r.p)))
      if mark < r.at and r.low < UNTOUCHED then r.low = max(0, r.low - back) end
      r.x = r.x - back
      return floor(back / r.q)
    end,
    -- How many units may be charged as a debt.
    room = function(r) return max(0, floor((min(2 * r.cap * r.q, MOST) - max(0, level(r, now))) / r.q)) end,
    -- When `others` and then c units are admitted; nil if no clock tells. A bucket is no fuller than full.
    after = function(r, t, others, c)
      if r.p == 0 or c > r.cap then return nil end
      local over = max(0, level(r, t)) + r.slack * r.p + (others + c - r.cap) * r.q
      return over <= 0 and t or t + ceil(over / r.p)
    end,
    -- #end
  }
end
