-- sliding-window and fixed-window: never more than cap units in any window of `per` µs, in each window of `grain` µs since the epoch,
-- or in each window of `per` µs that opens on use. Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves `per` after the end of its cell: less than a grain late
-- and never early, so that per/grain + 1 cells are enough whatever the limit. Cells are numbered by their ends. The last one (tail) is
-- stored apart, since it grows most. `log` holds the cells before it that have units, oldest first: two varints each, the cells since
-- the one before (for the first, since base) and its units.
--
-- Fixed windows are cells with a per of 0. A fixed window begins with its first moment, whereas a cell of a sliding window ends with its
-- last. Only its own units count in it. The last `slack` µs of a window admit nothing: a late start must not land in the next window. A
-- window that opens on use (grain 0) is a fixed window whose cell is its beginning, in µs: that of its first start. Half of its slack is
-- part of its length. If a window was opened ahead of now, an earlier start gets a window of its own only where that one ends before the
-- other begins. Else the start belongs to the window ahead, and waits for it to begin.
do
  local SLIDING, FIXED, OPENED = 83, 70, 79

  -- The cell of the log at i, which follows `cell`, its units, and where the next one is.
  local function entry(log, i, cell)
    local b, delta, units, digit = byte(log, i), 0, 0, 1
    while b >= 128 do
      delta, digit, i = delta + (b - 128) * digit, digit * 128, i + 1
      b = byte(log, i)
    end
    delta, digit, i = delta + b * digit, 1, i + 1
    b = byte(log, i)
    while b >= 128 do
      units, digit, i = units + (b - 128) * digit, digit * 128, i + 1
      b = byte(log, i)
    end
    return cell + delta, units + b * digit, i + 1
  end

  local function varint(n)
    local s = ''
    while n >= 128 do
      local low = n % 128
      s, n = s .. char(128 + low), (n - low) / 128
    end
    return s .. char(n)
  end

  -- Adds units to a cell after all cells of the log.
  local function append(r, cell, units)
    if r.log == '' then r.base, r.last, r.seen = cell, cell, nil end
    r.log, r.last = r.log .. varint(cell - r.last) .. varint(units), cell
  end

  -- Adds units to the tail or to a cell after it.
  local function push(r, cell, units)
    if units == 0 then return end
    if r.total > 0 and cell > r.tail then append(r, r.tail, r.count) end
    r.count = (r.total > 0 and cell == r.tail and r.count or 0) + units
    r.total, r.tail = r.total + units, cell
  end

  local function clear(r) r.total, r.base, r.last, r.tail, r.count, r.log, r.seen = 0, 0, 0, 0, 0, '', nil end

  function algorithms.S()
    -- Removes the units that have left the window.
    local function expire(r)
      local gone, log, i, cell = floor((now - r.window) / r.grain), r.log, 1, r.base
      if r.tail <= gone then return clear(r) end
      while i <= #log do
        local at, units, following = entry(log, i, cell)
        if at > gone then break end
        r.total, cell, i = r.total - units, at, following
      end
      if i > 1 then r.base, r.log = cell, sub(log, i) end
    end

    -- The moment by which `need` of the units held have left. A scan goes on from where the one before it ended.
    local function leave(r, need)
      if not r.seen or r.seen.units >= need then r.seen = { i = 1, cell = r.base, units = 0 } end
      local seen = r.seen
      while seen.i <= #r.log do
        local cell, units, i = entry(r.log, seen.i, seen.cell)
        if seen.units + units >= need then return cell * r.grain + r.per end
        seen.cell, seen.units, seen.i = cell, seen.units + units, i
      end
      return r.tail * r.grain + r.per
    end

    return {
      load = function(of, key, numbers, v)
        local cap, per, grain, slack = unpacked('>I7I7I7I7', numbers)
        local layout, width, opens = per > 0 and SLIDING or FIXED, grain, nil
        if grain == 0 then layout, width, opens, per, grain = OPENED, 1, per, 0, 1 end
        local r = { of = of, key = key, cap = cap, per = per, grain = grain, slack = min(slack, (opens or grain) - 1), opens = opens,
          layout = layout, width = width, window = per > 0 and per or opens or grain, written = now, total = 0, base = 0, last = 0,
          tail = 0, count = 0, log = '', leave = leave, till = 0, size = 0 }
        if v and byte(v) == layout then
          local _, was
          _, r.till, r.written, was, r.total, r.base, r.last, r.tail, r.count = unpacked('>BI6I7I7I7I7I7I7I7', v)
          r.log, r.size, r.stepped = sub(v, 57), #v, r.written > now
          if r.stepped or was ~= width then algorithm('S', 'rare').adjust(r, was) end
          if r.total > 0 then expire(r) end
        end
        return r
      end,
      fit = function(r, t, c)
        if r.per == 0 or c > r.cap then return algorithm('S', 'rare').fit(r, t, c) end
        local need = r.total + c - r.cap
        return need <= 0 and t or max(t, leave(r, need))
      end,
      charge = function(r, start, c)
        local cell = r.per > 0 and ceil(start / r.grain) or algorithm('S', 'rare').cell_of(r, start)
        if r.total == 0 or cell >= r.tail then push(r, cell, c) else algorithm('S', 'rare').insert(r, cell, c) end
        r.written = now
        return cell * r.grain
      end,
      save = function(r)
        local lasts = r.total == 0 and 0 or max(0, r.tail * r.grain + (r.opens or r.per) - now)
        return packed('>BI6I7I7I7I7I7I7I7', r.layout, expires(r, lasts), r.written, r.width, r.total, r.base, r.last, r.tail, r.count) .. r.log
      end,
      -- #for decide
      show = function(r)
        local held = r.per > 0 and r.total or algorithm('S', 'rare').held(r, now)
        return max(0, r.cap - held), r.total == 0 and 0 or max(0, r.tail * r.grain + (r.opens or r.per) - now)
      end,
      -- #end
    }
  end

  function rare.S()
    -- Writes the cells from `from` on anew, in their order, each as `change` says of it: its number and its units.
    local function rebuild(r, from, change)
      local later, log, i, before, cell, units, step = {}, r.log, #r.log, r.last, r.tail, r.count, nil
      while cell and cell >= from do
        later[#later + 1], later[#later + 2] = units, cell
        r.total, cell = r.total - units, i > 0 and before or nil
        if cell then
          for _ = 1, 2 do -- over two numbers
            repeat i = i - 1 until i == 0 or byte(log, i) < 128
          end
          step, units = entry(log, i + 1, 0)
          before = cell - step
        end
      end
      if cell then r.tail, r.count, r.log, r.last, r.seen = cell, units, sub(log, 1, i), before, nil else clear(r) end
      for j = #later, 1, -2 do push(r, change(later[j], later[j - 1])) end
    end

    -- When the window begins, of those that open on use, to which a start belongs.
    local function begin_of(r, t)
      local i, cell, _ = 1, r.base, nil
      while i <= #r.log do
        cell, _, i = entry(r.log, i, cell)
        if cell + r.opens > t then return cell < t + r.opens and cell or t end
      end
      return r.total > 0 and r.tail + r.opens > t and r.tail < t + r.opens and r.tail or t
    end

    local function cell_of(r, t)
      if r.opens then return begin_of(r, t) end
      return r.per > 0 and ceil(t / r.grain) or floor(t / r.grain) + 1
    end

    -- When the fixed window ends to which a start belongs: later than that.
    local function end_of(r, t) return r.opens and begin_of(r, t) + r.opens or t - t % r.grain + r.grain end

    -- The units that count together with those of a start at t: in a fixed window its own.
    local function held(r, t)
      if r.per > 0 then return r.total end
      local cell, i, at, units = cell_of(r, t), 1, r.base, nil
      if cell == r.tail then return r.count end
      while i <= #r.log do
        at, units, i = entry(r.log, i, at)
        if at == cell then return units end
      end
      return 0
    end

    return {
      cell_of = cell_of,
      held = held,
      -- After a change of the windows, or a step of the clock. Units of fixed windows of another length count at the end of theirs, or now.
      adjust = function(r, width)
        local back = max(0, r.written - now)
        r.written = r.written - back
        rebuild(r, 0, function(cell, units)
          local t = cell * width - back
          if r.per == 0 and not r.opens then t = back == 0 and t - width > now and t - 1 or min(t - 1, now) end
          return r.opens and t or cell_of(r, t), units
        end)
      end,
      -- Adds units to a cell before the tail.
      insert = function(r, cell, units)
        rebuild(r, cell, function(at, its)
          if at > cell then push(r, cell, units) end
          local more = at == cell and units or 0
          units = at >= cell and 0 or units
          return at, its + more
        end)
      end,
      fit = function(r, t, c)
        if c > r.cap then return nil end
        while true do
          local ends = end_of(r, t)
          if held(r, t) + c <= r.cap and ends - t > r.slack then return max(t, ends - r.window) end
          t = ends
        end
      end,
      -- #for ack, decide, inspect, join, reset, settle
      -- Takes units out of the cell that they were charged in.
      refund = function(r, place, c)
        local less, back = ceil(place / r.grain), 0
        if r.total > 0 then
          rebuild(r, less, function(cell, units)
            if cell == less then back = min(c, units) end
            return cell, cell == less and units - back or units
          end)
        end
        return back
      end,
      stays = function(r, place, t) return cell_of(r, t) * r.grain == place end,
      room = function(r) return max(0, 2 * r.cap - held(r, now)) end,
      -- Windows that are used up by the units before count as whole ones.
      after = function(r, t, others, c)
        if c > r.cap then return nil end
        local windows = floor(others / r.cap)
        local need = held(r, t) + others - windows * r.cap + c - r.cap
        if need > 0 then t = r.per > 0 and max(t, r.leave(r, min(need, r.total))) or end_of(r, t) end
        return t + windows * r.window
      end,
      -- #end
    }
  end
end
