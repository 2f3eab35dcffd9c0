-- repair: rebuild the tree of a provider from its queues, after a part of it was damaged.
--
-- The queues hold the waiting tasks; everything else follows from them. A value that is no ticket, no grant or of
-- another type is dropped: its task comes back by itself. The first call begins the tree, later calls add more queues.
--
-- KEYS[1]     schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next two.
-- KEYS[2]     heap      sorted set of listed nodes.
-- KEYS[3]     meta      hash of nodes.
-- KEYS[4]     flight    hash of grants in flight. See include/fairshare/flight.lua, here and for the next.
-- KEYS[5]     overdue   sorted set of the same.
-- KEYS[6]     parked    sorted set of tasks out of their queues for now. See include/fairshare/parked.lua.
-- KEYS[7..]   queue     the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     first   1 to begin, 0 to continue.
-- ARGV[3]     rules   integer n.
-- ARGV[4..]   rule    one for each rule. See include/core/rules.lua.
-- ARGV[n+4..] path    one for each of s scopes: the numbers of its rules, as dispatch has them.
--
-- Returns  {dropped}, how many values were dropped
--
-- Writes   KEYS[1..s+6].
-- Source   docs/turns.md#what-is-damaged

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may pass a number instead; production passes "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes: one by plain arithmetic, where "%" is an instruction and
-- math.floor a call, and several at once by Redis's struct library. '>BI7' is a byte and a number. On a
-- server without that library, such as miniredis, they are packed here.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

local function pack(n)
  local low = n % 16777216
  local high = (n - low) / 16777216
  local g, d = low % 256, high % 256
  low, high = (low - g) / 256, (high - d) / 256
  local f, c = low % 256, high % 256
  high = (high - c) / 256
  local b = high % 256
  return char((high - b) / 256, b, c, d, (low - f) / 256, f, g)
end

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local i, numbers = 0, { ... }
    return (string.gsub(sub(format, 2), '[BI]7?', function(kind)
      i = i + 1
      return kind == 'B' and char(numbers[i]) or pack(numbers[i])
    end))
  end,
  unpack = function(format, text)
    local out, at = {}, 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      for i = at, last do
        n = n * 256 + byte(text, i)
      end
      out[#out + 1], at = n, last + 1
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
-- A rate rule's state is one string whose first byte is its layout, so that a rule
-- whose algorithm has changed still finds the units that were spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
--   O till per total head last tail count ahead log, as F: fixed window that opens on use
-- All are numbers of seven bytes, except the log, and `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
-- when the state was written. A start that is further ahead now was written by a clock that
-- has since stepped back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, OPENED, HELD, CALENDAR = 84, 83, 70, 79, 67, 75

-- The first byte of the record of an attempt that was given back: no start begins with it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So the TTL is set to end LONGER after the state means
-- nothing any more, and kept while it ends at least LEAST and at most MOST after that.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

local call = redis.call
local schedule, heap, meta, flight, overdue, parked = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local provider, n, dropped = sub(schedule, 1, -10), tonumber(ARGV[3]), 0

-- Conversion of numbers to and from Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Whole numbers are converted to text by these formats alone, which keep every digit. %d takes a third of the time of
-- %.0f, but loses digits if the server's long has 32 bits.
local WHOLE, WHOLES = '%d', '%d %d %d %d %d'
if string.format(WHOLE, 4503599627370497) ~= '4503599627370497' then
  WHOLE, WHOLES = '%.0f', '%.0f %.0f %.0f %.0f %.0f'
end
local function whole(n)
  return string.format(WHOLE, n)
end

-- The TTL, in ms, of a key that means nothing any more us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- What a waiting task takes, and its place in the queue of its scope. It needs call and the numbers.
-- Source: docs/turns.md#queues
--
-- queue  sorted set of each scope: the tickets of its tasks, by priority and order. A ticket is
--        "cost:name", without the cost when it is 1, or by unit "requests=1,tokens=1500:name".
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local REQUESTS = 'requests'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- How much longer than their expected wait the keys of waiting tasks are kept: they have a meaning until
-- asynq brings the task back by itself.
local STAY = 86400000000

-- The first place of an empty band, or the place after its last. Places follow the clock, in ms: a task that
-- comes back to its place is before the tasks that came since.
local function place_after(last, band, now)
  local first = band + MIDDLE / 2 + floor(now / 1000) % MIDDLE
  return last and min(max(last + 1, first), band + BAND - 1) or first
end

-- The number that sorts bands: 0 for the highest priority.
local function band_of(score)
  local band = floor(score / BAND) + LOWEST
  if not (band >= 0 and band < 2 * LOWEST) then
    error('a score is damaged')
  end
  return band
end

local known_costs = {}

-- The cost of a task: a number, under every rule, or a table by unit. Each ticket is parsed once.
local function costs_of(ticket)
  local costs = known_costs[ticket]
  if not costs then
    local text = string.match(ticket, '^(%d*):')
    costs = text and (tonumber(text) or 1) or {}
    if not text then
      for unit, units in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
        costs[unit] = tonumber(units)
      end
    end
    known_costs[ticket] = costs
  end
  return costs
end

-- How many units of a kind a task takes, '' for places.
local function cost_of(ticket, unit)
  local costs = costs_of(ticket)
  if type(costs) == 'number' then
    return costs
  end
  return costs[unit] or (unit == '' or unit == REQUESTS) and 1 or 0
end

-- The unit that a rule counts, '' for places and for a rule that counts each task: it follows the
-- numbers of the rule's text.
local function unit_of(rule)
  local kind = byte(rule)
  local unit = kind == HELD and '*' or sub(rule, kind == CALENDAR and 65 or 37)
  if unit == '*' then
    return ''
  end
  return unit == '' and REQUESTS or unit
end

-- The signature of tasks that take only these units, and so not all rules of their path.
local function signature(units)
  local names = {}
  for unit in pairs(units) do
    names[#names + 1] = unit
  end
  table.sort(names)
  return table.concat(names, ',') .. ','
end

-- The rules of a path that a task takes units of, each with that cost; and the task's
-- signature, '' if those are all rules.
local function counted(path, ticket)
  local costs = costs_of(ticket)
  if type(costs) == 'number' and costs > 0 then
    for i = 1, #path do
      path[i].cost = costs
    end
    return path, ''
  end
  local some, units = {}, {}
  for _, r in ipairs(path) do
    r.cost = cost_of(ticket, r.unit)
    if r.cost > 0 then
      some[#some + 1], units[r.unit] = r, true
    end
  end
  return some, #some == #path and '' or signature(units)
end

-- The rule of a path that a task waits for, and until when, nil if unknown: a rule with no known moment, or the
-- rule that alone would admit the task last. Units that come free of other rules cannot start the task sooner.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return path[i], nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return path[last or max(1, binding)], at or start
end

-- The group of a task: the beginning of its name, up to and including the first slash; '' if it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end

-- The level of a rule, by its name: the path of its scope.
local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The numbers of a path's rules, and the weight of the scope under each rule that has
-- one: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

-- Runs a command on any number of members of a key, in several calls.
local function in_parts(command, key, list)
  for i = 1, #list, 500 do
    call(command, key, unpack(list, i, min(#list, i + 499)))
  end
end

-- The values of any number of fields of a hash, false for none.
local function values_of(key, fields)
  local values = #fields > 0 and call('HMGET', key, unpack(fields, 1, min(#fields, 500))) or {}
  for i = 501, #fields, 500 do
    for _, value in ipairs(call('HMGET', key, unpack(fields, i, min(#fields, i + 499)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Keeps keys at least us µs more, and after that until asynq brings the tasks back: it does so half as
-- late again as expected.
local function keep_waiting(us, ...)
  us = us + us / 2
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
    end
  end
end
-- The order of waiting scopes. It needs call, now, heap, schedule, meta, pack and the numbers.
-- Source: docs/turns.md#the-tree
--
-- A node is a name of a path: '' the provider, '/a', '/a/x', and, as a leaf, the queue of a scope:
-- '/a/' for the queue of '/a'. Each node has a tag, a time in the virtual clock of its parent, and
-- siblings take turns by their tags: start-time fair queueing at each level. A node with
-- waiting tasks is either listed or blocked, for each signature of the tasks:
--
-- heap      sorted set, all of score 0: the listed nodes, as parent, 0, signature, 0, rank, node. A rank is
--           the band of the first task and the tag, in 7 and 16 digits. With '!' as signature: empty nodes
--           whose tag is ahead of their parent's time. Such a node is forgotten once that time has passed its tag.
-- schedule  sorted set: the blocked nodes, as node, 0, signature, by the µs at which their rules admit the
--           first task below. The provider is never listed: while a node can be checked, the provider is here.
-- meta      hash. n<node>: its tag, its time, how many nodes below have tasks, how many '!' there are,
--           and the requests that wait below; after these, as "tokens=1500", the units other than requests that
--           tasks below with a cost by unit take, and under '*' their requests: a task whose cost is a number takes
--           that of each unit. Then a line for each signature: the signature, the band, and, if it is blocked, the
--           cost that blocks and its unit, and after "=" the signature of the tasks that units coming free are saved
--           for. A leaf whose queue has lanes has 1 for '!'. Q<scope> the lanes of a queue: lanes.lua.
--           @ the µs of the last dispatch. * the cursor of a scan of all of schedule, from ZSCAN.
--
-- Changes are kept until tree.save: `comes` of the heap and `times` of the schedule, each with its score, or false to
-- remove. `through` has by signature how many tasks had been granted when a dispatch found no more to grant.
local tree = { records = {}, nodes = {}, comes = {}, times = {}, through = {}, at_once = 16 }
do
  local format = string.format
  local SLOT, LATEST, MOST_OF_A_TURN, SWEPT = 100000, 9007199254740991, 10000, 50
  local PAST, NONE = '!', {}
  local RANK = WHOLE == '%d' and '%07d%016d' or '%07.0f%016.0f'

  local chains, ups = {}, {}

  -- The parent of a node, false for the provider.
  local function up_of(id)
    local up = ups[id]
    if up == nil then
      up = string.match(id, '^(.*)/') or false
      ups[id] = up
    end
    return up
  end

  -- The nodes from a leaf up to the provider.
  function tree.chain(leaf)
    local ids, id = chains[leaf], leaf
    if not ids then
      ids = {}
      while id do
        ids[#ids + 1] = id
        id = up_of(id)
      end
      chains[leaf] = ids
    end
    return ids
  end

  -- Parses a node from its record: `up` is its parent, false for the provider.
  local function read_record(id, v)
    local nd = { id = id, up = up_of(id), tag = 0, time = 0, kids = 0, past = 0, units = 0, states = {}, stored = v and true or false }
    if not v then
      return nd
    end
    local tag, time, kids, past, units, sums, all = string.match(v, '^(%d+) (%d+) (%d+) (%d+) (%d+)([^\n]*)(.*)')
    nd.tag, nd.time, nd.kids = tonumber(tag), tonumber(time), tonumber(kids)
    nd.past, nd.units = tonumber(past), tonumber(units)
    if sums ~= '' then
      nd.sums = {}
      for unit, sum in string.gmatch(sums, ' ([^=]+)=(%d+)') do
        nd.sums[unit] = tonumber(sum)
      end
    end
    local one, its = string.match(all, '^\n([^ \n]*) (%d+)$')
    if one then -- most nodes have one signature
      nd.states[one] = { band = tonumber(its) }
      return nd
    end
    for sig, band, cost, unit, is, behind in string.gmatch(v, '\n([^ ]*) (%d+) ?(%d*) ?([^=\n]*)(=?)([^\n]*)') do
      nd.states[sig] = { band = tonumber(band), cost = tonumber(cost), unit = cost ~= '' and unit or nil, behind = is == '=' and behind or nil }
    end
    return nd
  end

  local function record(nd)
    local text = format(WHOLES, nd.tag, nd.time, nd.kids, nd.past, nd.units)
    if nd.sums then
      for unit, sum in pairs(nd.sums) do
        text = sum > 0 and text .. ' ' .. unit .. '=' .. whole(sum) or text
      end
    end
    for sig, state in pairs(nd.states) do
      text = text .. '\n' .. sig .. ' ' .. whole(state.band)
      if state.cost then
        local behind = state.behind and '=' .. sub(state.behind, 1) or ''
        text = text .. ' ' .. whole(state.cost) .. ' ' .. state.unit .. behind
      end
    end
    return text
  end

  -- Reads nodes that are not known yet. They are parsed when they are used.
  function tree.read(ids)
    local unknown, fields = {}, {}
    for _, id in ipairs(ids) do
      if not tree.nodes[id] and tree.records[id] == nil then
        tree.records[id] = false
        unknown[#unknown + 1], fields[#fields + 1] = id, 'n' .. id
      end
    end
    local values = values_of(meta, fields)
    for i = 1, #values do
      tree.records[unknown[i]] = values[i]
    end
  end

  local function node(id)
    local nd = tree.nodes[id]
    if not nd then
      tree.read({ id })
      nd = read_record(id, tree.records[id])
      tree.nodes[id] = nd
    end
    return nd
  end
  tree.node = node

  -- Returns a node and marks it to be written.
  local function changed(id)
    local nd = node(id)
    nd.changed, nd.gone = true, nil
    return nd
  end

  -- Writes the changes of a key: first the additions, since an empty key has no TTL. No change is left after it.
  local function write_changes(key, changes)
    local come, go = {}, {}
    for member, score in pairs(changes) do
      if score then
        come[#come + 1], come[#come + 2] = score, member
      else
        go[#go + 1] = member
      end
    end
    in_parts('ZADD', key, come)
    in_parts('ZREM', key, go)
    return {}
  end

  -- Whether the first of two siblings has its turn before the second.
  local function sooner(a, b)
    return a.band < b.band or a.band == b.band and a.tag < b.tag
  end
  tree.sooner = sooner

  -- The children of a node for a signature: the first of them, once they are read.
  local function children(nd, sig)
    nd.sets = nd.sets or {}
    local set = nd.sets[sig] or { key = nd.id .. '\0' .. sig .. '\0', hidden = {}, many = 0 }
    nd.sets[sig] = set
    return set
  end

  -- The members of the heap that begin with the key of a set, at most `most`, in their order.
  function tree.members(key, most)
    tree.comes = write_changes(heap, tree.comes)
    return call('ZRANGEBYLEX', heap, '[' .. key, '(' .. sub(key, 1, -2) .. '\1', 'LIMIT', '0', whole(most))
  end

  local function read_children(set)
    local most = tree.at_once + set.many
    local got, list, from = tree.members(set.key, most), {}, #set.key
    for _, member in ipairs(got) do
      local id = sub(member, from + 24)
      if not set.hidden[id] then
        list[#list + 1] = { id = id, band = tonumber(sub(member, from + 1, from + 7)),
          tag = tonumber(sub(member, from + 8, from + 23)), member = member }
      end
    end
    set.list, set.whole = list, #got < most
  end

  -- Sets the children of a node without reading them, if its own queue is the only child.
  local function know_children(set, nd, sig)
    local leaf = sub(nd.id, -1) ~= '/' and sig ~= PAST and nd.kids == 1 and node(nd.id .. '/')
    if leaf and leaf.kids == 1 then
      local state = leaf.states[sig]
      set.list, set.whole = { state and { band = state.band, tag = leaf.tag, id = leaf.id } or nil }, true
    end
  end

  -- The first child that this call has not hidden, if any.
  local function first(nd, sig)
    local set = children(nd, sig)
    if not set.list and set.many == 0 then
      know_children(set, nd, sig)
    end
    while not set.list or #set.list == 0 and not set.whole do
      read_children(set)
    end
    return set.list[1]
  end
  tree.first = first

  -- The member of the heap for a node, from a band and its tag.
  local function member_of(set, nd, band)
    return set.key .. format(RANK, band, nd.tag) .. nd.id
  end

  local function put(nd, sig, band)
    local set = children(node(nd.up), sig)
    local list, e = set.list, { id = nd.id, band = band, tag = nd.tag, member = member_of(set, nd, band) }
    tree.comes[e.member] = '0'
    if nd.up == '' then
      tree.through[sig] = nil
    end
    if list and not set.hidden[nd.id] and (set.whole or #list > 0 and sooner(e, list[#list])) then
      local i = #list
      while i > 0 and sooner(e, list[i]) do
        i = i - 1
      end
      table.insert(list, i + 1, e)
    end
  end

  -- Takes a node out of the siblings that were read, and returns it if it was there.
  local function take_out(set, id)
    for i, e in ipairs(set.list or NONE) do
      if e.id == id then
        return table.remove(set.list, i)
      end
    end
  end

  local function drop(nd, sig, band)
    local set = children(node(nd.up), sig)
    local e = take_out(set, nd.id)
    tree.comes[e and e.member or member_of(set, nd, band)] = false
  end

  -- Makes a node wait until a moment; false ends the wait.
  local function wait_until(nd, sig, t)
    tree.times[nd.id .. '\0' .. sig] = t and whole(t)
  end

  -- Until when a node waits, nil if it does not.
  function tree.waits_until(id, sig)
    local key = id .. '\0' .. sig
    return tonumber(tree.times[key] or call('ZSCORE', schedule, key) or nil)
  end

  -- Has the nodes checked now that wait behind a signature.
  local function pass_on(nd, sig)
    for its, state in pairs(nd.states) do
      if its ~= sig and state.cost and state.behind == sig then
        wait_until(nd, its, now)
      end
    end
  end

  -- Lists a hidden node again: it has a child that is not hidden.
  local function show(nd, sig)
    local set = children(node(nd.up), sig)
    if set.hidden[nd.id] then
      set.hidden[nd.id], set.many, set.list, set.whole = nil, set.many - 1, nil, nil
      if nd.up == '' then
        tree.through[sig] = nil
      else
        show(node(nd.up), sig)
      end
    end
  end

  -- Makes a node listed or not, according to its children.
  local function rise(id, sig)
    local nd = node(id)
    local child, state, set = first(nd, sig), nd.states[sig], nd.sets[sig]
    if not child and set.many > 0 then -- all others are hidden
      return nd.up and state and not state.cost and tree.hide(id, sig)
    elseif child and state and (state.cost or state.band == child.band or set.many > 0) then
      return nd.up and not state.cost and show(nd, sig)
    end
    if state and state.cost then
      wait_until(nd, sig, false)
      pass_on(nd, sig)
    elseif state then
      drop(nd, sig, state.band)
    end
    changed(id).states[sig] = child and { band = child.band } or nil
    if child and not nd.up then
      nd.states[sig].cost, nd.states[sig].unit = 0, ''
      wait_until(nd, sig, now)
    elseif child then
      put(nd, sig, child.band)
    end
    if nd.up then
      rise(nd.up, sig)
    end
  end

  -- Blocks a node until t, when its rule admits the cost of a unit; or, behind another signature, as long as that
  -- signature waits for the same.
  function tree.block(id, sig, t, cost, unit, behind)
    local nd = changed(id)
    local state = nd.states[sig]
    if nd.up and not state.cost then
      drop(nd, sig, state.band)
    end
    state.cost, state.unit, state.behind = cost, unit, behind
    wait_until(nd, sig, t)
    if nd.up then
      rise(nd.up, sig)
    end
  end

  -- Lists a blocked node. The provider is to be checked.
  function tree.unblock(id, sig)
    local nd = changed(id)
    local state = nd.states[sig]
    local child = first(nd, sig)
    if child and not state then
      error('a node is lost')
    elseif not child and state and nd.sets[sig].many > 0 then -- all below are hidden
      if nd.up and state.cost then
        wait_until(nd, sig, false)
        nd.states[sig] = { band = state.band }
        put(nd, sig, state.band)
        rise(nd.up, sig)
        tree.hide(id, sig)
      end
      return
    end
    pass_on(nd, sig)
    if not state or state.cost then
      wait_until(nd, sig, false)
      nd.states[sig] = nil
      rise(id, sig)
    end
  end

  -- Has the nodes of a level checked now: units of its rules have come free.
  function tree.look_at(id)
    local nd = node(id)
    for sig, state in pairs(nd.states) do
      if state.cost and tree.times[id .. '\0' .. sig] ~= false then
        wait_until(nd, sig, now)
      end
    end
  end

  -- Has all nodes above a leaf checked now: its first task has gone, and the next one may need less.
  function tree.look_above(leaf)
    for _, id in ipairs(tree.chain(leaf)) do
      tree.look_at(id)
    end
  end

  -- Hides a listed node until the end of this call, and its parents if all nodes below them are hidden.
  function tree.hide(id, sig)
    local up = node(node(id).up)
    local set = children(up, sig)
    if first(up, sig) and take_out(set, id) then
      set.hidden[id], set.many = true, set.many + 1
    end
    if up.up and not first(up, sig) then
      tree.hide(up.id, sig)
    end
  end

  -- Has the blocked parents of a leaf checked now, if its first task may start sooner than the tasks that they
  -- are blocked for.
  function tree.hurry(leaf, sig, band, ticket)
    for _, id in ipairs(tree.chain(leaf)) do
      local state = node(id).states[sig]
      if state and state.cost then
        if band < state.band or cost_of(ticket, state.unit) < state.cost then
          wait_until(node(id), sig, now)
        end
        return
      end
    end
  end

  -- Counts a task that joins a queue (1) or leaves it (-1), at each level.
  function tree.count(leaf, ticket, sign)
    local costs = costs_of(ticket)
    local by_unit = type(costs) == 'table'
    local cost = by_unit and cost_of(ticket, REQUESTS) or costs
    for _, id in ipairs(tree.chain(leaf)) do
      local nd = changed(id)
      nd.units = max(0, nd.units + sign * cost)
      if by_unit then
        nd.sums = nd.sums or {}
        for unit, units in pairs(costs) do
          nd.sums[unit] = unit ~= REQUESTS and max(0, (nd.sums[unit] or 0) + sign * units) or nil
        end
        nd.sums['*'] = max(0, (nd.sums['*'] or 0) + sign * cost)
      end
    end
  end

  -- How many units of a kind wait below a node.
  function tree.units(id, unit)
    local nd = node(id)
    local sums = unit ~= '' and unit ~= REQUESTS and nd.sums or NONE
    return max(0, nd.units - (sums['*'] or 0) + (sums[unit] or 0))
  end

  -- Opens a leaf that has its first task, and its parents. A node saves up no turns: its tag is at least its
  -- parent's time.
  local function open(nd)
    nd.kids = 1
    while nd.up do
      local p = changed(nd.up)
      if nd.stored then
        drop(nd, PAST, 0)
        p.past = max(0, p.past - 1)
      end
      nd.tag, p.kids = max(nd.tag, p.time), p.kids + 1
      if p.kids > 1 then
        return
      end
      nd = p
    end
  end

  -- Forgets an empty node and all below it.
  local function forget(nd)
    nd.gone, nd.stored = true, false
    while nd.past > 0 do
      local e = first(nd, PAST)
      if not e then
        return
      end
      drop(node(e.id), PAST, 0)
      nd.past = nd.past - 1
      forget(node(e.id))
    end
  end

  -- Closes a leaf that has no more tasks, and the parents that have none. By how much they are ahead of others
  -- is kept.
  local function close(nd)
    while nd.up do
      local p = changed(nd.up)
      nd.kids, nd.units, nd.sums, nd.past = 0, 0, nil, sub(nd.id, -1) == '/' and 0 or nd.past
      p.kids = max(0, p.kids - 1)
      if nd.tag > p.time then
        put(nd, PAST, 0)
        p.past, nd.stored = p.past + 1, true
      else
        forget(nd)
      end
      if p.kids > 0 then
        return
      end
      nd = p
    end
  end

  -- Puts a queue in the tree by its first task: the task's signature and band; nil for an empty
  -- queue.
  function tree.stand(leaf, sig, band)
    local nd = node(leaf)
    if sig and nd.kids == 0 then
      open(changed(leaf))
    end
    for its, state in pairs(nd.states) do
      if its ~= sig or state.band ~= band then
        changed(leaf).states[its] = nil
        drop(nd, its, state.band)
        if its ~= sig then
          rise(nd.up, its)
        end
      end
    end
    if sig and not nd.states[sig] then
      changed(leaf).states[sig] = { band = band }
      put(nd, sig, band)
      rise(nd.up, sig)
    elseif not sig and nd.kids > 0 then
      close(changed(leaf))
    end
  end

  -- Advances the tags of a path whose leaf has had a turn: units and weights by level.
  function tree.turn(leaf, units, weights)
    local nd = changed(leaf)
    while nd.up do
      local p = changed(nd.up)
      p.time = max(p.time, nd.tag)
      local took = max(1, min(units[p.id] or 1, MOST_OF_A_TURN))
      local tag = min(LATEST, p.time + max(1, floor(SLOT * took / (weights[p.id] or 1) + 0.5)))
      for sig, state in pairs(nd.states) do
        if not state.cost then
          drop(nd, sig, state.band)
        end
      end
      nd.tag, p.passed = tag, p.past > 0
      for sig, state in pairs(nd.states) do
        if not state.cost then
          put(nd, sig, state.band)
        end
      end
      nd = p
    end
  end

  -- Removes empty nodes whose tags the time has passed: some in each call, however many there are.
  local function sweep()
    local passed, left = {}, SWEPT
    for _, nd in pairs(tree.nodes) do
      passed[#passed + 1] = nd.passed and not nd.gone and nd or nil
    end
    for _, nd in ipairs(passed) do
      local e = first(nd, PAST)
      while e and e.tag <= nd.time and left > 0 do
        left = left - 1
        drop(node(e.id), PAST, 0)
        nd.past = max(0, nd.past - 1)
        forget(node(e.id))
        e = first(nd, PAST)
      end
    end
  end

  function tree.write_times()
    tree.times = write_changes(schedule, tree.times)
  end

  -- Writes the tree. `set` has more fields and values of meta, by turns, and `gone` fields to remove.
  -- When no task waits, the keys of the tree are deleted.
  function tree.save(set, gone)
    if node('').kids == 0 then
      if node('').changed then
        call('UNLINK', heap, schedule, meta) -- there may be many nodes
      end
      return
    end
    sweep()
    for id, nd in pairs(tree.nodes) do
      if nd.gone then
        gone[#gone + 1] = 'n' .. id
      elseif nd.changed then
        set[#set + 1], set[#set + 2] = 'n' .. id, record(nd)
      end
    end
    tree.comes = write_changes(heap, tree.comes)
    tree.write_times()
    in_parts('HSET', meta, set)
    in_parts('HDEL', meta, gone)
  end
end

-- How many tasks of a queue are read. Tasks behind them are assumed to cost one unit each.
local LOOKED = 1000

-- Whether a key is of a type, by a command that fails at any other type. A key of another type is dropped.
local function is_sound(key, command, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then
      return error(reply.err)
    end
    call('DEL', key)
    dropped = dropped + 1
    return false
  end
  return true
end

local function is_score(score)
  local band = floor(score / BAND) + LOWEST
  return score == floor(score) and band >= 0 and band < 2 * LOWEST
end

local function begin()
  call('DEL', schedule, heap, meta, overdue)
  local all = is_sound(flight, 'HGET', '') and call('HGETALL', flight) or {}
  for f = 1, #all, 2 do
    local at = string.match(all[f + 1], '^%-?%d+ %-?%d+ (%d+) %S+')
    if at and string.find(all[f], '%z[^:]*:') then
      call('ZADD', overdue, at, all[f])
    elseif byte(all[f]) ~= 61 then
      call('HDEL', flight, all[f])
      dropped = dropped + 1
    end
  end
  if #all > 0 then
    keep_waiting(0, overdue)
  end
  local list = is_sound(parked, 'ZCARD') and call('ZRANGE', parked, '0', '9999') or {}
  for _, field in ipairs(list) do
    if not string.find(field, '^%Z*%z[^:]*:') then
      call('ZREM', parked, field)
      dropped = dropped + 1
    end
  end
end

-- The rules of a path, as far as signatures need them.
local function units_of(text)
  local path = {}
  for i in path_numbers(text) do
    path[#path + 1] = { unit = unit_of(ARGV[3 + tonumber(i)]) }
  end
  return path
end

local function stand(key, text)
  if not is_sound(key, 'ZCARD') then
    return
  end
  local leaf, list = sub(key, #provider + 1, -7) .. '/', call('ZRANGE', key, '0', whole(LOOKED - 1), 'WITHSCORES')
  local first, score
  for i = 1, #list, 2 do
    local its = tonumber(list[i + 1])
    if string.find(list[i], '^%d*:') and is_score(its) or string.find(list[i], '^[^:]+=%d+:') and is_score(its) then
      first, score = first or list[i], score or its
      tree.count(leaf, list[i], 1)
    else
      call('ZREM', key, list[i])
      dropped = dropped + 1
    end
  end
  if not first then
    return
  end
  for _, id in ipairs(tree.chain(leaf)) do
    local nd = tree.node(id)
    nd.units = nd.units + max(0, call('ZCARD', key) - LOOKED)
  end
  local _, sig = counted(units_of(text), first)
  tree.stand(leaf, sig, band_of(score))
  keep_waiting(0, key)
end

if ARGV[2] == '1' then
  begin()
end
for j = 1, #KEYS - 6 do
  stand(KEYS[6 + j], ARGV[3 + n + j])
end
if next(tree.nodes) then
  tree.save({}, {})
  keep_waiting(0, schedule, heap, meta)
end
return { dropped }
