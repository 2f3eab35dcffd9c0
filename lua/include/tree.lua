-- Which of the waiting tasks is next: start-time fair queueing among the children of each node, one tree for each queue.
-- Source: docs/turns.md#the-tree
--
--   q:<queue>:<scope>     sorted set, a leaf: the ids of the tasks of a scope, by priority and arrival
--   ready:<queue>:<node>  sorted set: the children that could be served, by tag. The leaf of a scope is its child <scope>/!
--   left:<queue>:<node>   sorted set: tags of children that are not ready, while they are ahead. ready, left: the same for the queues
--   blocked               sorted set: nodes by the moment at which to look at them again; in no queue are they ready
--   recheck               the same, taken from there to be looked at now, some in each call
--   queues                hash: each queue that has or had a tree, and until when a caller serves it. '*': the clock of the last
--                         dispatch. '#': the version and the policy of the newest rules.
--   rules                 hash: the text of the rules of each scope with waiting tasks
--   costs                 hash: the cost of each waiter that is not 1
--   keeps                 hash: the leaves whose tasks wait for their own member of a pool while another has room, and since when
--   units                 hash: how many tasks wait below each node, without its own leaf. When none does, its shares begin anew.
--
-- The lowest tag goes first, and a turn raises it by cost / weight. The virtual time of a node is the lowest tag of its ready
-- children, or of those that left: no clock is kept. Ready and left sets are read once and written at the end, by tree.save.
local blocked, recheck, rules_key, costs_key, keeps = P .. 'blocked', P .. 'recheck', P .. 'rules', P .. 'costs', P .. 'keeps'
local STAYS = '2592000' -- how long the keys of waiting tasks are kept, in s: a month after a task has joined
local seen, last_dispatch, newest = {}, now, '' -- the queues; when a dispatch came last, and the newest rules it had
do
  local all = call('HGETALL', P .. 'queues')
  for i = 1, #all, 2 do
    seen[all[i]] = tonumber(all[i + 1]) or 0
    newest = all[i] == '#' and all[i + 1] or newest
  end
  last_dispatch = seen['*'] or now
  seen['*'], seen['#'] = nil, nil
end

local function leaf_key(q, scope) return P .. 'q:' .. q .. ':' .. scope end
local function set_name(q, at) return at and ':' .. q .. ':' .. at or '' end
local function parent(at) return at ~= '' and match(at, '^(.*)/[^/]*$') or nil end
local function leaf_node(scope) return scope .. '/!' end
local function scope_of(leaf) return match(leaf, '^(.*)/!$') end
local function score(n) return string.format('%.17g', n) end -- tags and places, as sorted sets take them
local function lowest(key) return tonumber(call('ZRANGE', key, '0', '0', 'WITHSCORES')[2]) end

local tree = { rechecks = call('EXISTS', recheck) == 1 }

-- The ready children of a node: `list` has the first of them, by tag, all of them if `whole`; dirty and gone what is to be
-- written, left the tags of children that leave.
local sets = {}

local counts = {} -- by how many more tasks wait below a node than the hash units says

-- Whether tasks wait below a node, without its own leaf.
local function any_below(at) return (tonumber(call('HGET', P .. 'units', at) or nil) or 0) + (counts[at] or 0) > 0 end

function tree.write(n)
  local come, go, away = {}, {}, {}
  for child, tag in pairs(n.dirty) do come[#come + 1], come[#come + 2] = score(tag), child end
  for child, tag in pairs(n.gone) do
    go[#go + 1] = child
    if tag then away[#away + 1], away[#away + 2] = score(tag), child end
  end
  if #come > 0 then call('ZADD', n.key, unpack(come)) end
  if #go > 0 then call('ZREM', n.key, unpack(go)) end
  if n.fresh then call('EXPIRE', n.key, STAYS) end
  if #away > 0 and (not n.at or any_below(n.at)) then
    call('ZADD', n.left, unpack(away))
    call('EXPIRE', n.left, '3600')
  end
  if n.turned then call('ZREMRANGEBYSCORE', n.left, '-inf', '(' .. score(n.turned)) end
  n.dirty, n.gone, n.fresh, n.turned = {}, {}, nil, nil
end

function tree.read(n, most)
  tree.write(n)
  local got, list = call('ZRANGE', n.key, '0', whole(most - 1), 'WITHSCORES'), {}
  for i = 1, #got, 2 do list[#list + 1] = { child = got[i], tag = tonumber(got[i + 1]) } end
  n.list, n.whole = list, #list < most
end

function tree.children(q, at)
  local name = set_name(q, at)
  if not sets[name] then
    sets[name] = { at = at, key = P .. 'ready' .. name, left = P .. 'left' .. name, dirty = {}, gone = {} }
    tree.read(sets[name], 8)
  end
  return sets[name]
end

-- A child by its place, nil if there are fewer.
function tree.child(n, i)
  if i > #n.list and not n.whole then tree.read(n, 2 * #n.list + 64) end
  return n.list[i]
end

-- Whether any child of a node is away with a tag of its own: asked once, until one leaves.
function tree.apart(n)
  if n.away == nil then n.away = call('EXISTS', n.left) == 1 end
  return n.away
end

-- Takes a child out of the list. Returns its tag, nil if it was not read.
function tree.pull(n, child)
  for i, e in ipairs(n.list) do
    if e.child == child then return table.remove(n.list, i).tag end
  end
end

-- Puts a child in its place. One behind all that were read is not in the list.
function tree.put(n, child, tag)
  n.dirty[child], n.gone[child] = tag, nil
  tree.pull(n, child)
  local list = n.list
  local i = #list
  if not n.whole and (i == 0 or tag >= list[i].tag) then return end
  while i > 0 and list[i].tag > tag do i = i - 1 end
  table.insert(list, i + 1, { child = child, tag = tag })
end

local times = {} -- nodes that this call blocks, or false for those it unblocks
function tree.is_blocked(at)
  if times[at] ~= nil then return times[at] end
  return call('ZSCORE', blocked, at) or tree.rechecks and call('ZSCORE', recheck, at)
end

-- A child is ready, and so are the nodes above it that are not blocked.
function tree.enter(q, at, child)
  local n = tree.children(q, at)
  local low = tree.child(n, 1)
  local tag = low and low.tag or 0
  if tree.apart(n) then
    if n.turned or next(n.gone) then tree.write(n) end -- what this call has changed in left counts
    local own = tonumber(call('ZSCORE', n.left, child) or nil)
    tag = own or low and low.tag or lowest(n.left) or 0
    if own then call('ZREM', n.left, child) end
  end
  tree.put(n, child, tag)
  if low then return end
  n.fresh = true
  if at == '' then return tree.enter(q, nil, q) end
  if at and not tree.is_blocked(at) then tree.enter(q, parent(at), at) end
end

-- A child is no longer ready, and neither is a node without ready children. In a call in which leaves wait for what they share, all keep their tags.
function tree.leave(q, at, child)
  local n = tree.children(q, at)
  local tag = tree.pull(n, child) or n.dirty[child] or not n.whole and not n.gone[child] and tonumber(call('ZSCORE', n.key, child) or nil)
  if not tag then return end
  n.dirty[child], n.gone[child] = nil, false
  local low = tree.child(n, 1)
  if low and tag > low.tag or tree.keep or tree.apart(n) then n.gone[child], n.away = tag, true end
  if low or not at then return end
  if at == '' then return tree.leave(q, nil, q) end
  tree.leave(q, parent(at), at)
end

-- Has what is blocked at a node or above it looked at now.
function tree.due_above(at)
  while at do
    rules.due(at)
    at = parent(at)
  end
end

function tree.count(scope, units)
  local at = parent(scope)
  while at do
    counts[at] = (counts[at] or 0) + units
    at = parent(at)
  end
end

local leaves = {} -- the leaves whose first tasks were read: ids and scores by turns, from `next` on; and those that were taken

-- #for dispatch
-- The chosen child of a node has had a turn.
function tree.turn(n, units)
  if tree.apart(n) then n.turned = n.list[1].tag elseif #n.list == 1 and n.whole then return end -- it is alone
  tree.put(n, n.chosen.child, n.chosen.tag + units)
end

function tree.block(at, t)
  times[at] = max(now + 1, t)
  for q in pairs(at ~= '' and seen or {}) do tree.leave(q, parent(at), at) end
end

function tree.unblock(at)
  times[at] = false
  for q in pairs(at ~= '' and seen or {}) do
    local scope = scope_of(at)
    if scope and call('EXISTS', leaf_key(q, scope)) == 1 or not scope and tree.child(tree.children(q, at), 1) then tree.enter(q, parent(at), at) end
  end
end

-- Moves all that is blocked to where some of it is looked at in each call.
function tree.recheck_all()
  if call('EXISTS', blocked) == 0 then return end
  call('ZUNIONSTORE', recheck, '2', recheck, blocked)
  call('DEL', blocked)
  call('EXPIRE', recheck, STAYS)
  tree.rechecks = true
end

function tree.leaf(q, scope)
  local key = leaf_key(q, scope)
  leaves[key] = leaves[key] or { key = key, q = q, scope = scope, taken = {}, list = {}, next = 1, size = 3 }
  local l = leaves[key]
  if l.list[l.next] == nil and not l.ended then
    l.list, l.next = call('ZRANGE', key, whole(#l.taken), whole(#l.taken + l.size - 1), 'WITHSCORES'), 1
    l.ended, l.size = #l.list < 2 * l.size, 16
  end
  return l
end

-- Takes the first task, if any, out of a leaf, which is not ready when it is empty.
function tree.take(l)
  local id = l.list[l.next]
  if id then
    l.taken[#l.taken + 1], l.next = id, l.next + 2
    tree.count(l.scope, -1)
  end
  l.empty = l.ended and l.list[l.next] == nil
  if l.empty then tree.leave(l.q, l.scope, leaf_node(l.scope)) end
end
-- #end

-- #for ack, join
-- Makes a leaf and the nodes above it ready again, where that was lost: a task has come by itself that waits already.
function tree.heal(q, scope)
  local child, at = leaf_node(scope), scope
  while at and not tree.is_blocked(child) do
    local n = tree.children(q, at)
    if not (n.dirty[child] or call('ZSCORE', n.key, child)) then tree.enter(q, at, child) end
    child, at = at, parent(at)
  end
end

-- Once a day keeps a leaf, and what is above it, for a month more: a set that is never empty would expire.
function tree.renew(q, scope)
  local key, at = leaf_key(q, scope), scope
  if call('PTTL', key) > (STAYS - 86400) * 1000 then return end
  for _, one in ipairs({ key, blocked, recheck, P .. 'queues', costs_key, P .. 'ready' }) do call('EXPIRE', one, STAYS) end
  while at do
    call('EXPIRE', P .. 'ready' .. set_name(q, at), STAYS)
    at = parent(at)
  end
end

-- Puts tasks in a leaf: scores and ids by turns, and their costs by id where they are not 1. Returns how many were not there.
function tree.wait(q, scope, tasks, costs)
  local key = leaf_key(q, scope)
  local was = lowest(key)
  local joined = call('ZADD', key, 'NX', unpack(tasks))
  if not seen[q] then
    seen[q] = 0
    call('HSET', P .. 'queues', q, '0')
    call('EXPIRE', P .. 'queues', STAYS)
  end
  tree.renew(q, scope)
  for id, cost in pairs(costs) do
    call('HSET', costs_key, q .. ':' .. id, cost)
    call('EXPIRE', costs_key, STAYS)
  end
  tree.count(scope, joined)
  if not was then
    tree.enter(q, scope, leaf_node(scope))
  elseif joined < #tasks / 2 then
    tree.heal(q, scope)
  elseif lowest(key) < was then -- another task is first
    tree.due_above(leaf_node(scope))
  end
  return joined
end
-- #end

-- #for ack
-- Takes any task out of its leaf, if it is there.
function tree.withdraw(q, scope, id)
  local key = leaf_key(q, scope)
  local place = call('ZRANK', key, id)
  if not place then return end
  call('ZREM', key, id)
  call('HDEL', costs_key, q .. ':' .. id)
  tree.count(scope, -1)
  if call('EXISTS', key) == 0 then
    tree.leave(q, scope, leaf_node(scope))
    leaves[key] = { key = key, taken = {}, empty = true, q = q, scope = scope }
  elseif place == 0 then -- the next one may need less
    tree.due_above(leaf_node(scope))
  end
end
-- #end

-- Writes what has changed.
function tree.save()
  local unused, unkept, come, go, looked = {}, {}, {}, {}, {}
  for key, l in pairs(leaves) do
    if #l.taken > 0 then call('ZREM', key, unpack(l.taken)) end
  end
  for _, l in pairs(leaves) do
    local its = { l.key }
    for q in pairs(l.empty and seen or {}) do its[#its + 1] = leaf_key(q, l.scope) end
    if l.empty and call('EXISTS', unpack(its)) == 0 then unused[#unused + 1], unkept[#unkept + 1] = l.scope, leaf_node(l.scope) end
  end
  if #unused > 0 then call('HDEL', rules_key, unpack(unused)) end
  if #unkept > 0 then call('HDEL', keeps, unpack(unkept)) end
  for _, n in pairs(sets) do tree.write(n) end
  for at, t in pairs(times) do
    if t then come[#come + 1], come[#come + 2] = whole(t), at else go[#go + 1] = at end
    looked[#looked + 1] = at
  end
  if #come > 0 then
    call('ZADD', blocked, unpack(come))
    call('EXPIRE', blocked, STAYS)
  end
  if #looked > 0 and tree.rechecks then call('ZREM', recheck, unpack(looked)) end
  if #go > 0 then call('ZREM', blocked, unpack(go)) end
  for at, units in pairs(counts) do
    local left = units ~= 0 and call('HINCRBY', P .. 'units', at, whole(units))
    if units > 0 then call('EXPIRE', P .. 'units', STAYS) end
    if left and left <= 0 then
      call('HDEL', P .. 'units', at)
      for q in pairs(seen) do call('DEL', P .. 'left' .. set_name(q, at)) end
      if at == '' then call('DEL', P .. 'left') end
    end
  end
end
