  -- The record of an attempt that was settled, under one rule: the units that it has spent
  -- and was not charged, and then, by turns, the places and units that it was charged, oldest
  -- first. It needs what settle.lua has above it.

  -- How many places are told apart; units in the places between do not come back.
  local MOST_PLACES = 8

  -- Refunds units in r, those that were charged last first; returns how many came back, and
  -- sets r.changed if anything came back.
  local function take_back(r, parts, less)
    local back, changed = 0, false
    while less > 0 and #parts > 0 do
      local last = #parts
      local place, units = parts[last - 1], min(parts[last], less)
      if place > 0 then
        r.cost = units
        back = back + algorithms[r.kind].refund(r, now, place)
        changed = changed or r.changed
      end
      less = less - units
      parts[last] = parts[last] - units
      if parts[last] == 0 then
        table.remove(parts)
        table.remove(parts)
      end
    end
    r.changed = changed
    return back
  end

  -- A bucket's numbers stay exact below this.
  local MOST_LEVEL = 6755399441055744

  -- How much may be charged beyond the capacity: a rule holds at most two capacities.
  local function room(r)
    r.cap = 2 * r.cap
    local units = algorithms[r.kind].remaining(r, now)
    r.cap = r.cap / 2
    return r.kind == 'T' and min(units, max(0, floor((MOST_LEVEL - r.x) / r.q))) or units
  end

  -- The record under a rule, or else what the caller knows.
  local function recorded(name, charged, place, over)
    local had = last and redis.call('HGET', settled, name)
    local parts = not had and charged > 0 and { place, charged } or {}
    if had then
      for j = 8, #had, 7 do
        parts[#parts + 1] = unpack7(had, j)
      end
      over = unpack7(had, 1)
    end
    for j = 1, (moved or not had and now >= tonumber(ARGV[4])) and #parts or 0, 2 do
      parts[j] = 0
    end
    return parts, over
  end

  -- Charges units as a debt, in r only.
  local function owe(r, parts, units)
    r.cost = units
    parts[#parts + 1] = algorithms[r.kind].charge(r, now, now)
    parts[#parts + 1] = units
    if #parts > 2 * MOST_PLACES then
      parts[3], parts[4] = 0, parts[4] + parts[6]
      table.remove(parts, 6)
      table.remove(parts, 5)
    end
    r.changed = true
  end

  settle = function(i, r)
    local charged, place = tonumber(ARGV[5 * i + 3]), tonumber(ARGV[5 * i + 4])
    local besides, spent = tonumber(ARGV[5 * i + 5]), id ~= '' and tonumber(ARGV[5 * i + 6]) or 0
    local name = sub(KEYS[i], #provider + 1)
    local parts, over = recorded(name, charged, place, besides)
    local more, back, debt = spent - over, 0, 0
    for j = 2, #parts, 2 do
      more = more - parts[j]
    end
    if more > 0 then
      debt = min(more, room(r))
      over = over + more - debt
      if debt > 0 then
        owe(r, parts, debt)
      end
    elseif more < 0 then
      local less = -more
      local free = min(over, less)
      over = over - free
      back = take_back(r, parts, less - free)
    end
    if id ~= '' then
      local text = pack(over)
      for j = 1, #parts do
        text = text .. pack(parts[j])
      end
      redis.call('HSET', settled, name, text)
    end
    if r.changed then
      algorithms[r.kind].save(r, now, now)
    end
    return back, debt, over
  end
