-- calendar: at most cap units in each period, and up to `rollover` that the period before it left over. Source: docs/algorithms.md#calendar
--
-- The period began at b0 and ends at b1, and the one before began at a. These boundaries come with the rules, which are stale
-- from b1 on: no start is charged ahead of its period.
--
-- The state is the period of the latest start, by that start: whatever the boundaries are by now, none of its units started
-- later. `spare` is what the period before left over, or by how much it was over. The last `slack` µs of a period admit nothing. If the units that are left are
-- spread, nothing starts before `next`; `step` is by how much the latest start has put `next` off.
do
  local CALENDAR = 75

  -- units/of of a time, rounded up; no more than the time.
  local function part(time, units, of)
    local rest = time % of
    local over = rest * units <= EXACT and ceil(rest * units / of) or ceil(rest / of * units) + 1
    return min(time, (time - rest) / of * units + over)
  end

  -- spare is stored with ZERO added.
  local ZERO = 4503599627370496

  local function room(r) return r.cap + max(0, min(r.spare, r.rollover)) - r.count end

  function algorithms.K()
    return {
      load = function(of, key, numbers, v)
        local cap, a, b0, b1, slack, rollover, spread = unpacked('>I7I7I7I7I7I7I7', numbers)
        local r = { of = of, key = key, cap = cap, a = a, b0 = b0, b1 = b1, slack = slack, rollover = rollover, spread = spread == 1,
          last = b0, count = 0, spare = 0, next = 0, step = 0, written = now, till = 0, size = 0 }
        if not v or byte(v) ~= CALENDAR then return r end
        local _, till, written, last, count, spare, following, step = unpacked('>BI6I7I7I7I7I7I7', v)
        local back = max(0, written - now)
        last, spare, r.till, r.size = last - back, spare - ZERO, till, #v
        if last >= b0 then
          r.written, r.last, r.count, r.spare, r.stepped = written - back, last, count, spare, back > 0
          if r.spread then r.next, r.step = following - min(back, following), step end
          return r
        end
        r.spare = cap + max(0, min(spare, rollover)) - count
        if last < a then r.spare = cap + max(0, min(r.spare, rollover)) end -- the period before had no units
        return r
      end,
      fit = function(r, t, c)
        if c > r.cap then return nil end
        local at = max(t, r.next)
        if at < r.b1 - r.slack and room(r) >= c then return at end
        return max(t, r.b1), true
      end,
      charge = function(r, start, c)
        if start < r.b0 then -- a run that began late, in the period before
          if start >= r.a then r.spare = r.spare - c end
          return start
        end
        if r.spread then
          local from, was = max(start, r.next), r.next
          r.next = from + part(max(0, r.b1 - r.slack - from), c, max(room(r), c))
          r.step = start >= r.last and r.next - was or r.step
        end
        r.count, r.last, r.written = r.count + c, max(r.last, start), now
        return start
      end,
      -- Where units roll over, the state is kept until two more periods have passed.
      save = function(r)
        local lasts = r.b1 - now + (r.rollover > 0 and 2 * (r.b1 - r.b0) or 0)
        return packed('>BI6I7I7I7I7I7I7', CALENDAR, expires(r, lasts), r.written, r.last, r.count, r.spare + ZERO, r.next, r.step)
      end,
      -- #for decide
      show = function(r)
        return r.cap == 0 and 0 or max(0, room(r)), r.count > 0 and r.b1 - now or max(0, min(r.next, r.b1) - now)
      end,
      -- #end
    }
  end

  -- #for ack, decide, inspect, join, reset, settle
  function rare.K()
    return {
      -- What comes back to the period before can be rolled over.
      refund = function(r, place, c)
        if place >= r.b0 then
          local back = min(r.count, c)
          r.count = r.count - back
          if place == r.last then r.next, r.step = r.next - min(r.next, r.step), 0 end
          return back
        elseif place >= r.a then
          r.spare = r.spare + c
          return c
        end
        return 0
      end,
      stays = function(r, place, t) return place >= r.b0 and t < r.b1 and not r.spread end,
      room = function(r) return max(0, r.cap + room(r)) end,
      -- It assumes that later periods are as long as this one.
      after = function(r, t, others, c)
        if c > r.cap then return nil end
        local at, ends, left = max(t, r.next), r.b1 - r.slack, max(0, room(r))
        if at >= ends or others + c > left then
          others = at < ends and max(0, others - left) or others
          local rest = others % r.cap
          at = r.b1 + (others - rest) / r.cap * (r.b1 - r.b0)
          others, ends, left = rest, at + r.b1 - r.b0, r.cap
        end
        return min(EXACT, r.spread and at + part(max(0, ends - at), others, left) or at)
      end,
    }
  end
  -- #end
end
