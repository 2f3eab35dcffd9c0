-- sliding-window: never more than cap units in any window of `per` µs.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves
-- `per` after the end of its cell: less than a grain late and never early, so
-- that per/grain + 1 cells are enough whatever the limit. Cells are numbered by
-- their ends. The last one (tail) stands apart, since it grows most; `log` holds
-- those before it that have units, oldest first, as varints: units, then (cells
-- since the one before, units) for each next.
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

  -- Returns the number at i and the place after it.
  local function unvarint(v, i)
    local n, unit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, unit, i = n + (b - 128) * unit, unit * 128, i + 1
      b = byte(v, i)
    end
    return n + b * unit, i + 1
  end

  -- Calls visit(cell, units, entry, from, to, before) for each entry of the log,
  -- oldest first, until it returns true. In the text, the entry begins at entry
  -- and its units stand at from, up to but not at to; before is the cell before.
  local function each(r, visit)
    local log, pos, cell, before = r.log, 1, r.head, nil
    local len = #log
    while pos <= len do
      local entry, delta, from, units = pos, 0, pos, 0
      if before then
        delta, from = unvarint(log, pos)
        cell = before + delta
      end
      units, pos = unvarint(log, from)
      if visit(cell, units, entry, from, pos, before) then
        return true
      end
      before = cell
    end
  end

  local function clear(r)
    r.total, r.head, r.last, r.tail, r.count, r.log = 0, 0, 0, 0, 0, ''
  end

  -- Puts units into a cell after all of the log.
  local function append(r, cell, units)
    if r.log == '' then
      r.head, r.log = cell, varint(units)
    else
      r.log = r.log .. varint(cell - r.last) .. varint(units)
    end
    r.last = cell
  end

  -- Puts units into a cell before the last of the log.
  local function insert(r, cell, units)
    each(r, function(at, had, entry, from, to, before)
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

  -- Writes all cells anew: in another grain, each at the later end, and without
  -- some units of one of them. Returns how many those were.
  local function rewrite(r, grain, less, cost)
    local old, back = { head = r.head, log = r.log }, 0
    local was, tail, count = r.grain, r.tail, r.count
    local function keep(cell, units)
      if cell == less then
        back = min(units, cost)
      end
      if cell ~= less or units > back then
        put(r, ceil(cell * was / grain), cell == less and units - back or units)
      end
    end
    clear(r)
    each(old, keep)
    if count > 0 then
      keep(tail, count)
    end
    r.grain = grain
    return back
  end

  -- Forgets what has left the window.
  local function expire(r, now)
    local gone = floor((now - r.per) / r.grain)
    if r.tail <= gone then
      clear(r)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      each(r, function(cell, units, _, from)
        if cell > gone then
          rest, head = sub(r.log, from), cell
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  -- The units of another algorithm. A bucket does not know when what it granted
  -- last begins: in no more than a second.
  local function take_over(r, v, now)
    local units, later = stored.carried(v), byte(v, 1) == TOKEN and 1000000 or 0
    for i = 1, #units, 2 do
      if units[i + 1] > 0 then
        put(r, ceil(min(units[i] + later, now + FAR_AHEAD) / r.grain), units[i + 1])
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, grain)
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain,
      total = 0, head = 0, last = 0, tail = 0, count = 0, log = '', till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= SLIDING then
      take_over(r, v, now)
      expire(r, now)
      return r
    end
    r.till, r.grain, r.total, r.head = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.last, r.tail, r.count, r.log = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), sub(v, 52)
    local back = stored.stepped(now, (r.tail - 1) * r.grain, byte(v, 51))
    if r.grain ~= grain then
      rewrite(r, grain)
    end
    back = floor(back / grain)
    if back > 0 then
      r.tail, r.healed, r.stepped = r.tail - back, true, true
      if r.log ~= '' then
        r.head, r.last = r.head - back, r.last - back
      end
    end
    expire(r, now)
    return r
  end

  -- The moment from which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    each(r, function(cell, units)
      need = need - units
      if need <= 0 then
        at = cell
        return true
      end
    end)
    return at * r.grain + r.per
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local need = r.total + r.cost - r.cap
    return need <= 0 and t or max(t, leave(r, need))
  end

  local function charge(r, _, start)
    local cell = ceil(start / r.grain)
    put(r, cell, r.cost)
    return cell * r.grain
  end

  local function refund(r, _, place)
    if r.total == 0 or r.healed then
      return 0
    end
    local back = rewrite(r, r.grain, ceil(place / r.grain), r.cost)
    r.changed = back > 0
    return back
  end

  local function lasts(r, now)
    return r.total == 0 and 0 or r.tail * r.grain + r.per - now
  end

  local function save(r, now)
    write(r, now, SLIDING, pack(r.grain) .. pack(r.total) .. pack(r.head) .. pack(r.last) .. pack(r.tail)
      .. pack(r.count) .. stored.ahead(now, (r.tail - 1) * r.grain) .. r.log, lasts(r, now))
  end

  local function remaining(r)
    return max(0, r.cap - r.total)
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
