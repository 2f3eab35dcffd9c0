-- Those who are out: what became of them, and what is set aside for them; and those who have
-- ended in line. Source: docs/turns.md#waking

-- When the first of those who are out will have been out for too long, and whether units
-- that were set aside came free of rules that the caller doesn't know.
local overdue, freed_unknown

local function has(path, name)
  for i = 1, #path do
    if path[i].name == name then
      return true
    end
  end
  return false
end

local heed_news, reserve, take_out
do
  -- Lets the rules of a scope be looked at now.
  local function look_at(scope)
    local l = lines[scope]
    for i in path_numbers(l and l.path_text or '') do
      call('ZADD', due, 'XX', 'LT', whole(now), rule_name(KEYS[tonumber(i)]))
    end
  end

  local function parts_of_out(field)
    local zero = string.find(field, '\0', 1, true)
    return sub(field, 1, zero - 1), sub(field, zero + 1)
  end

  local function score_of_out(value)
    return unpack7(value, 8) - SCORES
  end

  -- Puts a task that was out back in its line, and its scope in a round, whichever:
  -- the first look moves it to where it belongs.
  local function back(l, field, value, score)
    local _, ticket = parts_of_out(field)
    local added = call('ZADD', l.key, 'NX', whole(score), ticket)
    call('HDEL', out_key, field) -- last: it is never in neither
    if added == 1 then
      count(l, ticket, 1)
      if l.path_text ~= '-' and #path_of(l, ticket) < #rules_of(l) then
        mixed = '1'
        note(MIXED, mixed)
      end
    end
    read_at({ 'S' .. l.scope })
    local had = held['S' .. l.scope]
    if had then
      local name, rank = parts_of(had)
      if name == NO_RULE then
        call('ZADD', due, 'LT', whole(now), name)
      end
      local band, its = numbers_of(rank)
      local path = l.path_text ~= '-' and mixed and path_of(l, ticket) or {}
      local elsewhere = #path > 0 and not has(path, name) and call('ZRANGE', l.key, '0', '0')[1] == ticket
      if elsewhere then -- the one that was first waits for what this one takes nothing of
        its, name = shares(l, { name = name, stamp = its }), path[1].name
        its = tag_at(its, name)
        call('ZADD', due, 'LT', whole(now), name)
      end
      if elsewhere or floor(score / BAND) + LOWEST < band then
        local seat = seat_of(name, rank_of(score, its), l.scope)
        comes[seat], comes[had] = true, false
        note('S' .. l.scope, seat)
      end
    elseif l.path_text ~= '-' then
      local its, tag = slots(l), value and unpack7(value, 15) or LATEST
      take_slots(its)
      its[1].tag = min(its[1].tag, max(1, tag))
      local name = rule_name(KEYS[tonumber(string.match(l.path_text, '%d+'))])
      local seat = seat_of(name, rank_of(score, its[1].tag), l.scope)
      l.opened, comes[seat] = true, true
      note('S' .. l.scope, seat)
      write_round()
      write_at()
      call('ZADD', due, whole(now), name)
      keep_waiting(0, l.key, round, at, due)
    end
    look_at(l.scope)
  end

  -- Puts one who was parked back in its line, at its place there, unless it is on its way.
  local function unpark(l, field, ticket, released)
    if l and l.path_text ~= '-' and parking.too_dear(path_of(l, ticket)) then
      return -- it stays: in line, it would be before those who can start
    end
    local score = l and parking.take(l, field, ticket)
    if score and not released then
      call('ZADD', l.key, 'XX', 'LT', whole(score), ticket) -- it may have come since, and stand at the end
      back(l, field, nil, score)
    end
  end

  -- What became of tasks that were released.
  function heed_news()
    for i = 4 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l, field = lines[scope], scope .. '\0' .. ticket
      local value = call('HGET', out_key, field)
      if what == 'f' and parking.parks then
        call('ZREM', parking.key, field)
      elseif what == 'b' then
        unpark(l, field, ticket, value)
      end
      if value and what == 'f' then
        call('HDEL', out_key, field)
        look_at(scope)
      elseif value and what == 'a' and l and sub(value, 22) ~= id then -- else this call has heeded it before
        local eighth = call('ZRANGE', l.key, '8', '8', 'WITHSCORES')[2]
        back(l, field, value, tonumber(eighth) or score_of_out(value))
      elseif value and what == 'r' then
        call('HSET', out_key, field, pack(now) .. sub(value, 8, 21) .. RUNNING)
      end
    end
  end

  -- Takes a scope whose line was emptied out of its round, and gives its slots back, in which
  -- nobody had a turn.
  local function unseat(l, had)
    local name, rank = parts_of(had)
    local _, stamp = numbers_of(rank)
    parking.give_slots_back(l, { name = name, stamp = stamp })
    moved[l.scope] = { was = had }
  end

  -- Seats a scope by who is first in its line by now: in a round that it waits in, and by
  -- its priority.
  local function seat_anew(l, had)
    local ticket, score = unpack(call('ZRANGE', l.key, '0', '0', 'WITHSCORES'))
    local name, rank = parts_of(had)
    call('ZADD', due, 'XX', 'LT', whole(now), name)
    if not ticket then
      return unseat(l, had)
    end
    local band, stamp = numbers_of(rank)
    local path = path_of(l, ticket)
    if #path > 0 and not has(path, name) then
      local its = shares(l, { name = name, stamp = stamp })
      name = path[1].name
      stamp = tag_at(its, name)
      call('ZADD', due, 'LT', whole(now), name)
    elseif floor(score / BAND) + LOWEST == band then
      return
    end
    local seat = seat_of(name, rank_of(score, stamp), l.scope)
    comes[seat], comes[had] = true, false
    note('S' .. l.scope, seat)
  end

  -- Takes those out of their lines who have ended there. What waits under rules that the
  -- caller doesn't know stays as it was.
  function take_out()
    for i = 4 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l = what == 'f' and lines[scope]
      local place = l and call('ZRANK', l.key, ticket)
      if place then
        call('ZREM', l.key, ticket)
        count(l, ticket, -1)
        read_at({ 'S' .. scope })
        local seat = held['S' .. scope]
        if seat and place == 0 and l.path_text ~= '-' then
          seat_anew(l, seat)
        elseif seat and place == 0 then
          call('ZADD', due, 'XX', 'LT', whole(now), (parts_of(seat)))
        end
      end
    end
  end

  -- The numbers of the rules of each level that the caller knows, by the level's path.
  local levels
  local function rules_of_levels()
    levels = {}
    for i = 1, n do
      local level = string.match(rule_name(KEYS[i]), '^[^:]*')
      local its = levels[level] or {}
      its[#its + 1], levels[level] = i, its
    end
  end

  -- The rules above a scope, as far as the caller knows them.
  local function rules_above(scope, ticket)
    if not levels then
      rules_of_levels()
    end
    local some = {}
    for ends in string.gmatch(scope .. '/', '()/') do
      for _, i in ipairs(levels[sub(scope, 1, ends - 1)] or {}) do
        some[#some + 1] = rule(i)
      end
    end
    return counted(some, ticket)
  end

  -- Sets aside what a released task will take: together, where its start is near.
  local function set_aside(path)
    local start = joint_start(path, now)
    for i = 1, #path do
      local algorithm = algorithms[path[i].kind]
      local t = algorithm.fit(path[i], start <= now + lead + spread and start or now)
      if t then
        algorithm.charge(path[i], now, t)
      end
    end
  end

  -- Parks released tasks that stand still: they do not come.
  function parking.park_out()
    local fields = parking.stand and call('HGETALL', out_key) or {}
    for f = 1, #fields, 2 do
      local scope, ticket = parts_of_out(fields[f])
      local whose = sub(fields[f + 1], 22)
      if parking.stands(ticket) and whose ~= RUNNING then -- who runs needs nobody to start it
        if whose ~= STRAIGHT then -- those have no place
          parking.park(scope, { ticket, score_of_out(fields[f + 1]) })
        end
        call('HDEL', out_key, fields[f])
        look_at(scope)
        freed_unknown = freed_unknown or not lines[scope]
      end
    end
  end

  -- Sets aside what released tasks will take. One that has not come in time goes
  -- back to its place; one that runs already is forgotten.
  function reserve()
    local fields = call('HGETALL', out_key)
    for f = 1, #fields, 2 do
      local field, value = fields[f], fields[f + 1]
      local scope, ticket = parts_of_out(field)
      local l, whose, left = lines[scope], sub(value, 22), unpack7(value, 1)
      if left > now or whose == STRAIGHT then -- the clock has stepped back, or nobody has looked before
        left, whose = now, whose == STRAIGHT and RUNNING or whose
        call('HSET', out_key, field, pack(now) .. sub(value, 8, 21) .. whose)
      end
      if not l and whose ~= RUNNING then -- it may have to go back to its line
        miss(scope)
      end
      if left + STALE > now then
        set_aside(l and path_of(l, ticket) or rules_above(scope, ticket))
        overdue = min(overdue or left + STALE, left + STALE)
        parking.out_since(left, ticket)
        out = out + (sub(whose, 1, 10) == sub(id, 1, 10) and 1 or 0)
        if whose == id then
          released[#released + 1], released[#released + 2] = scope, ticket
          most = most - 1
        end
      elseif whose == RUNNING then
        call('HDEL', out_key, field)
        look_at(scope)
        freed_unknown = freed_unknown or not l
      elseif l then
        back(l, field, value, score_of_out(value))
      end
    end
  end
end
