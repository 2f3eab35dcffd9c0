-- When a waiting task is expected to start: an estimate, which no decision depends on. It needs rules.lua and tree.lua.
-- Source: docs/turns.md#expected

-- How many requests wait below a node, and how many of its children could be served: read once.
local below, siblings = {}, {}
local function waiting_below(q, scope, at)
  below[at] = below[at] or (tonumber(call('HGET', P .. 'units', at) or nil) or 0) + (counts[at] or 0)
  return below[at]
end
local function ready_below(q, at)
  siblings[at] = siblings[at] or max(#children(q, at).list, call('ZCARD', children(q, at).key))
  return siblings[at]
end

-- The moment by which a task of a scope starts that has so many tasks before it in its leaf; nil if no clock tells. Each sibling
-- that could be served has a turn for each turn of the leaf.
local function expect(its, scope, q, before, cost)
  local latest = now
  for i, r in ipairs(its) do
    local c = costs_of(its, cost)[i]
    local ahead = before * c
    if r.blocks ~= scope and r.of.kind ~= 'P' then
      local here = waiting_below(q, scope, r.blocks)
      ahead = min(max(here - c, ahead), (before + 1) * c * max(1, ready_below(q, r.blocks)) - c)
    end
    local t = c > 0 and algorithm(r.of.kind, 'rare').after(r, now, max(0, ahead), c) or c == 0 and now
    if not t then
      return nil
    end
    latest = max(latest, t)
  end
  return latest
end
