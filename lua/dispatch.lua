-- dispatch: grant the tasks of a provider whose turn is near, in the order of their turns, and charge them.
--
-- Nodes that are due leave blocked for ready. From the queues down the lowest tag goes first, to a leaf. If all rules of its first task
-- admit it soon enough, it is charged, granted and in flight; if not, the node of the rule that binds is blocked until that rule admits it,
-- or the node of a pool until the first member admits it.
--
-- KEYS, ARGV[1] are in include/base.lua, the keys in include/tree.lua and include/flight.lua.
-- ARGV[2]     lead    integer µs, how long before its start a task is granted at the latest,
-- ARGV[3]     spread  and by how much earlier, so that one call serves several.
-- ARGV[4]     from    integer µs, how far ahead starts are at least: a task could not be there sooner.
-- ARGV[5]     most    integer, how many tasks to grant at most.
-- ARGV[6]     newest  the version and the policy of the caller's rules, integers with a space between.
-- ARGV[7]     serves  for each queue that the caller serves a line "queue weight"; of strict ones the weight is 0, and the first goes first
-- ARGV[8]     skips   scopes whose tasks the caller cannot start now, each ended by a newline.
-- ARGV[9..]   rules   the scopes that an earlier call named as stale, each followed by the text of its rules. See include/rules.lua.
-- Returns  {times, granted, stale, refused, overdue}
--          times    in bytes: the clock of this call, and when to look again, 0 for not; seven bytes each
--          granted  two for each task: its waiter and its grant. See include/flight.lua.
--          stale    the scopes whose rules are older than the caller's, or out of date
--          refused  three for each task that no rule will ever admit: its queue, its scope and its id. It has lost its place.
--          overdue  two for each task that was granted and has not come in time: its waiter and its grant
-- Writes   what it changes.
-- Source   docs/turns.md#dispatch

-- #include base
-- #include rules
-- #include flight
-- #include tree

local lead, spread, from, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local version, policy_number = tonumber(match(ARGV[6], '^%d+')), tonumber(match(ARGV[6], '%d+$'))
local early = from > 0 and most > 0 and spread or 0 -- the next call of a distant caller that asks for tasks comes too late
local granted, stale, refused, overdue, serves, strict, skips = {}, {}, {}, {}, {}, {}, {}
local fields, granted_at, paid = {}, {}, {} -- to be written
local again -- the next look, if sooner than the tree says
local function look_again(t) again = min(again or t, t) end

for i = 9, #ARGV, 2 do
  call('HSET', rules_key, ARGV[i], ARGV[i + 1])
  tree.due_above(leaf_node(ARGV[i]))
end
if #ARGV > 8 then call('EXPIRE', rules_key, STAYS) end
for scope in string.gmatch(ARGV[8], '([^\n]*)\n') do skips[leaf_node(scope)] = true end

-- Grants that have not come OVERDUE after they were given. Other callers learn of them a second later.
local OVERDUE = 3000000
for _, waiter in ipairs(call('ZRANGEBYSCORE', flights, '-inf', whole(now - OVERDUE), 'LIMIT', '0', '64')) do
  local value = call('HGET', flight, waiter)
  if value then call('ZADD', flights, whole(now - OVERDUE + 1000000), waiter) else call('ZREM', flights, waiter) end
  if value then overdue[#overdue + 1], overdue[#overdue + 2] = waiter, value end
end

-- Takes up what is to be looked at: all that is blocked, if the rules are new, the clock has stepped back, or a queue whose tasks may
-- be what others wait behind is no longer served; else what is due; and of both the first DUE. What is due `soon`, by node and time, is
-- taken up when others are granted starts that are later than its own can be: it would find them all taken.
local soon
local is_newer = version > tonumber(match(newest, '^%d+') or 0) and match(newest, '%d+$') ~= match(ARGV[6], '%d+$')
do
  local GONE, DUE, all = 10000000, 200, is_newer and newest ~= ''
  if last_dispatch > now + 1000000 then
    all = true
    call('ZUNIONSTORE', flights, '1', flights, 'WEIGHTS', '0')
  end
  for q, at in pairs(seen) do
    if at > 0 and at < now - GONE then
      all, seen[q] = true, 0
      call('HSET', P .. 'queues', q, '0')
    end
  end
  if all then tree.recheck_all() end
  local list = tree.rechecks and call('ZRANGE', recheck, '0', DUE - 1) or {}
  for _, at in ipairs(list) do tree.unblock(at) end
  soon = call('ZRANGEBYSCORE', blocked, '-inf', whole(now + spread), 'WITHSCORES', 'LIMIT', '0', whole(DUE))
  if #list == DUE or #soon == 2 * DUE and tonumber(soon[#soon]) <= now then look_again(now) end
end
local function take_up(t)
  while soon[1] and tonumber(soon[2]) <= t do
    tree.unblock(table.remove(soon, 1))
    table.remove(soon, 1)
  end
end
take_up(now + early)

-- A queue counts as served for SERVED after the look that its caller was told. One that comes back has saved up nothing.
local SERVED, root = 250000, tree.children()
if not root.whole then tree.read(root, 1000) end
local function revive(q)
  local own
  for _, e in ipairs(root.list) do
    if e.child == q then
      own = e
    elseif seen[e.child] and seen[e.child] > now - SERVED then
      if own then tree.put(root, q, e.tag) end
      return
    end
  end
end
for q, weight in string.gmatch(ARGV[7], '([^\n ]*) (%S+)\n') do
  serves[q] = tonumber(weight)
  if serves[q] == 0 then strict[#strict + 1] = q
  elseif most > 0 and seen[q] and seen[q] <= now - SERVED then revive(q) end
end

-- The queue that is next; nil if there is none, or if another caller is to come for it first: a queue may be AHEAD turns ahead of
-- one that another caller serves, or as many as are in flight, which is what calls grant at once. Then this one looks BACK later.
local BACK = 10000
local function next_queue()
  for _, q in ipairs(strict) do
    if serves[q] and tree.child(tree.children(q, ''), 1) then return q end
  end
  local AHEAD, earlier = 64, nil
  for _, e in ipairs(root.list) do
    if serves[e.child] then
      if earlier and e.tag - earlier > max(AHEAD, call('ZCARD', flights)) / serves[e.child] then
        look_again(now + BACK)
        return nil
      end
      root.chosen = e
      return e.child
    elseif seen[e.child] and seen[e.child] > now - SERVED then
      earlier = earlier or e.tag
    end
  end
end

-- Charges the first task of a leaf at its start, and counts its turn at each node of the path, from the provider down.
local function grant(l, its, path, id, cost, start)
  local waiter, turns = l.q .. ':' .. id, min(units_of(cost, ''), 10000)
  local at = rules.charge(its, start, rules.costs(its, cost), lease_of(waiter, start))
  local value = grant_text(its.many, rules.is_probe(its), start, tonumber(l.list[l.next + 1]), its.shape, at, l.scope, cost, its.member and its.member.of.name)
  granted[#granted + 1], granted[#granted + 2] = waiter, value
  fields[#fields + 1], fields[#fields + 2] = waiter, value
  granted_at[#granted_at + 1], granted_at[#granted_at + 2] = whole(now), waiter
  if cost ~= 1 then paid[#paid + 1] = waiter end
  if serves[l.q] > 0 then tree.turn(root, turns / serves[l.q]) end
  for i, n in ipairs(path) do tree.turn(n, turns / (its.weights[i] or 1)) end
  tree.take(l)
  take_up(start - lead)
end

-- The rules of a scope, nil if they are older than the caller's or others than this call uses: rules that scopes share have one
-- state and one set of numbers in a call. A scope of older ones, or of rules that are out of date, is named as stale.
local using
local function rules_of(scope)
  local its, version_of, of = of_scope[scope], -1, nil
  if its and not its.outdated then return its end
  local text, STALE = call('HGET', rules_key, scope), 100000
  if text then version_of, of = unpacked('>I7I7', text) end
  if version_of >= version or of == policy_number then
    using = using or of
    if of ~= using then return tree.block(leaf_node(scope), now + BACK) end -- the next call may use these
    its = rules.of(scope, text)
    if not its.outdated then return its end
  end
  stale[#stale + 1] = scope
  tree.block(leaf_node(scope), now + early + STALE) -- until the caller's next call
end

-- Blocks a node until a moment, or for an hour if what admits the cost then may only be changed, or until the rules may be others. Else
-- nothing will ever admit it, and the task is refused.
local function wait_until(l, id, at, certain, node_at, may, latest)
  local NEVER = 3600000000
  if at and certain and at - lead > now then at = at - lead end
  if at or may then
    local i, t = #soon, min(at or now + NEVER, latest)
    while i > 0 and tonumber(soon[i]) > t do i = i - 2 end
    table.insert(soon, i + 1, t)
    table.insert(soon, i + 1, node_at)
    return tree.block(node_at, t)
  end
  refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = l.q, l.scope, id
  paid[#paid + 1] = l.q .. ':' .. id
  tree.take(l)
end

-- Blocks the node of the rule that alone would admit a cost last.
local function wait_for(l, its, cost, id, start, last)
  local at, by, certain = rules.binding(its, rules.costs(its, cost), now + from)
  local r = its[by]
  if start and at <= now + lead + spread then -- each rule alone admits it: one may be full now, or windows don't meet
    r, certain = its[last], false
    local full
    if r then at, full = r.its.fit(r, now, rules.costs(its, cost)[last]) end
    if not full then return tree.block(leaf_node(l.scope), min(start - lead > now and start - lead or start, its.ends)) end
  end
  if not r then return tree.block(leaf_node(l.scope), its.ends) end -- the rules end before
  return wait_until(l, id, at, certain, r.node, r.cap == 0 or r.p == 0 or r.counts, min(its.ends, r.counts or EXACT))
end

-- Blocks the node of a pool until the first member alone would admit a cost, if the rules of the path do.
local function wait_for_member(l, its, cost, id, start)
  local s, last, sure = rules.joint(its, rules.costs(its, cost), now + from)
  if not (s and sure and s <= now + lead + spread) then return wait_for(l, its, cost, id, s, last) end
  local at, certain, may, counts = pool.first(its, cost, now + from, lead)
  if start and certain and at <= now + lead + spread then -- each alone admits it
    return tree.block(leaf_node(l.scope), min(start - lead > now and start - lead or start, its.ends))
  end
  return wait_until(l, id, at, certain, its.node, may, min(its.ends, counts))
end

-- Serves the first task of a leaf.
local dear = call('EXISTS', costs_key) == 1
local function serve(q, scope, path)
  local its = rules_of(scope)
  if not its then return end
  local l = tree.leaf(q, scope)
  local id = l.list[l.next]
  if not id then return tree.take(l) end
  local cost = dear and call('HGET', costs_key, q .. ':' .. id) or 1
  cost = tonumber(cost) or cost
  local waits, since = its.pool and its.pool.waits or 0, now
  if waits > 0 then since, tree.keep = tonumber(call('HGET', keeps, leaf_node(scope)) or now), its.pool.affine end
  if since > now or since < now - 2 * waits then since = now end -- it may wait for as long again
  local own, _, start, last, sure = rules.choose(its, cost, now + from, nil, max(0, since + waits - now))
  if start and sure and start <= now + lead + spread then return grant(l, own, path, id, cost, start) end
  if its.keeps and its.keeps <= now + lead + spread then -- else the rules of the path don't admit it either
    if not its.pool.affine then return tree.block(its.node, min(start - lead, its.ends, select(4, pool.first(its, cost, now + from, lead)))) end
    call('HSET', keeps, leaf_node(scope), whole(since))
    call('EXPIRE', keeps, STAYS)
    return tree.block(leaf_node(scope), min(start - lead, now + 1000000)) -- units may come back to its member
  end
  if its.pool then return wait_for_member(l, its, cost, id, start) end
  return wait_for(l, its, cost, id, start, last)
end

-- Serves the first leaf below a node that is not skipped. Returns false if all are. `path` has the nodes above.
local function descend(q, at, path)
  local scope, n, i = scope_of(at), nil, 0
  if scope then
    if not skips[at] then serve(q, scope, path) end
    return not skips[at]
  end
  n = tree.children(q, at)
  path[#path + 1] = n
  repeat
    i = i + 1
    n.chosen = not n.skipped and tree.child(n, i)
    if n.chosen and descend(q, n.chosen.child, path) then return true end
  until not n.chosen
  path[#path] = nil
  n.skipped = #n.list > 0
  if not n.skipped then tree.leave(q, parent(at), at == '' and q or at) end -- nothing is ready: what was lost is made anew
  return not n.skipped
end

for step = 1, 1000 do
  local q = #granted < 2 * most and #refused < 300 and #stale < 64 and not tree.is_blocked('') and next_queue()
  if not q then break end
  if not descend(q, '', {}) then serves[q] = nil end
  if step == 1000 then look_again(now) end
end

if #fields > 0 then
  call('HSET', flight, unpack(fields))
  call('ZADD', flights, unpack(granted_at))
  call('EXPIRE', flight, STAYS)
  call('EXPIRE', flights, STAYS)
end
if #paid > 0 then call('HDEL', costs_key, unpack(paid)) end
rules.save()
tree.save()

local full, waits = #granted >= 2 * most, call('EXISTS', P .. 'ready') == 1
local look, in_flight = again or #stale > 0 and now or lowest(blocked), lowest(flights)
if in_flight then look = min(look or EXACT, in_flight + OVERDUE) end
if full and not tree.is_blocked('') and waits then look = now end
if waits then look = look or now + 1000000 end -- others serve these queues, or nobody does for now

-- Until when a caller's queues are served. A caller without room for more does not keep others from its queues' turns.
if look then
  local here = { '*', whole(now) }
  if is_newer then here[3], here[4] = '#', ARGV[6] end
  for q in pairs(serves) do
    if seen[q] and not full then here[#here + 1], here[#here + 2] = q, whole(max(now, min(look, now + 1000000))) end
  end
  if call('HSET', P .. 'queues', unpack(here)) > 0 then call('EXPIRE', P .. 'queues', STAYS) end
else
  call('DEL', P .. 'queues', P .. 'units', P .. 'sequence', rules_key, keeps)
end
return { packed('>I7I7', now, look and max(now, look) or 0), granted, stale, refused, overdue }
