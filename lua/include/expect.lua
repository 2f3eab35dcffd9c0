-- When a waiting task is expected to start: an estimate, which no decision depends on. It needs rules.lua and tree.lua.
-- Source: docs/turns.md#expected

-- How many requests wait below a node, and how many of its children could be served: read once.
local below, siblings = {}, {}
local function waiting_below(at)
  below[at] = below[at] or (tonumber(call('HGET', P .. 'units', at) or nil) or 0) + (counts[at] or 0)
  return below[at]
end
local function ready_below(n)
  siblings[n] = siblings[n] or max(#n.list, call('ZCARD', n.key))
  return siblings[n]
end

-- The moment by which a task of a scope starts that has so many tasks before it in its leaf, and the rule that admits it last, one more
-- than there are for a pause and two more for the members of a pool; nil and a rule if no clock tells. Each sibling that could be served has a turn for each turn of the leaf. `queued`, if given, gets for
-- each concurrency rule how many tasks take a place up to and including it, and how many runs hold one; the moment is then that of the other rules.
local function expect(its, scope, q, before, cost, from, queued)
  local latest, by, costs, unknown = max(now, from or 0), 0, rules.costs(its, cost), nil
  local function ahead_at(at, c)
    return max(0, min(max(waiting_below(at) - c, before * c), (before + 1) * c * max(1, ready_below(tree.children(q, at))) - c))
  end
  for i, r in ipairs(its) do
    local c = costs[i]
    local ahead = r.node ~= scope and r.of.kind ~= 'P' and ahead_at(r.node, c) or before * c
    local runs = queued and r.of.kind == 'C'
    local t = (c == 0 or runs and r.cap > 0) and now or algorithm(r.of.kind, 'rare').after(r, max(now, from or 0), ahead, c)
    if runs then queued[#queued + 1], queued[#queued + 2] = ahead + 1, r.held end
    if not t then unknown = unknown or min(i, its.many + 1) elseif t > latest then latest, by = t, min(i, its.many + 1) end
  end
  local wait = its.pool and pool.wait(its, max(now, from or 0), its.node ~= scope and ahead_at(its.node, 1) or before, cost)
  if its.pool and not wait then unknown = unknown or its.many + 2 end
  if wait and max(now, from or 0) + wait > latest then latest, by = ceil(max(now, from or 0) + wait), its.many + 2 end
  if unknown then return nil, unknown end
  return latest, by
end
