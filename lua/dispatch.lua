-- dispatch: grant the tasks of a provider whose turn is near, in the order of their turns.
--
-- From the provider down it picks the first of the waiting tasks. If all rules admit the task soon enough, it charges
-- them at the start that they give: the task is in flight until its process reports that it has come. If a rule
-- does not, the rule's node waits in the schedule. Sent again under its id, it returns the same tasks, except
-- those that have come.
--
-- KEYS[1..n]  rule      state of rule i of those that apply to the scopes; n is ARGV[11]. See include/core/layout.lua.
-- KEYS[n+1]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[n+2]   heap      sorted set of listed nodes.
-- KEYS[n+3]   meta      hash of nodes.
-- KEYS[n+4]   flight    hash of grants in flight. See include/fairshare/flight.lua, here and for the next.
-- KEYS[n+5]   overdue   sorted set of the same.
-- KEYS[n+6]   upstream  hash, what the API has reported about its limits. See include/upstream/upstream.lua.
-- KEYS[n+7]   parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[n+8..] queue     the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     call    the id of this call. Its first ten bytes identify the caller.
-- ARGV[3]     lead    integer µs >= 0, how long before its start a task is granted at the latest,
-- ARGV[4]     spread  and integer µs >= 0, how much earlier it may be, so that one call serves several.
-- ARGV[5]     most    integer >= 0, how many tasks to grant at most.
-- ARGV[6]     more    integer >= 0, how many more tasks to grant if their start has come already.
-- ARGV[7]     all     1 to check every node, whatever it waits for: a limit may have changed.
-- ARGV[8]     from    integer µs >= 0, how far ahead starts are at least: a task could not be there sooner.
-- ARGV[9]     edge    integer µs, when a rule of one of the scopes begins or ends to apply, "" for never: no start
--                     at or after that moment is granted under these rules.
-- ARGV[10]    near    integer >= 1, how many of the nodes whose turns are next to return.
-- ARGV[11]    rules   integer n.
-- ARGV[12..]  rule    one for each rule. See include/core/rules.lua.
-- ARGV[n+12..] path   one for each of s scopes: the numbers of its rules, as "1,3*2,4", with the weight of the
--                     scope's name under a rule if it has one; "-" for a scope whose rules the caller does not
--                     know; "!" before the numbers for a scope of which the caller may start no task.
-- ARGV[n+s+12..] news three for each task, what, scope and ticket: "c" it has come, "u" it has not come and
--                     gets its place back, "a" there is no such task yet and it is tried again eight places later,
--                     "f" the task no longer exists, "w" it leaves its queue unless it is in flight, "b" it was parked and
--                     gets its place back; "c", "u" and "a" may be followed by the id of a grant, and then apply to that grant alone. Or "s", any scope, and
--                     a group that stands still, or "m", any scope, and a group that the caller serves. A group is
--                     the beginning of its tickets' names, up to and including the first slash. Without "m" the
--                     caller serves all groups.
--
-- Returns  {times, granted, missing, near, overdue}, each a list:
--          times    {now, next, parked, others}: integer µs, the clock of this call; when to dispatch again, 0 when
--                   no task waits or is in flight; 1 while any are parked; how many tasks it granted for other
--                   callers, or left to them
--          granted  three for each task: its scope, its ticket and its grant, as in flight.lua
--          missing  the scopes that come up and are not among KEYS, each once
--          near     nodes whose turns are next, as paths
--          overdue  three for each task that was granted and has not come in time: its scope, its ticket and the id
--                   of its grant
--
-- Writes   KEYS[1..n+s+7] that it changes. Nothing when no task waits and there is no news.
-- Source   docs/turns.md#dispatch

-- #include core/clock
-- #include core/pack
-- #include core/layout

local call = redis.call
local n, base, from, edge = tonumber(ARGV[11]), 11, tonumber(ARGV[8]), tonumber(ARGV[9]) or math.huge
local schedule, heap, meta, flight, overdue = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local upstream, parked, provider = KEYS[n + 6], KEYS[n + 7], sub(KEYS[n + 1], 1, -10)
-- EXISTS counts a key as often as it is named.
local there = call('EXISTS', schedule, flight, flight, upstream, upstream, upstream, upstream, parked, parked, parked, parked, parked, parked,
  parked, parked)
local reported, parks, flies = floor(there / 4) % 2 == 1, there >= 8, floor(there / 2) % 2 == 1
local id, lead, spread = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local most, more, many = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[10])

-- #include core/numbers
local stale = false
-- #include fairshare/stale when K
-- #include core/rules
-- #include core/answer
-- #include upstream/upstream
-- #include fairshare/tasks
-- #include fairshare/tree
-- #include fairshare/flight
-- #include fairshare/grants
-- #include fairshare/parked
-- #include fairshare/queues

-- STEPS is the most steps of a call, DUE the most blocked nodes that it takes up at once. After MISSING scopes that it
-- does not know the call ends: the caller comes again with those. ALL_AT_ONCE is how many nodes it checks when limits
-- have changed.
local STEPS, DUE, MISSING, ALL_AT_ONCE = 1000, 100, 64, '1000'

-- SOON is how soon to dispatch again if work is left. AGAIN is how soon to check a scope again whose rules the caller
-- does not know. SUSPENDED is how soon to check a suspended rule; a change of its limit brings that forward. If a grant
-- for another caller was not fetched for ABSENT, no caller fetches it, and no more tasks of its group are granted.
local SOON, AGAIN, SUSPENDED, ABSENT = 5000, 1000000, 3600000000, 250000

-- A node that is blocked for no longer than this may be next when the caller comes again.
local SOON_LISTED = 500000

local granted, missing, late = {}, {}, {}
local mine, fields_set, fields_gone = nil, {}, {}
local roots, again, absent, handed = {}, nil, {}, 0
tree.at_once = 32

local function look_again(t)
  again = min(again or t, t)
end

-- Adds a scope, a ticket and a value to a list of the reply.
local function add(list, scope, ticket, its)
  list[#list + 1], list[#list + 2], list[#list + 3] = scope, ticket, its
end

-- The first task of a queue that this call has not granted: ticket and score.
local function head(l)
  if not l.got or l.next > #l.got and #l.got == 2 * l.size then
    parking.read(l)
  end
  return l.got[l.next], tonumber(l.got[l.next + 1])
end

-- The news.

-- Puts a task back in its queue.
local function back(l, ticket, score)
  if call('ZADD', l.key, 'NX', whole(score), ticket) == 1 then
    tree.count(l.leaf, ticket, 1)
    queues.stand_anew(l)
    keep_waiting(0, l.key)
  end
end

-- Puts a parked task back in its queue, unless it is in flight, or costs too much: in the queue it would block
-- tasks that can start.
local function unpark(l, field, ticket)
  local group = ticket == ':' .. group_of(ticket)
  if not l or l.unknown or not group and parking.too_dear((counted(queues.path(l), ticket))) then
    return
  end
  local score = parking.take(l, field, ticket)
  if score and call('HEXISTS', flight, field) == 0 then
    back(l, ticket, score)
  end
end

local function take_out(l, ticket)
  local place = l and call('ZRANK', l.key, ticket)
  if place then
    call('ZREM', l.key, ticket)
    if place == 0 then
      tree.look_above(l.leaf)
    end
    tree.count(l.leaf, ticket, -1)
    if not l.unknown then
      queues.stand_anew(l)
    elseif call('EXISTS', l.key) == 0 then
      tree.stand(l.leaf)
    end
  end
end

-- Handles news of a granted task. `its` is the id of the grant that the news is about.
local function news_of_granted(what, l, field, ticket, its)
  local value = flies and call('HGET', flight, field)
  if not value or not flights.is(value, its) then
    return
  end
  if what ~= 'f' and (not l or l.unknown) then
    return -- it is named again, to a caller that knows its rules
  end
  local g = flights.read(value)
  flights.refund(g, flights.parts(field), ticket, queues.named)
  if what ~= 'f' then
    local eighth = what == 'a' and call('ZRANGE', l.key, '8', '8', 'WITHSCORES')[2]
    back(l, ticket, tonumber(eighth or nil) or g.score)
  end
  flights.forget(field) -- last: at no moment is the task in neither
end

-- Takes tasks that have come out of flight: fields, by the ids of their grants.
local function forget_claimed(fields, ids)
  local gone = {}
  for i, value in ipairs(flies and values_of(flight, fields) or {}) do
    gone[#gone + 1] = value and flights.is(value, ids[i]) and fields[i] or nil
  end
  in_parts('HDEL', flight, gone)
  in_parts('ZREM', overdue, gone)
end

local function news_of_one(what, its, l, field, ticket)
  if what == 'b' then
    unpark(l, field, ticket)
  elseif what == 'w' then
    if not (flies and call('HEXISTS', flight, field) == 1) then
      call('ZREM', parked, field)
      take_out(l, ticket)
    end
  elseif what == 'f' then
    news_of_granted(what, l, field, ticket, '')
    call('ZREM', parked, field)
    take_out(l, ticket)
  else
    news_of_granted(what, l, field, ticket, its)
  end
end

-- Takes in the news. Tasks that have come are named first, and handled before all others: none of their units come back.
local function take_news()
  local claimed, ids = {}, {}
  for i = 5 + #KEYS, #ARGV, 3 do
    local what, its, scope, ticket = sub(ARGV[i], 1, 1), sub(ARGV[i], 2), ARGV[i + 1], ARGV[i + 2]
    local l, field = queues.by_scope[scope], scope .. '\0' .. ticket
    if what == 's' then
      parking.add(ticket)
    elseif what == 'm' then
      mine = mine or {}
      mine[ticket] = true
    elseif #granted > 0 then
      -- this call was sent before, and has taken it in
    elseif what == 'c' then
      claimed[#claimed + 1], ids[#ids + 1] = field, its
    else
      forget_claimed(claimed, ids)
      claimed, ids = {}, {}
      news_of_one(what, its, l, field, ticket)
    end
  end
  forget_claimed(claimed, ids)
end

-- After the clock has stepped back, leases that were written before end too late by the step, and runs that have
-- died hold their places for as long. Leases that end after the moment that the clock had reached are set to end one
-- lease from now: never sooner than they should, however often this happens. Not every call knows all rules, so the
-- moment is remembered until the clock has nearly reached it again.
local function bring_leases_back(beat, had)
  local ends_at = beat - now > FAR_AHEAD and beat or had
  if not ends_at then
    return
  elseif now + FAR_AHEAD >= ends_at then
    fields_gone[#fields_gone + 1] = '^'
    return
  elseif ends_at == beat then
    fields_set[#fields_set + 1], fields_set[#fields_set + 2] = '^', whole(ends_at)
  end
  for i = 1, n do
    local lease = byte(ARGV[base + i]) == HELD and unpack7(ARGV[base + i], 9)
    if lease and now + lease + FAR_AHEAD < ends_at then
      local ends = call('ZRANGEBYSCORE', KEYS[i], '(' .. whole(ends_at), '+inf')
      for j = 1, #ends do
        call('ZADD', KEYS[i], 'XX', 'LT', whole(now + lease), ends[j])
      end
    end
  end
end

-- The granted.

-- The tasks that this call granted when it was sent before.
local function granted_before()
  if flies and call('HGET', flight, '=' .. sub(id, 1, 10)) == id then
    local all = call('HGETALL', flight)
    for f = 1, #all, 2 do
      if byte(all[f]) ~= 61 and sub(flights.read(all[f + 1]).id, 1, #id) == id then
        local scope, ticket = flights.parts(all[f])
        add(granted, scope, ticket, all[f + 1])
        most = most - 1
      end
    end
  end
end

local function is_mine(ticket, l)
  return not (l and l.left) and (not mine or mine[group_of(ticket)])
end

-- Whether no caller starts a task that is granted: its scope is left to other callers, or no caller serves its
-- group.
local function is_left(ticket, l)
  return l.left or not is_mine(ticket, l) and absent[l.scope .. '\0' .. group_of(ticket)]
end

-- Fetches what other callers have granted for groups of this caller, and lists tasks that have not come in time.
local function fetch()
  local list = flies and call('ZRANGEBYSCORE', overdue, '-inf', whole(now - STALE), 'WITHSCORES', 'LIMIT', '0', '64') or {}
  for i = 1, #list, 2 do
    local field, at = list[i], tonumber(list[i + 1])
    local scope, ticket = flights.parts(field)
    local value = call('HGET', flight, field)
    local l = queues.by_scope[scope]
    if not value then
      call('ZREM', overdue, field)
    elseif at < 0 and is_mine(ticket, l) and l and not l.unknown and flights.read(value).start < now then
      news_of_granted('u', l, field, ticket, '') -- it is granted anew
    elseif at < 0 and is_mine(ticket, l) then
      call('ZADD', overdue, whole(now), field)
      add(granted, scope, ticket, value)
    elseif at > 0 or at + HANDED + STALE <= now then
      call('ZADD', overdue, whole(now - STALE + AGAIN), field) -- other callers learn of it later
      add(late, scope, ticket, flights.read(value).id)
    elseif at + HANDED + ABSENT <= now then
      absent[scope .. '\0' .. group_of(ticket)] = true
    end
  end
end

-- When the next task in flight is to be listed as overdue, if that is before the moment t; 0 is never.
local function next_overdue(t)
  for least, ahead in pairs({ ['-inf'] = HANDED, ['0'] = 0 }) do
    local at = tonumber(call('ZRANGEBYSCORE', overdue, least, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2] or nil)
    local its = at and max(now + 1, at + (at < 0 and ahead or 0) + STALE)
    t = its and (t == 0 or its < t) and its or t
  end
  return t
end

-- Grants a task its start. It charges the task, and counts a turn of its scope.
local function grant(l, ticket, score, path, start)
  local own = is_mine(ticket, l)
  local value = flights.grant(l, ticket, path, start, score, own and now or now - HANDED)
  if own then
    add(granted, l.scope, ticket, value)
    if start <= now and more > 0 then
      more = more - 1
    else
      most = most - 1
    end
  else
    handed = handed + 1
  end
  l.took[#l.took + 1], l.next = ticket, l.next + 2
  tree.count(l.leaf, ticket, -1)
  tree.turn(l.leaf, queues.units_by_level(l, path, ticket), l.weights)
  queues.stand(l, head(l))
end

-- The level at which other tasks that take some of the same rules, though not all the same, are before a task, and
-- until when they wait there: units that come free are theirs.
local function waits_behind(leaf, sig, ticket)
  for _, at in ipairs(tree.chain(leaf)) do
    for its, state in pairs(tree.node(at).states) do
      if its ~= sig and state.cost and state.cost > 0 and cost_of(ticket, state.unit) > 0 then
        local theirs, ours = tree.first(tree.node(at), its), tree.first(tree.node(at), sig)
        local t = tree.waits_until(at, its)
        if t and t > now and theirs and tree.sooner(theirs, ours) then
          return at, t, state, its
        end
      end
    end
  end
end

local function block(level, sig, t, cost, unit, behind)
  tree.block(level, sig, t, cost, unit, behind)
  if level == '' then
    roots[sig], tree.through[sig] = nil, #outs.overdue
  end
end

-- Blocks the node of the rule that a task waits for. A task that no rule will ever admit at its cost is parked. If
-- a limit was cut, and will grow again, only the task's scope waits.
local function wait_for(l, sig, ticket, score, path, start, binding, sure)
  local by, free = waits_for(path, start, binding)
  if not by then -- no rule delays it, and it is to start when other rules may apply
    return block(l.scope, sig, max(now + 1, edge), 1, '')
  elseif not free and parking.too_dear(path) then
    if parking.dear == 0 then
      look_again(now)
      return tree.hide(l.leaf, sig)
    end
    parking.dear, l.next = parking.dear - 1, l.next + 2
    parking.park(l, { ticket, score })
    return queues.stand(l, head(l))
  elseif not free and by.corrected then
    return block(l.scope, sig, now + UPSTREAM_LOOK, by.cost, by.unit)
  end
  local early = sure and free and free - lead > now and lead or 0
  local look = free and max(now + 1, free - early) or now + SUSPENDED
  if sure and start >= edge then
    look = max(now + 1, edge)
  end
  if by.corrected then
    look = min(look, now + UPSTREAM_LOOK)
  end
  block(level_of(by.name), sig, look, by.cost, by.unit)
end

-- Serves the first task of a leaf. False when the call may grant no more: after a scope that it does not know, no
-- other task may be granted units that a task of that scope could have.
local function serve(leaf, sig)
  local l = queues.by_scope[sub(leaf, 1, -2)]
  if not l or l.unknown then
    if l then
      handed = handed + 1
      look_again(now + AGAIN)
    else
      missing[#missing + 1] = sub(leaf, 1, -2)
    end
    tree.hide(leaf, sig)
    return #missing < min(MISSING, most + max(0, more) + 4 + handed) -- those that are left hide others
  elseif #missing > 0 then
    return false
  end
  local ticket, score = head(l)
  if not ticket then
    tree.stand(leaf)
    return true
  elseif parking.stands(ticket) then -- more stand still than one call parks
    look_again(now)
    tree.hide(leaf, sig)
    return true
  end
  local path, its = counted(queues.path(l), ticket)
  if its ~= sig or band_of(score) ~= tree.node(leaf).states[sig].band then
    queues.stand(l, ticket, score)
    return true
  end
  local level, t, state, behind = waits_behind(leaf, sig, ticket)
  if level then
    block(level, sig, t, state.cost, state.unit, behind)
    return true
  end
  local start, binding, sure = joint_start(path, now + from)
  if not sure or start > now + lead + spread or start >= edge then
    wait_for(l, sig, ticket, score, path, start, binding, sure)
    return true
  elseif most <= 0 and (more <= 0 or start > now) and is_mine(ticket, l) then
    return false
  end
  if is_left(ticket, l) then
    handed = handed + 1
    look_again(now + ABSENT)
    tree.hide(leaf, sig)
    return true
  end
  grant(l, ticket, score, path, start)
  return true
end

-- The signature whose first task below the provider has its turn soonest.
local function next_root()
  local best, sig
  for its in pairs(roots) do
    local e = tree.first(tree.node(''), its)
    if not e then
      roots[its], tree.through[its] = nil, #outs.overdue
    elseif not best or tree.sooner(e, best) then
      best, sig = e, its
    end
  end
  return sig
end

local function leaf_below(sig)
  local at = ''
  repeat
    local e = tree.first(tree.node(at), sig)
    if not e or #e.id <= #at then -- the way down must end at a leaf
      error('node ' .. at .. ' is damaged for ' .. sig)
    end
    at = e.id
  until sub(at, -1) == '/'
  return at
end

-- Unblocks blocked nodes that are due.
local function take_up(names)
  local ids = { '' }
  for _, name in ipairs(names) do
    ids[#ids + 1] = flights.parts(name)
  end
  tree.read(ids)
  for _, name in ipairs(names) do
    tree.unblock(flights.parts(name))
  end
  for sig, state in pairs(tree.node('').states) do
    if state.cost == 0 then
      roots[sig] = true
    end
  end
end

-- The blocked nodes that are due, without those of the provider that this call has finished with: since then it has
-- granted no task, and no task was listed. Nodes that will be due within the spread are included, once each, or
-- their tasks would start after those that are granted now. The provider is included early only for a distant caller,
-- which cannot come again in time.
local function due_nodes(early)
  tree.write_times()
  local list = {}
  local names = call('ZRANGEBYSCORE', schedule, '-inf', whole(now + spread), 'WITHSCORES', 'LIMIT', '0', whole(DUE))
  for i = 1, #names, 2 do
    local name, is_early = names[i], tonumber(names[i + 1]) > now
    if not (byte(name) == 0 and (is_early and from == 0 or tree.through[sub(name, 2)] == #outs.overdue) or is_early and early[name]) then
      list[#list + 1], early[name] = name, true
    end
  end
  return list
end

-- Serves all that is due. True when more may be left than the call may grant, or has steps for.
local function dispatch()
  local steps, early = 0, {}
  local names = due_nodes(early)
  while #names > 0 and steps <= STEPS do
    steps = steps + #names
    take_up(names)
    local sig = next_root()
    while sig do
      steps = steps + 1
      if steps > STEPS or not serve(leaf_below(sig), sig) then
        return true
      end
      sig = next_root()
    end
    names = due_nodes(early)
  end
  return #names > 0
end

-- Has all blocked nodes checked: limits have changed, or the clock has stepped back. Each node costs about a µs, so
-- a call checks some of them, and the next call continues after those.
local function look_at_all(cursor)
  local page = call('ZSCAN', schedule, cursor, 'COUNT', ALL_AT_ONCE)
  for i = 1, #page[2], 2 do
    if tonumber(page[2][i + 1]) > now then
      tree.times[page[2][i]] = whole(now)
    end
  end
  if page[1] == '0' then
    fields_gone[#fields_gone + 1] = '*'
  else
    fields_set[#fields_set + 1], fields_set[#fields_set + 2] = '*', page[1]
    look_again(now)
  end
end

-- What this call has granted is put in flight before it leaves the queues: if the server refuses a command half-way,
-- every task is still in one of them.
local function save()
  if #outs.overdue > 0 then
    outs.flight[#outs.flight + 1], outs.flight[#outs.flight + 2] = '=' .. sub(id, 1, 10), id
    flights.save()
  end
  queues.save()
  for _, l in pairs(queues.by_scope) do
    if #l.took > 0 then
      call('ZREM', l.key, unpack(l.took))
    end
    if l.took[1] and tree.node(l.leaf).kids == 0 then
      fields_gone[#fields_gone + 1] = 'Q' .. l.scope
    end
  end
  fields_set[#fields_set + 1], fields_set[#fields_set + 2] = '@', whole(now)
  tree.save(fields_set, fields_gone)
end

if stale then
  return { { now, now, 0, 0 }, {}, {}, {}, {} }
elseif there % 2 == 0 and call('EXISTS', meta) == 1 then
  error('the schedule is lost')
elseif there % 4 == 0 and 5 + #KEYS > #ARGV then
  return { { now, 0, parks and 1 or 0, 0 }, {}, {}, {}, {} }
end
for i = n + 8, #KEYS do
  queues.add(KEYS[i], ARGV[i + 4])
end
local was = call('HMGET', meta, '@', '^', '*')
if there % 2 == 1 then
  queues.read()
end
local beat = tonumber(was[1] or nil) or 0
bring_leases_back(beat, tonumber(was[2] or nil))
granted_before()
take_news()
fetch()
local anew = ARGV[7] == '1' or beat > now -- or the clock has stepped back
if anew or was[3] then
  look_at_all(anew and '0' or was[3])
end
if anew then
  for _, field in ipairs(flies and call('ZRANGEBYSCORE', overdue, '(' .. whole(now), '+inf') or {}) do
    call('ZADD', overdue, whole(now), field)
  end
end
local over = there % 2 == 1 or next(tree.times)
over = over and dispatch()
save_stepped()
save()
-- The nodes whose turns are next: of those that are listed, and of those that soon will be.
local near = {}
for sig in pairs(tree.nodes[''] and not tree.nodes[''].gone and tree.node('').states or {}) do
  local key = '\0' .. sig .. '\0'
  for _, member in ipairs(call('ZRANGEBYLEX', heap, '[' .. key, '(' .. '\0' .. sig .. '\1', 'LIMIT', '0', whole(many))) do
    near[#near + 1] = sub(member, #key + 24)
  end
end
local first = call('ZRANGEBYSCORE', schedule, '-inf', whole(now + SOON_LISTED), 'WITHSCORES', 'LIMIT', '0', whole(many))
for i = 1, #first, 2 do
  if byte(first[i]) ~= 0 then
    near[#near + 1] = flights.parts(first[i])
  end
end
first = first[2] or call('ZRANGE', schedule, '0', '0', 'WITHSCORES')[2]
local following = tonumber(first or 0)
if following > 0 and following <= now and not over then
  local later = call('ZRANGEBYSCORE', schedule, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  following = min(again or now + SOON, tonumber(later) or now + SUSPENDED)
elseif following > 0 and again then
  following = min(following, again)
end
if following == 0 or following > now + AGAIN then
  following = next_overdue(following)
end
-- The first call of each minute extends the TTL of the waiting tasks' keys, however soon it follows the one before.
if first and floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  local last = tonumber(call('ZRANGE', schedule, '-1', '-1', 'WITHSCORES')[2])
  keep_waiting(max(0, last - now), schedule, heap, meta)
  for _, l in pairs(queues.by_scope) do
    keep_waiting(0, l.key)
  end
end
if parking.parked or parks and floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  keep_waiting(0, parked)
end
return { { now, following, (parks or parking.parked) and 1 or 0, handed }, granted, missing, near, late }
