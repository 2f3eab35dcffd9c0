-- What is recorded of an attempt that was settled, under one rule: units that it has
-- spent and that are charged to nobody, and then, by turns, the places and units of what
-- it was charged, oldest first. It needs algorithms and now.

-- So many places are told apart; what was put into others in between does not come back.
local MOST_PLACES = 8

local function read_settled(text)
  local parts = {}
  for i = 8, #text, 7 do
    parts[#parts + 1] = unpack7(text, i)
  end
  return parts, unpack7(text, 1)
end

local function settled_text(parts, over)
  local out = { pack(over) }
  for i = 1, #parts do
    out[i + 1] = pack(parts[i])
  end
  return table.concat(out)
end

-- Takes units back in r, what was charged last first; returns how many came back, and
-- says in r.changed whether anything did.
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
