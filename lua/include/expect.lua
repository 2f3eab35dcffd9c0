-- When a waiting task is expected to start: an estimate, which no decision depends on. It needs rules.lua and tree.lua.
-- Source: docs/turns.md#expected

-- Read once: how many requests wait below a node, how many of its children could be served, and how many tasks a line has.
local below, siblings, lengths = {}, {}, {}

-- How many tasks start before one that has so many before it in its line: lines of queues that are served like its own take turns.
local function among_lines(scope, q, before)
  local all = before
  for other, served in pairs(seen) do
    local key = leaf_key(other, scope)
    lengths[key] = lengths[key] or call('ZCARD', key)
    if other ~= q and served > (seen[q] or 0) - 10000000 then all = all + min(lengths[key], before) end
  end
  return all
end

-- The moment by which a task of a scope starts that has so many tasks before it in its leaf, and the rule that admits it last, one more
-- than there are for a pause and two more for the members of a pool; nil and a rule if no clock tells. Each sibling that could be served has a
-- turn for each turn of the leaf. `queued`, if given, gets for each concurrency rule how many tasks take a place up to and including it, and
-- how many runs hold one; the moment is then that of the other rules.
local function expect(its, scope, q, before, cost, from, queued)
  local latest, by, costs, unknown = max(now, from or 0), 0, rules.costs(its, cost), nil
  local function ahead_at(at, c)
    if at == scope then return c * among_lines(scope, q, before) end
    local n = tree.children(q, at)
    below[at] = below[at] or (tonumber(call('HGET', P .. 'units', at) or nil) or 0) + (counts[at] or 0)
    siblings[n] = siblings[n] or max(1, #n.list, call('ZCARD', n.key))
    return max(0, min(max(below[at] - c, before * c), (before + 1) * c * siblings[n] - c))
  end
  for i, r in ipairs(its) do
    local c, ahead, runs = costs[i], ahead_at(r.node, costs[i]), queued and r.of.kind == 'C'
    local t = (c == 0 or runs and r.cap > 0) and now or algorithm(r.of.kind, 'rare').after(r, max(now, from or 0), ahead, c)
    if runs then queued[#queued + 1], queued[#queued + 2] = ahead + 1, r.held end
    if not t then unknown = unknown or min(i, its.many + 1) elseif t > latest then latest, by = t, min(i, its.many + 1) end
  end
  local wait = its.pool and pool.wait(its, max(now, from or 0), ahead_at(its.node, 1), cost)
  if its.pool and not wait then unknown = unknown or its.many + 2 end
  if wait and max(now, from or 0) + wait > latest then latest, by = ceil(max(now, from or 0) + wait), its.many + 2 end
  return not unknown and latest or nil, unknown or by
end
