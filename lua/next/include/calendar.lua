-- calendar: at most cap units in each period, and up to `rollover` that the period before it left over.
-- Source: docs/algorithms.md#calendar
--
-- The period began at b0 and ends at b1, and the one before began at a. These boundaries come with the rules, which are stale
-- from b1 on: no start is charged ahead of its period.
--
-- The state is the period of the latest start, by that start: whatever the boundaries are by now, none of its units started
-- later. `carry` is what was rolled over into it. The last `slack` µs of a period admit nothing. If the units that are left are
-- spread, nothing starts before `next`; `step` is by how much the latest start has put `next` off.
algorithms.K = function()
  local CALENDAR = 75

  -- units/of of a time, rounded up; no more than the time.
  local function part(time, units, of)
    local rest = time % of
    local over = rest * units <= EXACT and ceil(rest * units / of) or ceil(rest / of * units) + 1
    return min(time, (time - rest) / of * units + over)
  end

  local function room(r)
    return r[1] + min(r.carry, r[6]) - r.count
  end

  return {
    load = function(r, v)
      local cap, a, b0, rollover = r[1], r[2], r[3], r[6]
      r.last, r.count, r.carry, r.next, r.step, r.written = 0, 0, 0, 0, 0, now
      if not v or byte(v, 1) ~= CALENDAR then
        return
      end
      local _, written, last, count, carry, following, step = unpacked('>BI7I7I7I7I7I7', v)
      local back = max(0, written - now)
      last = last - back
      if last >= b0 then
        r.written, r.last, r.count, r.carry, r.next, r.step = written - back, last, count, carry, following - min(back, following), step
        return
      end
      r.carry = min(rollover, max(0, cap + min(carry, rollover) - count))
      if last < a then -- the period before had no units
        r.carry = min(rollover, cap + r.carry)
      end
    end,

    fit = function(r, t, c)
      if c > r[1] then
        return nil
      end
      local at, ends = max(t, r.next), r[4]
      if at < ends - r[5] and room(r) >= c then
        return at
      end
      return max(t, ends), true
    end,

    charge = function(r, start, c)
      if r[7] == 1 then
        local from, was = max(start, r.next), r.next
        r.next = from + part(max(0, r[4] - r[5] - from), c, max(room(r), c))
        r.step = start >= r.last and r.next - was or r.step
      end
      r.count, r.last, r.written = r.count + c, max(r.last, start), now
      return start
    end,

    -- What comes back to the period before can be rolled over. How much that period was in debt is not known.
    refund = function(r, place, c)
      if place >= r[3] then
        local back = min(r.count, c)
        r.count = r.count - back
        if place == r.last then
          r.next, r.step = r.next - min(r.next, r.step), 0
        end
        return back
      elseif place >= r[2] and r.carry > 0 then
        r.carry, r.last = min(r[6], r.carry + c), max(r.last, r[3])
        return c
      end
      return 0
    end,

    -- Where units roll over, the state is kept until two more periods have passed.
    save = function(r)
      local lasts = r[4] - now + (r[6] > 0 and 2 * (r[4] - r[3]) or 0)
      return packed('>BI7I7I7I7I7I7', CALENDAR, r.written, r.last, r.count, r.carry, r.next, r.step), lasts
    end,

    left = function(r)
      return r[1] == 0 and 0 or max(0, room(r))
    end,

    room = function(r)
      return max(0, r[1] + room(r))
    end,

    reset = function(r)
      return r.count > 0 and r[4] - now or max(0, min(r.next, r[4]) - now)
    end,

    -- It assumes that later periods are as long as this one.
    after = function(r, t, units, c)
      if c > r[1] then
        return nil
      end
      local at, ends, left = max(t, r.next), r[4] - r[5], max(0, room(r))
      if at >= ends or units + c > left then
        units = at < ends and max(0, units - left) or units
        local rest = units % r[1]
        at = r[4] + (units - rest) / r[1] * (r[4] - r[3])
        units, ends, left = rest, at + r[4] - r[3], r[1]
      end
      return min(EXACT, r[7] == 1 and at + part(max(0, ends - at), units, left) or at)
    end,
  }
end
