-- sliding-window: never more than cap units in any window of `per` µs.
-- Source: docs/algorithms.md#sliding-window
--
-- A log of (time, units) whose neighbours within `grain` µs stand as one entry
-- at the later time, so that a unit leaves at most one grain late and never
-- early, and about per/grain entries are enough whatever the limit. The last
-- entry (tail) stands apart, since it may still grow; `log` holds the others as
-- varints: units, then (ticks since the one before, units) for each next.
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

  -- Calls visit(time, units, from, to) for each entry of the log, oldest first,
  -- until it returns true: from and to are where its units stand in the text.
  local function each(r, visit)
    local pos, time, delta, units, from = 1, r.head, 0, 0, 1
    local len = #r.log
    while pos <= len do
      if pos > 1 then
        delta, pos = unvarint(r.log, pos)
        time = time + delta * r.tick
      end
      from = pos
      units, pos = unvarint(r.log, pos)
      if visit(time, units, from, pos) then
        return
      end
    end
  end

  local function clear(r, time)
    r.total, r.head, r.last, r.tail, r.count, r.span, r.log = 0, 0, 0, time, 0, 0, ''
  end

  -- Moves the tail into the log.
  local function push(r)
    if r.count == 0 then
      return
    end
    if r.log == '' then
      r.head, r.log = r.tail, varint(r.count)
    else
      r.log = r.log .. varint((r.tail - r.last) / r.tick) .. varint(r.count)
    end
    r.last = r.tail
  end

  -- Puts units at a time that is no earlier than the tail's.
  local function put(r, time, units)
    if r.total == 0 then
      clear(r, time)
    elseif time ~= r.tail and time - r.tail + r.span > r.grain then
      push(r)
      r.count, r.span, r.tail = 0, 0, time
    end
    r.count, r.span, r.tail = r.count + units, r.span + time - r.tail, time
    r.total = r.total + units
  end

  -- Writes all entries anew, in another tick, each time rounded up; change says
  -- how many units an entry keeps, and one that keeps none is gone. Entries are
  -- not merged: their units have been put off by a grain already.
  local function rewrite(r, tick, change)
    local old = { log = r.log, head = r.head, tick = r.tick, tail = r.tail, count = r.count, span = r.span }
    clear(r, 0)
    r.tick = tick
    local function keep(time, units, span)
      units = change(time, units)
      if units > 0 then
        push(r)
        r.tail, r.count, r.span, r.total = ceil(time / tick) * tick, units, span, r.total + units
      end
    end
    each(old, function(time, units)
      keep(time, units, 0)
    end)
    keep(old.tail, old.count, old.span)
  end

  -- Forgets what has left the window.
  local function expire(r, now)
    local gone = now - r.per
    if r.tail <= gone then
      clear(r, r.tail)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      each(r, function(time, units, from)
        if time > gone then
          rest, head = string.sub(r.log, from), time
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  local function load(key, now, cost, cap, per, grain, tick)
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain, tick = tick,
      total = 0, head = 0, last = 0, tail = 0, count = 0, span = 0, log = '', found = false, healed = false }
    local v = redis.call('GET', key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= SLIDING then
      put(r, ceil(now / tick) * tick, carried(v))
      return r
    end
    r.tick, r.total, r.head, r.last = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.tail, r.count, r.span, r.log = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), string.sub(v, 51)
    if r.tail - now > FAR_AHEAD then
      local step = floor((r.tail - now) / r.tick) * r.tick
      r.head, r.last, r.tail, r.healed = r.head - step, r.last - step, r.tail - step, true
    end
    if r.tick ~= tick then
      rewrite(r, tick, function(_, units)
        return units
      end)
    end
    expire(r, now)
    return r
  end

  -- The moment from which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    each(r, function(time, units)
      need = need - units
      if need <= 0 then
        at = time
        return true
      end
    end)
    return at + r.per
  end

  local function fit(r, t)
    if r.cap == 0 then
      return nil
    end
    local need = r.total + r.cost - r.cap
    return need <= 0 and t or max(t, leave(r, need))
  end

  local function charge(r, _, start)
    local time = ceil(start / r.tick) * r.tick
    if r.total > 0 and time < r.tail then
      time = r.tail
    end
    put(r, time, r.cost)
    return time
  end

  -- The units went into the first entry at or after their place.
  local function refund(r, now, place)
    if not r.found or place <= now - r.per or place > r.tail then
      return 0
    end
    local back = 0
    rewrite(r, r.tick, function(time, units)
      if time < place or back > 0 then
        return units
      end
      back = min(units, r.cost)
      return units - back
    end)
    return back
  end

  local function save(r, now)
    redis.call('SET', r.key, char(SLIDING) .. pack(r.tick) .. pack(r.total) .. pack(r.head) .. pack(r.last)
      .. pack(r.tail) .. pack(r.count) .. pack(r.span) .. r.log,
      'PX', whole(ceil((max(0, r.tail - now) + r.per) / 1000) + 1000))
  end

  local function remaining(r)
    return max(0, r.cap - r.total)
  end

  local function reset(r, now)
    return r.total == 0 and 0 or max(0, r.tail + r.per - now)
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
