-- Tasks of groups that stand still, and tasks that cost more than a lowered limit admits: they cannot start,
-- so they leave their queues, and get their places back when the caller reports
-- that they may continue. Source: docs/turns.md#queues-that-stand-still
--
-- parked  sorted set: scope, 0, ticket by its score in the queue. A member whose name is a group alone is the
--         last place of the group in the scope, whatever its priority: other tasks of the group go behind it.
--
-- `left` is how many tasks of groups a call may still park, `dear` how many that cost too much.
local parking = { groups = {}, left = 1000, dear = 200 }
do
  local FEW_HEADS, HEADS, MANY_HEADS = 2, 16, 256

  -- Notes a group that stands still: the beginning of its tickets' names.
  function parking.add(group)
    parking.groups[group], parking.stand = true, true
  end

  local function stands(ticket)
    return parking.stand and parking.groups[group_of(ticket)]
  end
  parking.stands = stands

  -- Parks tasks of a queue: two for each, its ticket and its score.
  function parking.park(l, list)
    local entries, tickets, last = {}, {}, {}
    for i = 1, #list, 2 do
      local ticket, score = list[i], tonumber(list[i + 1])
      local group = group_of(ticket)
      entries[i], entries[i + 1], tickets[#tickets + 1] = whole(score), l.scope .. '\0' .. ticket, ticket
      last[group] = max(last[group] or 0, score % BAND)
      tree.count(l.leaf, ticket, -1)
    end
    call('ZADD', parked, 'LT', unpack(entries)) -- first: if the server refuses a command, no task is lost
    for group, place in pairs(last) do
      call('ZADD', parked, 'GT', whole(place), l.scope .. '\0:' .. group)
    end
    call('ZREM', l.key, unpack(tickets))
    parking.parked = true
  end

  local function park_some(l)
    local list = {}
    for i = 1, #l.got, 2 do
      if #list / 2 < parking.left and stands(l.got[i]) then
        list[#list + 1], list[#list + 2] = l.got[i], l.got[i + 1]
      end
    end
    if #list == 0 then
      return false
    end
    parking.left = parking.left - #list / 2
    parking.park(l, list)
    return true
  end

  -- Reads the first tasks of a queue that this call has not granted, without those that stand still.
  function parking.read(l)
    local size = #l.took == 0 and FEW_HEADS or HEADS
    repeat
      l.got, l.next, l.size = call('ZRANGE', l.key, whole(#l.took), whole(#l.took + size - 1), 'WITHSCORES'), 1, size
      size = MANY_HEADS
    until not parking.stand or not park_some(l)
  end

  -- Whether a rule of a path can never admit its task under the current limits. Limits that an API has cut do not
  -- count: they grow again.
  function parking.too_dear(path)
    for _, r in ipairs(path) do
      if r.cap ~= 0 and r.p ~= 0 and not r.corrected and not algorithms[r.kind].fit(r, now) then
        return true
      end
    end
    return false
  end

  -- Takes a task out of parked: returns its score, nil if it is not parked. The last place of a
  -- group is removed once the first task in the queue is behind it.
  function parking.take(l, field, ticket)
    local score = tonumber(call('ZSCORE', parked, field) or nil)
    if score and ticket == ':' .. group_of(ticket) then
      local first = tonumber(call('ZRANGE', l.key, '0', '0', 'WITHSCORES')[2] or nil)
      if not first or first % BAND > score then
        call('ZREM', parked, field)
      end
      return nil
    elseif score then
      call('ZREM', parked, field)
    end
    return score
  end
end
