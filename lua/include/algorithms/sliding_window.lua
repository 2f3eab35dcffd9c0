-- sliding-window and fixed-window: never more than cap units in any window of `per` µs, in each
-- window of `grain` µs since the epoch, or in each window of `per` µs that opens on use.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves
-- `per` after the end of its cell: less than a grain late and never early, so
-- that per/grain + 1 cells are enough whatever the limit. Cells are numbered by
-- their ends. The last one (tail) is stored apart, since it grows most; `log` holds
-- the cells before it that have units, oldest first: see each in state.lua.
--
-- Fixed windows are cells with a per of 0. A fixed window begins with its first moment, whereas a
-- cell of a sliding window ends with its last. Only its own units count in it. The window
-- before is kept for as long, for a clock that steps back. The last `slack` µs of a
-- window admit nothing: a late start must not land in the next window.
--
-- A window that opens on use is a fixed window whose cell is its beginning, in µs: that of its first
-- start. It is `opens` µs long, half of its slack included. If a window was opened ahead of now, an
-- earlier start gets a window of its own only where that window ends before the other begins. Otherwise
-- the earlier start belongs to the window ahead, and waits for it to begin.
do
  local function varint(n)
    local s = ''
    while n >= 128 do
      local low = n % 128
      s = s .. char(128 + low)
      n = (n - low) / 128
    end
    return s .. char(n)
  end

  -- When the window begins, of those that open on use, to which a start belongs.
  local function begin_of(r, t)
    local begins = r.total > 0 and r.tail + r.opens > t and r.tail or t
    stored.each(r.log, r.head, function(at)
      if at + r.opens > t then
        begins = at
        return true
      end
    end)
    return begins < t + r.opens and begins or t
  end

  -- The cell of a start.
  local function cell_of(r, t)
    if r.opens then
      return begin_of(r, t)
    end
    return r.per > 0 and ceil(t / r.grain) or floor(t / r.grain) + 1
  end

  -- When the fixed window ends to which a start belongs: later than that.
  local function end_of(r, t)
    return r.opens and begin_of(r, t) + r.opens or t - t % r.grain + r.grain
  end

  local function clear(r)
    r.total, r.head, r.last, r.tail, r.count, r.log = 0, 0, 0, 0, 0, ''
  end

  -- Adds units to a cell after all cells of the log.
  local function append(r, cell, units)
    if r.log == '' then
      r.head, r.log = cell, varint(units)
    else
      r.log = r.log .. varint(cell - r.last) .. varint(units)
    end
    r.last = cell
  end

  -- Adds units to a cell before the last cell of the log.
  local function insert(r, cell, units)
    stored.each(r.log, r.head, function(at, had, entry, from, to, before)
      if at < cell then
        return false
      elseif at == cell then
        r.log = sub(r.log, 1, from - 1) .. varint(had + units) .. sub(r.log, to)
      elseif before then
        r.log = sub(r.log, 1, entry - 1) .. varint(cell - before) .. varint(units)
          .. varint(at - cell) .. sub(r.log, from)
      else
        r.log, r.head = varint(units) .. varint(at - cell) .. r.log, cell
      end
      return true
    end)
  end

  local function put(r, cell, units)
    if r.total == 0 then
      clear(r)
      r.tail = cell
    end
    r.total = r.total + units
    if cell > r.tail then
      append(r, r.tail, r.count)
      r.tail, r.count = cell, units
    elseif cell == r.tail then
      r.count = r.count + units
    elseif r.log == '' or cell > r.last then
      append(r, cell, units)
    else
      insert(r, cell, units)
    end
  end

  -- Removes the units that have left the window.
  local function expire(r, now)
    local gone = floor((now - r.window) / r.grain)
    if r.tail <= gone then
      clear(r)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      stored.each(r.log, r.head, function(cell, units, _, from)
        if cell > gone then
          rest, head = sub(r.log, from), cell
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  -- The units of a state of another kind, or in other cells. A bucket does not know when its
  -- latest grant starts: within a second at most. Units that count as of now must be
  -- written, or else they would count as of now at each read.
  local function take_over(r, v, now)
    local units, back = stored.carried(v)
    local later = byte(v, 1) == TOKEN and 1000000 or 0
    for i = 1, #units, 2 do
      if units[i + 1] > 0 then
        local t = units[i] + later
        put(r, cell_of(r, min(t, r.per > 0 and now + FAR_AHEAD or now)), units[i + 1])
      end
    end
    r.healed = byte(v, 1) ~= SLIDING or r.per == 0 or back > 0
  end

  -- When the last cell begins.
  local function last_begins(r)
    return r.opens and r.tail or (r.tail - 1) * r.grain
  end

  -- The clock has stepped back by at least `cells` cells. All units of windows since the epoch then
  -- count in the current one.
  local function step_back(r, now, cells)
    local units = r.total
    r.healed, r.stepped = true, true
    if r.per == 0 and not r.opens then
      clear(r)
      return put(r, cell_of(r, now), units)
    end
    r.tail = r.tail - cells
    if r.log ~= '' then
      r.head, r.last = r.head - cells, r.last - cells
    end
  end

  local function load(key, now, cost, cap, per, grain, slack)
    local opens, width, layout = nil, grain, per > 0 and SLIDING or FIXED
    if grain == 0 then
      opens, width, layout = per, per - slack / 2, OPENED
      per, grain = 0, 1
    end
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain, slack = min(slack, (opens or grain) - 1),
      opens = opens, width = width, layout = layout, window = per > 0 and per or opens or grain, total = 0, head = 0, last = 0, tail = 0, count = 0, log = '', till = 0,
      found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= layout or unpack7(v, 9) ~= width then
      take_over(r, v, now)
      expire(r, now)
      return r
    end
    local _, till, _, total, head, last, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    r.till, r.total, r.head, r.last, r.tail, r.count, r.log = till, total, head, last, tail, count, sub(v, 52)
    local back = floor(stored.stepped(now, last_begins(r), byte(v, 51)) / grain)
    if back > 0 then
      step_back(r, now, back)
    end
    expire(r, now)
    return r
  end

  -- The moment by which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    stored.each(r.log, r.head, function(cell, units)
      need = need - units
      if need <= 0 then
        at = cell
        return true
      end
    end)
    return at * r.grain + r.per
  end

  -- The units that count together with those of a start at t: in a fixed window its own.
  local function held(r, t)
    if r.per > 0 then
      return r.total
    end
    local cell, units = cell_of(r, t), 0
    if cell == r.tail then
      return r.count
    end
    stored.each(r.log, r.head, function(at, had)
      units = units + (at == cell and had or 0)
    end)
    return units
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local need = held(r, t) + r.cost - r.cap
    if r.per > 0 then
      return need <= 0 and t or max(t, leave(r, need))
    end
    local ends = end_of(r, t)
    while need > 0 or ends - t <= r.slack do
      t = ends
      ends, need = end_of(r, t), held(r, t) + r.cost - r.cap
    end
    return max(t, ends - r.window)
  end

  local function charge(r, _, start)
    local cell = cell_of(r, start)
    put(r, cell, r.cost)
    return cell * r.grain
  end

  -- Takes units out of the cell that they were charged in.
  local function refund(r, _, place)
    local before, less, back = { log = r.log, head = r.head, tail = r.tail, count = r.count }, place / r.grain, 0
    if r.total == 0 or r.healed then
      return 0
    end
    local function keep(cell, units)
      if cell == ceil(less) then
        back = min(units, r.cost)
        units = units - back
      end
      if units > 0 then
        put(r, cell, units)
      end
    end
    clear(r)
    stored.each(before.log, before.head, keep)
    keep(before.tail, before.count)
    r.changed = back > 0
    return back
  end

  local function lasts(r, now)
    return r.total == 0 and 0 or max(0, r.tail * r.grain + (r.opens or r.per) - now)
  end

  local function save(r, now)
    write(r, now, r.layout, packed('>I7I7I7I7I7I7', r.width, r.total, r.head, r.last, r.tail, r.count)
      .. stored.ahead(now, last_begins(r)) .. r.log, lasts(r, now))
  end

  local function remaining(r, now)
    return max(0, r.cap - held(r, now))
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
