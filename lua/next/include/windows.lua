-- sliding-window and fixed-window: never more than cap units in any window of `per` µs, in each window of `grain` µs since
-- the epoch, or in each window of `per` µs that opens on use.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves `per` after the end of its cell: less than a
-- grain late and never early, so that per/grain + 1 cells are enough whatever the limit. Cells are numbered by their ends. The
-- last one (tail) is stored apart, since it grows most. `log` holds the cells before it that have units, oldest first: two
-- varints each, the cells since the one before (for the first, since base) and its units.
--
-- Fixed windows are cells with a per of 0. A fixed window begins with its first moment, whereas a cell of a sliding window ends
-- with its last. Only its own units count in it. The last `slack` µs of a window admit nothing: a late start must not land in
-- the next window. A window that opens on use (grain 0) is a fixed window whose cell is its beginning, in µs: that of its first
-- start. Half of its slack is part of its length. If a window was opened ahead of now, an earlier start gets a window of its own
-- only where that one ends before the other begins. Else the start belongs to the window ahead, and waits for it to begin.
algorithms.S = function()
  local SLIDING, FIXED, OPENED = 83, 70, 79

  local function varint(n)
    local s = ''
    while n >= 128 do
      local low = n % 128
      s, n = s .. char(128 + low), (n - low) / 128
    end
    return s .. char(n)
  end

  -- The varint at i, and where the next one is.
  local function number(log, i)
    local n, digit, b = 0, 1, byte(log, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(log, i)
    end
    return n + b * digit, i + 1
  end

  -- The cell of the log at i, which follows `cell`, its units, and where the next one is.
  local function entry(log, i, cell)
    local delta, units
    delta, i = number(log, i)
    units, i = number(log, i)
    return cell + delta, units, i
  end

  local function clear(r) r.total, r.base, r.last, r.tail, r.count, r.log, r.seen = 0, 0, 0, 0, 0, '', nil end

  -- Adds units to a cell after all cells of the log.
  local function append(r, cell, units)
    if units == 0 then return end
    if r.log == '' then r.base, r.last = cell, cell end
    r.log, r.last = r.log .. varint(cell - r.last) .. varint(units), cell
  end

  -- Adds units to the tail or to a cell after it.
  local function push(r, cell, units)
    if units == 0 then return end
    if r.total > 0 and cell > r.tail then append(r, r.tail, r.count) end
    r.count = (r.total > 0 and cell == r.tail and r.count or 0) + units
    r.total, r.tail = r.total + units, cell
  end

  -- Writes all cells anew, in their order, each as `change` says of it: its number and its units.
  local function rebuild(r, change)
    local log, i, cell, tail, count, units = r.log, 1, r.base, r.tail, r.count, nil
    clear(r)
    while i <= #log do
      cell, units, i = entry(log, i, cell)
      push(r, change(cell, units))
    end
    push(r, change(tail, count))
  end

  local function put(r, cell, units)
    if r.total == 0 or cell >= r.tail then return push(r, cell, units) end
    if r.log == '' or cell > r.last then
      r.total, r.seen = r.total + units, nil
      return append(r, cell, units)
    end
    local left = units
    rebuild(r, function(at, its)
      if left > 0 and at > cell then push(r, cell, left) end
      local more = at == cell and left or 0
      left = at >= cell and 0 or left
      return at, its + more
    end)
  end

  -- When the window begins, of those that open on use, to which a start belongs.
  local function begin_of(r, t)
    local i, cell = 1, r.base
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

  -- Removes the units that have left the window.
  local function expire(r)
    local gone, log, i, cell = floor((now - r.window) / r.grain), r.log, 1, r.base
    if r.tail <= gone then return clear(r) end
    while i <= #log do
      local at, units, following = entry(log, i, cell)
      if at > gone then break end
      r.total, cell, i = r.total - units, at, following
    end
    r.base, r.log = cell, sub(log, i)
  end

  -- Moves what was counted in other cells, or by a clock that has stepped back, into cells of this rule and this clock. Units
  -- of fixed windows of another length count at the end of theirs, or now.
  local function move(r, grain, back)
    rebuild(r, function(cell, units)
      local t = cell * grain - back
      if r.per == 0 and not r.opens then t = back == 0 and t - grain > now and t - 1 or min(t - 1, now) end
      return r.opens and t or cell_of(r, t), units
    end)
  end

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

  -- The moment by which `need` of the units held have left. A scan goes on from where the one before it ended.
  local function leave(r, need)
    local seen = r.seen
    if not seen or seen.units >= need then seen = { i = 1, cell = r.base, units = 0 } end
    r.seen = seen
    while seen.i <= #r.log do
      local cell, units, i = entry(r.log, seen.i, seen.cell)
      if seen.units + units >= need then return cell * r.grain + r.per end
      seen.cell, seen.units, seen.i = cell, seen.units + units, i
    end
    return r.tail * r.grain + r.per
  end

  local function lasts(r) return r.total == 0 and 0 or max(0, r.tail * r.grain + (r.opens or r.per) - now) end

  return {
    load = function(r, v)
      local per, grain, slack, back = r[2], r[3], r[4], 0
      r.layout, r.width, r.opens = per > 0 and SLIDING or FIXED, grain, nil
      if grain == 0 then r.layout, r.width, r.opens, per, grain = OPENED, 1, per, 0, 1 end
      r.per, r.grain, r.slack = per, grain, min(slack, (r.opens or grain) - 1)
      r.window, r.written = per > 0 and per or r.opens or grain, now
      clear(r)
      if not v or byte(v, 1) ~= r.layout then return end
      local _, written, width
      _, written, width, r.total, r.base, r.last, r.tail, r.count = unpacked('>BI7I7I7I7I7I7I7', v)
      r.log, r.written, back = sub(v, 51), min(written, now), max(0, written - now)
      if back > 0 or width ~= r.width then move(r, width, back) end
      if r.total > 0 then expire(r) end
    end,

    fit = function(r, t, c)
      if c > r[1] then return nil end
      local need = held(r, t) + c - r[1]
      if r.per > 0 then return need <= 0 and t or max(t, leave(r, need)) end
      local ends = end_of(r, t)
      while need > 0 or ends - t <= r.slack do
        t = ends
        ends, need = end_of(r, t), held(r, t) + c - r[1]
      end
      return max(t, ends - r.window)
    end,

    charge = function(r, start, c)
      local cell = cell_of(r, start)
      put(r, cell, c)
      r.written = now
      return cell * r.grain
    end,

    -- Takes units out of the cell that they were charged in.
    refund = function(r, place, c)
      local less, back = ceil(place / r.grain), 0
      if r.total > 0 then
        rebuild(r, function(cell, units)
          if cell == less then back = min(c, units) end
          return cell, cell == less and units - back or units
        end)
      end
      return back
    end,

    save = function(r)
      return packed('>BI7I7I7I7I7I7I7', r.layout, r.written, r.width, r.total, r.base, r.last, r.tail, r.count) .. r.log, lasts(r)
    end,

    left = function(r) return max(0, r[1] - held(r, now)) end,
    room = function(r) return max(0, 2 * r[1] - held(r, now)) end,
    reset = lasts,

    -- Windows that are used up by the units before count as whole ones.
    after = function(r, t, units, c)
      if c > r[1] then return nil end
      local windows = floor(units / r[1])
      local need = held(r, t) + units - windows * r[1] + c - r[1]
      if need > 0 then t = r.per > 0 and max(t, leave(r, min(need, r.total))) or end_of(r, t) end
      return t + windows * r.window
    end,
  }
end
