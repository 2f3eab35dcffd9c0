-- dispatch: grant the tasks of a provider whose turn is near, in the order of their turns, and charge them.
--
-- Nodes that are due leave blocked for ready. From the queues down the lowest tag goes first, to a leaf. If all rules of its first
-- task admit it soon enough, it is charged, granted and in flight; if not, the node of the rule that binds is blocked until that
-- rule admits it.
--
-- KEYS[1]     prefix  of the provider's keys. See include/base.lua, include/tree.lua and include/flight.lua.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     lead    integer µs, how long before its start a task is granted at the latest,
-- ARGV[3]     spread  and by how much earlier, so that one call serves several.
-- ARGV[4]     from    integer µs, how far ahead starts are at least: a task could not be there sooner.
-- ARGV[5]     most    integer, how many tasks to grant at most.
-- ARGV[6]     newest  the version and the policy of the caller's rules, integers with a space between.
-- ARGV[7]     serves  for each queue that the caller serves "queue weight", each line ended by a newline. Of queues with strict
--                     priority the weight is 0, and the first of them goes first.
-- ARGV[8]     skips   scopes whose tasks the caller cannot start now, each ended by a newline.
-- ARGV[9..]   rules   the scopes that an earlier call named as stale, each followed by the text of its rules. See
--                     include/rules.lua.
--
-- Returns  {times, granted, stale, refused, overdue}
--          times    in bytes: the clock of this call, and when to look again, 0 for not; seven bytes each
--          granted  two for each task: its waiter and its grant. See include/flight.lua.
--          stale    the scopes whose rules are older than the caller's, or out of date
--          refused  three for each task that no rule will ever admit: its queue, its scope and its id. It has lost its place.
--          overdue  two for each task that was granted and has not come in time: its waiter and its grant
--
-- Writes   what it changes.
-- Source   docs/turns.md#dispatch

-- #include base
-- #include rules
-- #include flight
-- #include tree

-- OVERDUE is when a grant has not come in time. A queue is served for SERVED after the look that its caller was told; it is gone
-- after GONE. AHEAD is how many turns a queue may be ahead of one that another caller serves, or as many as are in flight: what
-- calls grant at once. BACK is how soon to look again after giving way to that caller, and STALE after naming a scope. A call
-- takes at most STEPS steps, and takes up at most DUE blocked nodes. NEVER is how soon to look at a limit of 0.
local OVERDUE, SERVED, GONE, AHEAD, BACK, STALE, STEPS, DUE, NEVER = 3000000, 250000, 10000000, 64, 10000, 100000, 1000, 200, 3600000000

local lead, spread, from, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local version, policy_number = match(ARGV[6], '^(%d+) (%d+)$')
version, policy_number = tonumber(version), tonumber(policy_number)
local granted, stale, refused, overdue, serves, strict = {}, {}, {}, {}, {}, {}
local again -- the next look, if sooner than the tree says
local function look_again(t) again = min(again or t, t) end

for i = 9, #ARGV, 2 do
  call('HSET', rules_key, ARGV[i], ARGV[i + 1])
  due(leaf_node(ARGV[i]))
  due_above(ARGV[i])
end

-- The rules of a scope by a text, nil if it is older than the caller's or another one than this call uses: rules that scopes share
-- have one state and one set of numbers in a call.
local using
local function rules_of(scope, text)
  if of_scope[scope] then return of_scope[scope] end
  local its, of = 0, nil
  if text then its, of = unpacked('>I7I7', text) end
  if not of or its < version and of ~= policy_number then return nil, true end
  using = using or of
  if of ~= using then return nil, false end
  return policy(scope, text)
end

for _, waiter in ipairs(call('ZRANGEBYSCORE', flights, '-inf', whole(now - OVERDUE), 'LIMIT', '0', '64')) do
  local value = call('HGET', flight, waiter)
  if value then
    call('ZADD', flights, whole(now - OVERDUE + 1000000), waiter) -- other callers learn of it later
    overdue[#overdue + 1], overdue[#overdue + 2] = waiter, value
  else
    call('ZREM', flights, waiter)
  end
end

-- What is to be looked at: all that is blocked, if the rules are new, the clock has stepped back, or a queue whose tasks may be
-- what others wait behind is no longer served; else what is due.
local is_newer = version > tonumber(match(newest, '^%d+') or 0) and match(newest, '%d+$') ~= match(ARGV[6], '%d+$')
local all = is_newer and newest ~= ''
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
if all and call('EXISTS', blocked) == 1 then
  call('ZUNIONSTORE', recheck, '2', recheck, blocked)
  call('DEL', blocked)
  call('EXPIRE', recheck, STAYS)
  rechecks = true
end
local lists = { call('ZRANGEBYSCORE', blocked, '-inf', whole(now), 'LIMIT', '0', whole(DUE)), rechecks and call('ZRANGE', recheck, '0', DUE - 1) or {} }
for _, list in ipairs(lists) do
  for _, at in ipairs(list) do unblock(at) end
  if #list == DUE then look_again(now) end
end

-- A queue that comes back has saved up nothing.
local function revive(q)
  local tag, others = tonumber(call('ZSCORE', P .. 'ready', q) or nil), nil
  for its, at in pairs(seen) do
    local theirs = its ~= q and at > now - SERVED and tonumber(call('ZSCORE', P .. 'ready', its) or nil)
    others = theirs and min(others or theirs, theirs) or others
  end
  if tag and others and others > tag then call('ZADD', P .. 'ready', score(others), q) end
end
for q, weight in string.gmatch(ARGV[7], '([^\n ]*) (%S+)\n') do
  serves[q] = tonumber(weight)
  if serves[q] == 0 then strict[#strict + 1] = q
  elseif most > 0 and not sets[''] and seen[q] and seen[q] <= now - SERVED then revive(q) end
end

local skips = {}
for scope in string.gmatch(ARGV[8], '([^\n]*)\n') do skips[leaf_node(scope)] = true end

-- Moves the first child of a node that this caller can start to the front of its list. Returns nil if there is none.
local function show(n)
  for i, e in ipairs(n.list) do
    if not skips[e.child] and not (n.hides and n.hides[e.child]) then
      table.remove(n.list, i)
      table.insert(n.list, 1, e)
      return e
    end
  end
  if n.whole then return nil end
  read_set(n, 2 * #n.list + MANY)
  return show(n)
end

-- The queue that is next, and whether it has a turn; nil if there is none, or if another caller is to come for it first.
local function next_queue()
  for _, q in ipairs(strict) do
    if serves[q] and first(children(q, '')) then return q end
  end
  local n, earlier = children(), nil
  if not n.whole then read_set(n, 1000) end
  for _, e in ipairs(n.list) do
    if serves[e.child] then
      if earlier and e.tag - earlier > max(AHEAD, call('ZCARD', flights)) / serves[e.child] then
        look_again(now + BACK)
        return nil
      end
      return e.child, e
    elseif seen[e.child] and seen[e.child] > now - SERVED then
      earlier = earlier or e.tag
    end
  end
end

local dear = call('EXISTS', costs_key) == 1
local fields, granted_at, paid = {}, {}, {}

-- Charges the first task of a leaf at its start, and counts its turn at each node of the path, from the provider down.
local function grant(l, its, path, id, cost, start, turned)
  local waiter = l.q .. ':' .. id
  local at = charge(its, start, costs_of(its, cost), lease_of(waiter, start))
  local value = grant_text(its.many, is_probe(its), start, tonumber(l.list[l.next + 1]), its.shape, at, l.scope, cost)
  granted[#granted + 1], granted[#granted + 2] = waiter, value
  fields[#fields + 1], fields[#fields + 2] = waiter, value
  granted_at[#granted_at + 1], granted_at[#granted_at + 2] = whole(now), waiter
  paid[#paid + 1] = cost ~= 1 and waiter or nil
  local turns = min(requests(cost), 10000)
  if turned then
    local n = children()
    for i, e in ipairs(n.list) do
      if e == turned then
        n.list[1], n.list[i] = n.list[i], n.list[1] -- queues that others serve may be before it
        turn(n, turns / serves[l.q])
        table.sort(n.list, function(a, b) return a.tag < b.tag end)
        break
      end
    end
  end
  for i, n in ipairs(path) do turn(n, turns / (its.weights[i] or 1)) end
  count(l.scope, -1)
  if take(l) then leave(l.q, l.scope, leaf_node(l.scope)) end
end

-- Serves the first task of a leaf.
local function serve(q, scope, path, turned)
  local its, old = rules_of(scope, call('HGET', rules_key, scope))
  if not its and not old then return block(leaf_node(scope), now + BACK) end -- the next call may use these
  if not its or its.outdated then
    stale[#stale + 1] = scope
    return block(leaf_node(scope), now + STALE) -- until the caller's next call
  end
  local l = leaf(q, scope)
  local id = l.list[l.next]
  if not id then
    l.empty = true
    return leave(q, scope, leaf_node(scope))
  end
  local cost = dear and call('HGET', costs_key, q .. ':' .. id) or 1
  cost = tonumber(cost) or cost
  local start, _, sure = joint(its, costs_of(its, cost), now + from)
  if start and sure and start <= now + lead + spread then return grant(l, its, path, id, cost, start, turned) end
  local at, by, certain = binding(its, costs_of(its, cost), now + from)
  local r = its[by]
  if not r then return block(leaf_node(scope), min(start and start - lead or its.ends, its.ends)) end -- no rule alone, or the rules end before
  if at then return block(r.node, min(certain and at - lead > now and at - lead or at, its.ends, r.counts)) end
  if r.cap == 0 or r.p == 0 or r.counts < EXACT then return block(r.node, min(now + NEVER, its.ends, r.counts)) end
  refused[#refused + 1], refused[#refused + 2], refused[#refused + 3] = q, scope, id
  paid[#paid + 1] = q .. ':' .. id
  count(scope, -1)
  if take(l) then leave(q, scope, leaf_node(scope)) end
end

local steps = 0
while not is_blocked('') and #granted < 2 * most and #refused < 300 do
  local q, turned = next_queue()
  if not q then break end
  local path, at, scope = {}, '', nil
  while not scope do
    local n = children(q, at)
    path[#path + 1] = n
    if not show(n) then break end
    at = n.list[1].child
    scope = scope_of(at)
  end
  if scope then
    serve(q, scope, path, turned)
  elseif #children(q, at).list > 0 then -- all below it is skipped
    local above = path[#path - 1]
    if above then
      above.hides = above.hides or {}
      above.hides[at] = true
    else
      serves[q] = nil
    end
  else -- a node without ready children: what was lost is made anew
    leave(q, parent(at), at == '' and q or at)
  end
  steps = steps + 1
  if steps >= STEPS or #stale >= 64 then
    look_again(now)
    break
  end
end

if #fields > 0 then
  call('HSET', flight, unpack(fields))
  call('ZADD', flights, unpack(granted_at))
  call('EXPIRE', flight, STAYS)
  call('EXPIRE', flights, STAYS)
end
if #paid > 0 then call('HDEL', costs_key, unpack(paid)) end
save()
save_tree()

local full = #granted >= 2 * most
local look = again or #stale > 0 and now or lowest(blocked)
local in_flight = lowest(flights)
if in_flight then look = min(look or EXACT, in_flight + OVERDUE) end
local waits = call('EXISTS', P .. 'ready') == 1
if full and not is_blocked('') and waits then look = now end
if waits then look = look or now + 1000000 end -- others serve these queues, or nobody does for now

-- Until when a caller's queues are served. A caller without room for more does not keep others from its queues' turns.
local here = { '*', whole(now) }
if is_newer then here[3], here[4] = '#', ARGV[6] end
for q in pairs(serves) do
  if seen[q] and not full then here[#here + 1], here[#here + 2] = q, whole(max(now, min(look or 0, now + 1000000))) end
end
if look then
  call('HSET', P .. 'queues', unpack(here))
  call('EXPIRE', P .. 'queues', STAYS)
  call('EXPIRE', rules_key, STAYS)
else
  call('DEL', P .. 'queues', P .. 'units', P .. 'sequence', rules_key)
end
return { packed('>I7I7', now, look and max(now, look) or 0), granted, stale, refused, overdue }
