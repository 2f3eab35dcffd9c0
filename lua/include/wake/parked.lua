-- Tasks of groups that stand still, and those too dear for a lowered limit: nobody starts them, so
-- they leave their lines, and come back to the places that they had. The caller names those whose
-- group goes on, and whether they fit is looked at then.
-- Source: docs/turns.md#queues-that-stand-still
--
-- parked  sorted set: scope, 0, ticket by the place in its line. One whose name is a group alone is the
--         last place of the scope's that was parked of it, whatever its priority: places run ahead
--         of the clock, and others of the group go behind it while those are not through.

-- Kept in one table, since locals are few: the key, and whether there is anybody parked; the groups that
-- stand still, by the name that their tickets begin with, up to and with the first slash, and whether
-- there are any; how many tasks of them a call still parks, and how many that are too dear, one by
-- one; and one ticket of each group that is slow to come.
local parking = { key = KEYS[#KEYS], parks = there >= 6, groups = {}, left = 1000, dear = 200, slow = {} }
there = there % 6
do
  -- When one who was released is slow to come, and how many of those who stand still are read at once.
  local SLOW, MANY_HEADS, known = 250000, 256, {}

  for i = 4 + #KEYS, #ARGV, 3 do
    if ARGV[i] == 's' then
      parking.groups[ARGV[i + 2]], parking.stand = true, true
    elseif parking.parks then
      parking.news = parking.news or ARGV[i] == 'b' or ARGV[i] == 'f'
    end
  end

  -- #include turns/group

  function parking.stands(ticket)
    return parking.stand and parking.groups[group_of(ticket)]
  end

  -- Notes the groups of those who were released and are slow to come.
  function parking.out_since(left, ticket)
    local group = left + SLOW <= now and group_of(ticket) or ''
    if group ~= '' and not known[group] then
      known[group] = true
      parking.slow[#parking.slow + 1] = ticket
    end
  end

  -- Parks tasks of a scope: two for each, its ticket and its score.
  function parking.park(scope, list)
    local entries, last = {}, {}
    for i = 1, #list, 2 do
      local ticket, score = list[i], tonumber(list[i + 1])
      local group = group_of(ticket)
      entries[i], entries[i + 1] = whole(score), scope .. '\0' .. ticket
      last[group] = max(last[group] or 0, score % BAND)
    end
    call('ZADD', parking.key, 'LT', unpack(entries))
    for group, place in pairs(last) do
      call('ZADD', parking.key, 'GT', whole(place), scope .. '\0:' .. group)
    end
    parking.parks, parking.parked = true, true
  end

  -- Parks tasks that stand in a line.
  function parking.take_from(l, list)
    local tickets = {}
    for i = 1, #list, 2 do
      tickets[#tickets + 1] = list[i]
      count(l, list[i], -1)
    end
    parking.park(l.scope, list) -- first: a server that refuses a command loses none
    call('ZREM', l.key, unpack(tickets))
    l.parked = true
  end

  -- Parks those who stand still of the first of a line. True where there were any.
  local function park_some(l)
    local list = {}
    for i = 1, #l.got, 2 do
      if #list / 2 < parking.left and parking.stands(l.got[i]) then
        list[#list + 1], list[#list + 2] = l.got[i], l.got[i + 1]
      end
    end
    if #list == 0 then
      return false
    end
    parking.left = parking.left - #list / 2
    parking.take_from(l, list)
    return true
  end

  -- Reads the first tasks of a line that this call has not taken, without those who stand still.
  function parking.read(l)
    local size = HEADS
    repeat
      l.got, l.next, l.size = call('ZRANGE', l.key, whole(l.taken), whole(l.taken + size - 1), 'WITHSCORES'), 1, size
      size = MANY_HEADS
    until not parking.stand or l.path_text == '-' or not park_some(l)
  end

  -- Whether a rule of a path can never admit its task, not even once it has grown.
  function parking.too_dear(path)
    for _, r in ipairs(path) do
      local grows = r.corrected and r.cost <= r.most
      if not grows and r.cap ~= 0 and r.p ~= 0 and not algorithms[r.kind].fit(r, now) then
        return true
      end
    end
    return false
  end

  -- Takes one out who is parked: returns its score, nil where it is not parked. The last place of a
  -- group goes when the first in line is behind it.
  function parking.take(l, field, ticket)
    local score = tonumber(call('ZSCORE', parking.key, field) or nil)
    if score and ticket == ':' .. group_of(ticket) then
      local first = tonumber(call('ZRANGE', l.key, '0', '0', 'WITHSCORES')[2] or nil)
      if not first or first % BAND > score then
        call('ZREM', parking.key, field)
      end
    elseif score and l.path_text ~= '-' then
      call('ZREM', parking.key, field)
      return score
    end
  end

  -- Gives the slots back of a scope whose line was emptied, in which nobody had a turn.
  function parking.give_slots_back(l, seat)
    shares(l, seat)
    for _, s in ipairs(slots(l)) do
      if s.tag then
        put_off(s, -1)
      end
    end
  end
end
