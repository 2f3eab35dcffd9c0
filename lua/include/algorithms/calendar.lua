-- calendar: at most cap units in each period, and up to `rollover` that the period
-- before it left over.
-- Source: docs/algorithms.md#calendar
--
-- A period begins at b0 and at b1 the next one does; a is when the one before began,
-- b2 and b3 are when the next two end. They come from the caller, whose clock or
-- memory may be wrong: where the clock is not between b0 and b1 the rule is stale, and
-- admits nothing until the caller has others.
--
-- The state is the latest period that has units and the one before it, each by the
-- last of its starts, as with fixed windows: whatever the boundaries are by now, none
-- of its units started later. `from` is no later than any start of the latest, `since`
-- than any of both. A start ahead may stand in the next period while this one still
-- has room. `carry` is what had been rolled over into the period before; what comes to
-- the latest follows from it, so that what is given back late is rolled over too. The
-- last `slack` µs of a period admit nothing. Where what is left is spread, nothing
-- starts before `next`; before the last charge that was `was`.
do
  local EXACT = 9007199254740991

  -- How soon to ask a rule again that is stale.
  local SOON = 10000

  -- units/of of a time, rounded up; no more than it. All are whole.
  local function part(time, units, of)
    local rest = time % of
    local over = rest * units
    if over <= EXACT then
      over = ceil(over / of)
    else
      over = ceil(rest / of * units) + 1
    end
    return min(time, (time - rest) / of * units + over)
  end

  -- What the period before the latest has left over, once it has ended.
  local function left_over(r)
    if r.prior == 0 or r.prior >= r.b0 then
      return 0
    end
    return min(r.rollover, max(0, r.cap + min(r.carry, r.rollover) - r.before))
  end

  -- Begins a period: the latest is the one before from now on, or, where it ended
  -- sooner than at `from`, one that passed without a unit. What had been rolled over into
  -- that one rolls on; several in a row count as one.
  local function begin(r, from, before)
    local carry = left_over(r)
    r.gap = r.last < before
    if r.gap then
      carry = min(r.rollover, max(0, r.cap + carry - r.count))
      r.prior, r.before, r.carry, r.since = before, 0, carry, max(r.since, before)
    else
      r.prior, r.before, r.carry, r.since = r.last, r.count, carry, max(r.since, r.from)
    end
    r.last, r.from, r.count, r.next, r.was = from, from, 0, 0, 0
  end

  -- Sees the state as it is at now: r.idle where the period at hand has no units,
  -- r.ahead where the latest is the next one, r.gone where nobody knows any more what
  -- the one at hand had, since the clock has stepped back into it.
  local function settle(r, now)
    if r.last - now > 2 * FAR_AHEAD then
      r.count = r.count + (r.prior >= r.b0 and r.before or 0)
      r.last, r.from, r.since, r.healed, r.stepped = now, now, now, true, true
      r.prior, r.before, r.carry, r.next, r.was = 0, 0, 0, 0, 0
    elseif r.last < r.b0 then
      begin(r, r.b0, r.a)
      r.idle = true
    elseif r.from >= r.b1 then
      r.ahead = true
      if r.prior < r.b0 then -- the boundaries have changed, or the clock has stepped back
        r.prior, r.before, r.carry, r.since = r.b0, 0, left_over(r), max(r.since, r.b0)
      end
    end
    r.gone = r.ahead and r.since >= r.b1 and r.prior >= r.b1
    r.next = r.spread and min(r.next, r.ahead and r.b2 or r.b1) or 0
  end

  -- The units of another algorithm that are of the period at hand. What the one before
  -- it left over nobody knows.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and t >= r.b0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = r.found
  end

  local function load(key, now, cost, cap, b0, b1, b2, _, _, rule)
    local slack, rollover, spread, a, b3 = unpacked('>I7I7I7I7I7', sub(rule, 30))
    local r = { kind = 'K', key = key, cost = cost, cap = cap, a = a, b0 = b0, b1 = b1, b2 = b2, b3 = b3, slack = slack,
      rollover = rollover, spread = spread == 1, stale = now < b0 or now >= b1, last = b0, from = b0, count = 0, prior = 0,
      before = 0, carry = 0, since = now, next = 0, was = 0, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = not r.stale or byte(v, 1) == CALENDAR
    if byte(v, 1) ~= CALENDAR then
      take_over(r, v, now)
      return r
    end
    r.till, r.raw = unpack7(v, 2), sub(v, 9)
    r.ends = r.till - LONGER
    r.last, r.from, r.count, r.prior, r.before, r.carry, r.since, r.next, r.was = unpacked('>I7I7I7I7I7I7I7I7I7', r.raw)
    if not r.stale then
      settle(r, now)
    end
    return r
  end

  -- The units of the period at hand, and of the next. Where the boundaries have
  -- changed, those that may be of either count in both.
  local function used(r)
    return r.ahead and r.before or r.count + (r.prior >= r.b0 and r.before or 0)
  end

  local function used_next(r)
    return r.last >= r.b1 and r.count + (r.prior >= r.b1 and r.before or 0) or 0
  end

  -- The units that the period at hand has left, and the next one, which gets nothing
  -- rolled over before it has begun.
  local function room(r)
    return r.gone and 0 or r.cap + (r.ahead and min(r.carry, r.rollover) or left_over(r)) - used(r)
  end

  local function room_next(r)
    return r.cap - used_next(r)
  end

  -- What happens from b2 on nobody knows here, only that nothing is admitted sooner.
  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    elseif r.stale then
      return max(t, now + SOON), true
    end
    local at = max(t, r.next)
    if at < r.b1 - r.slack and room(r) >= r.cost then
      return at
    end
    at = max(at, r.b1)
    if at < r.b2 - r.slack then
      local left = room_next(r)
      if left >= r.cost then
        return at
      elseif left + min(r.rollover, max(0, room(r))) >= r.cost then
        return at, true
      end
    end
    return max(t, r.b2), true
  end

  local function charge(r, _, start)
    if r.stale then
      return start
    end
    local here, was = start < r.b1, r.next
    local left, ends = here and room(r) or room_next(r), (here and r.b1 or r.b2) - r.slack
    if not here and r.last < r.b1 then
      begin(r, r.b1, r.b0)
      r.ahead = true
    end
    if here and r.ahead then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      r.last, r.from, r.count = max(r.last, start), min(r.from, start), r.count + r.cost
    end
    r.idle = false
    if r.spread then
      r.was, r.next = was, start + part(max(0, ends - start), r.cost, max(left, r.cost))
    end
    return start
  end

  -- The pace goes back by the charge that was the last.
  local function refund(r, _, place)
    local back = 0
    if r.healed or place < r.since then
      return 0
    elseif place >= r.from and place <= r.last then
      back = min(r.count, r.cost)
      r.count = r.count - back
      r.next = place == r.last and r.was or r.next
    elseif place <= r.prior then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed, r.idle = back > 0, r.idle and back == 0
    return back
  end

  -- µs until the rule is as if unused.
  local function reset(r, now)
    if r.stale then
      return 0
    elseif used_next(r) > 0 then
      return r.b2 - now
    end
    return used(r) > 0 and r.b1 - now or max(0, r.next - now)
  end

  -- µs until the state means nothing any more: where units roll over, not before
  -- another period has passed.
  local function lasts(r, now)
    if r.stale then
      return max(0, (r.ends or r.b1) - now)
    elseif r.rollover == 0 then
      return reset(r, now)
    elseif r.idle then
      return r.gap and 0 or r.b2 - now -- of what was before a gap nobody knows how long it has been
    end
    return r.b3 + (r.ahead and r.b3 - r.b2 or 0) - now
  end

  local function save(r, now)
    write(r, now, CALENDAR, r.idle and r.raw or packed('>I7I7I7I7I7I7I7I7I7', r.last, r.from, r.count, r.prior, r.before, r.carry, r.since,
      r.next, r.was), lasts(r, now))
  end

  local function remaining(r)
    return (r.stale or r.cap == 0) and 0 or max(0, room(r))
  end

  -- When `units` before it and then the cost will have been admitted: an estimate,
  -- which takes later periods to be as long as the next.
  local function after(r, now, units)
    if r.cost > r.cap or r.stale then
      return (fit(r, now))
    end
    local at, ends, left = max(now, r.next), r.b1 - r.slack, max(0, room(r))
    if at >= ends or units + r.cost > left then
      units = at < ends and max(0, units - left) or units
      at, ends, left = max(at, r.b1), r.b2, max(0, room_next(r))
      if units + r.cost > left then
        units = max(0, units - left)
        local rest = units % r.cap
        at, left = r.b2 + (units - rest) / r.cap * (r.b2 - r.b1), r.cap
        units, ends = rest, at + r.b2 - r.b1
      end
    end
    return min(EXACT, r.spread and at + part(max(0, ends - at), units, left) or at)
  end

  algorithms.K = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts, after = after }
end
