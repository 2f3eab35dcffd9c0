-- How a task joins a queue, for tasks that ask and tasks that are planned. It needs queues.lua, lanes.lua,
-- expect.lua, parked and parks. Source: docs/turns.md#join

-- Reads the state of a queue before a task of a band joins it. It is read once: nothing else changes it meanwhile.
local function look_into(l, band)
  if not l.card then
    local empty = tree.node(l.leaf).kids == 0
    l.card, l.lasts, l.firsts = empty and 0 or call('ZCARD', l.key), {}, {}
    l.bottom = not empty and tonumber(call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2] or nil)
    l.lanes = read_lanes(tree.node(l.leaf).past > 0 and call('HGET', meta, 'Q' .. l.scope) or '')
  end
  if l.lasts[band] == nil then
    local last = l.bottom and l.bottom >= band and l.bottom
    if last and last >= band + BAND then
      last = call('ZREVRANGEBYSCORE', l.key, '(' .. whole(band + BAND), whole(band), 'WITHSCORES', 'LIMIT', '0', '1')[2]
    end
    l.lasts[band] = tonumber(last or nil) or false
  end
end

-- The first task of a band that stands for the virtual time of its lanes, if any.
local function first_of(l, band)
  if l.firsts[band] == nil then
    local first = call('ZRANGEBYSCORE', l.key, whole(band + FRONT), '(' .. whole(band + BAND), 'WITHSCORES', 'LIMIT', '0', '1')[2]
    l.firsts[band] = tonumber(first or nil) or false
  end
  return l.firsts[band] or nil
end

-- The place of a task that asks for the first time: at the end of its queue or where its lane continues, and
-- behind the parked tasks of its group.
local function place_in(l, ticket, band, lane)
  local score = lane ~= '' and next(l.lanes) and place_in_lane(l.lanes, band, lane, first_of(l, band))
    or place_after(l.lasts[band] or nil, band, now)
  local last = parks and call('ZSCORE', parked, l.scope .. '\0:' .. group_of(ticket))
  return last and max(score, min(band + tonumber(last) + 1, band + BAND - 1)) or score
end

-- Notes that a task has joined a queue. Returns how many tasks are before it.
local function took(l, ticket, band, score)
  local place = l.card
  if l.bottom and score <= l.bottom then
    place = call('ZRANK', l.key, ticket)
  end
  l.card, l.bottom = l.card + 1, max(l.bottom or score, score)
  l.lasts[band] = max(l.lasts[band] or score, score)
  if l.firsts[band] ~= nil and score >= band + FRONT then
    l.firsts[band] = min(l.firsts[band] or score, score)
  end
  return place
end

-- Whether a task that comes is behind others: tasks of its own queue, parked tasks of its group, or tasks that wait
-- for units that it takes too, at any level.
local function held_up(l, sig, ticket)
  tree.read(tree.chain(l.leaf))
  if tree.node(l.leaf).kids > 0 or parks and call('ZSCORE', parked, l.scope .. '\0:' .. group_of(ticket)) then
    return true
  end
  for _, id in ipairs(tree.chain(l.leaf)) do
    for its, state in pairs(tree.node(id).states) do
      if its == sig or not state.cost or state.cost == 0 or cost_of(ticket, state.unit) > 0 then
        return true
      end
    end
  end
  return false
end

-- Whether a leaf has the next turn of all that wait, even if it or its parents are blocked.
local function is_next(l, sig)
  local nd = tree.node(l.leaf)
  local state = nd.states[sig]
  while state and nd.up do
    local first = tree.first(tree.node(nd.up), sig)
    if first and first.id ~= nd.id and tree.sooner(first, { band = state.band, tag = nd.tag }) then
      return false
    end
    nd = tree.node(nd.up)
  end
  return state ~= nil
end

-- When the queue of a leaf is checked next, if it or a parent is blocked.
local function blocked_until(l)
  for sig in pairs(tree.node(l.leaf).states) do
    for _, id in ipairs(tree.chain(l.leaf)) do
      local state = tree.node(id).states[sig]
      if state and state.cost then
        return tree.waits_until(id, sig)
      end
    end
  end
end

-- Puts a queue in the tree by a task that has come to its front.
local function come_first(l, ticket, sig, band, by, t, lead)
  tree.stand(l.leaf, sig, band)
  local level = t and t > now and level_of(by.name)
  local state, at = level and tree.node(level).states[sig], level
  while at and at ~= l.leaf do
    local first = tree.first(tree.node(at), sig)
    at = first and first.id
  end
  if at and (not state.cost or state.cost == 0) then
    tree.block(level, sig, max(now + 1, t - lead), by.cost, by.unit)
  else
    tree.hurry(l.leaf, sig, band, ticket)
  end
end

-- Puts a task in its queue, at a score if it has one, and the queue in the tree. `by` is the rule that it waits
-- for and `t` until when, if no task is before it. Returns how many tasks are before it, how many the queue has, and
-- whether it was there before.
local function enter(l, ticket, rank, sig, score, by, t, lead)
  local priority, stride, lane = priority_of(rank)
  local at = score and floor(score / BAND) * BAND or -priority * BAND
  look_into(l, at)
  local its = score or place_in(l, ticket, at, lane)
  if call('ZADD', l.key, 'NX', whole(its), ticket) == 0 then
    return call('ZRANK', l.key, ticket), l.card, true
  end
  local place = took(l, ticket, at, its)
  if not score and (lane ~= '' or next(l.lanes)) then
    take_place(l.lanes, at, lane, stride, its)
    l.laned, tree.node(l.leaf).past = true, 1
  end
  tree.count(l.leaf, ticket, 1)
  if place == 0 then
    come_first(l, ticket, sig, band_of(its), by, t, lead)
  end
  return place, l.card
end

-- Writes the changes of enter to the queues that it has met; the tasks wait us µs at most, as far as is
-- known.
local function save_entered(list, us)
  local set = {}
  for _, l in ipairs(list) do
    if l.card then
      keep_waiting(us, l.key)
    end
    if l.laned then
      set[#set + 1], set[#set + 2] = 'Q' .. l.scope, lanes_text(l.lanes)
    end
  end
  tree.save(set, {})
  keep_waiting(us, schedule, heap, meta)
end
