-- When a waiting task is expected to start: an estimate, which no decision depends on. It needs now, tasks.lua and
-- tree.lua.

-- When the `units` before it and then the rule's cost will have been admitted, as
-- far as a clock can predict; nil if unknown.
local function after_units(r, now, units)
  -- #include fairshare/expect_calendar when K
  local whole_windows, field = 0, r.kind == 'T' and 'x' or r.kind == 'S' and (r.per > 0 and 'total' or 'count')
  if not field then
    return algorithms[r.kind].fit(r, now) and now
  elseif r.kind == 'T' then
    units = units * r.q
  elseif r.cap > 0 then
    whole_windows = floor(units / r.cap)
    units = units - whole_windows * r.cap
  end
  local was = r[field]
  -- A bucket that has been full for a while is no fuller than full.
  r[field] = (r.kind == 'T' and max(was, (now - r.at) * r.p) or was) + units
  local t = algorithms[r.kind].fit(r, now)
  r[field] = was
  return t and t + whole_windows * (r.window or 0)
end

-- How long until the turn of a task in its queue, from its place and the length of the queue, and the rule that it
-- waits for; -1 if no clock predicts it. Each scope that shares a level with it has a turn for each turn that the
-- queue has, if its weight is 1; and the scopes that are `before` it at a level, or all of them, one more. `places` gets two
-- numbers for each concurrency rule of the path: how many tasks take a place up to and including it, and how many runs hold one.
-- No task starts before its API's pause is over, or before `from`, if that is given.
local function expected_in(l, path, place, card, before, places, from)
  local binding, full = 0, nil
  from = max(now, from or 0)
  for i, r in ipairs(path) do
    if r.kind == 'P' and r.ends > from then
      from, binding = r.ends, i
    end
  end
  local latest = from
  for i, r in ipairs(path) do
    local level, mine = level_of(r.name), tree.units(l.leaf, r.unit)
    local own = card > 1 and floor(max(0, mine - r.cost) * place / (card - 1)) or 0
    local cost = r.cost
    if r.kind == 'C' then -- each task takes one place
      own, cost = place, min(cost, 1)
    end
    if r.kind ~= 'P' and own + cost > 0 then
      local others = max(0, tree.node(level).kids - 1) / (l.weights and l.weights[level] or 1)
      local turns = own * others + (before and before(level) or others) * max(1, cost)
      local units = own + min(max(0, tree.units(level, r.unit) - mine), ceil(turns))
      local t = after_units(r, from, units)
      if not t then
        return -1, i
      elseif t > latest then
        latest, binding = t, i
      end
      if r.kind == 'C' then
        full = full or place + 1 > r.cap - r.held and i
        if places then
          local last = #places
          places[last + 1], places[last + 2] = units + 1, r.held
        end
      end
    end
  end
  if binding == 0 and full then
    return -1, full
  end
  return latest - now, binding
end
