-- calendar: at most cap units in each period, and up to `rollover` that the period
-- before it left over.
-- Source: docs/algorithms.md#calendar
--
-- A period begins at b0, and the next one at b1; the one before began at a, and the next two
-- end at b2 and b3. These boundaries come from the caller, whose clock or memory may be wrong: if
-- the clock is not between b0 and b1, the rule is stale, and admits nothing until the caller
-- sends others.
--
-- The state is the latest period that has units and the one before it, each by the
-- last of its starts, as with fixed windows: whatever the boundaries are by now, none
-- of its units started later. `from` is no later than any start of the latest period, `since`
-- than any start of both. A start ahead may be in the next period while this one still
-- has room. `carry` is what was rolled over into the period before; the units rolled over into
-- the latest follow from it, so that late refunds roll over too. The
-- last `slack` µs of a period admit nothing. If the units that are left are spread, nothing
-- starts before `next`; `was` is `next` before the last charge.
do
  local EXACT = 9007199254740991

  -- How soon to check a stale rule again.
  local SOON = 10000

  -- units/of of a time, rounded up; no more than the time. All are whole.
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

  -- The units that the period before the latest has left over, once it has ended.
  local function left_over(r)
    if r.prior == 0 or r.prior >= r.b0 then
      return 0
    end
    return min(r.rollover, max(0, r.cap + min(r.carry, r.rollover) - r.before))
  end

  -- Begins a period: the latest becomes the one before; if it ended sooner than at `from`, the one
  -- before is a period that passed without a unit. Units that were rolled over into that period
  -- roll over again; several such periods in a row count as one.
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

  -- Adjusts the state to now: r.idle if the current period has no units, r.ahead if the latest is
  -- the next one, r.gone if the units of the current period are unknown, since the clock has
  -- stepped back into it.
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

  -- The units of another algorithm that belong to the current period. What the period before left
  -- over is unknown.
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

  -- The units of the current period, and of the next. If the boundaries have changed, units that
  -- may belong to either count in both.
  local function used(r)
    return r.ahead and r.before or r.count + (r.prior >= r.b0 and r.before or 0)
  end

  local function used_next(r)
    return r.last >= r.b1 and r.count + (r.prior >= r.b1 and r.before or 0) or 0
  end

  -- The units that are left in the current period, and in the next one, into which nothing is
  -- rolled over before it has begun.
  local function room(r)
    return r.gone and 0 or r.cap + (r.ahead and min(r.carry, r.rollover) or left_over(r)) - used(r)
  end

  local function room_next(r)
    return r.cap - used_next(r)
  end

  -- From b2 on the answer is unknown here, except that nothing is admitted sooner.
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

  -- A refund sets the pace back if its charge was the last one.
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

  -- µs until the state means nothing any more: if units roll over, not before another period
  -- has passed.
  local function lasts(r, now)
    if r.stale then
      return max(0, (r.ends or r.b1) - now)
    elseif r.rollover == 0 then
      return reset(r, now)
    elseif r.idle then
      return r.gap and 0 or r.b2 - now -- how long ago the period before a gap was is unknown
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

  -- When `units` before it and then the cost will have been admitted: an estimate, which assumes
  -- that later periods are as long as the next.
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
