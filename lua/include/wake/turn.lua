-- One turn in the round of a rule. Source: docs/turns.md#waking

-- Gives one turn in the round of a rule. True while there may be another.
local function turn(name)
  local seat, aside = front(name), name == NO_RULE and rounds[name]
  if not seat then
    return aside and begin_again(aside) or false
  end
  local l = lines[seat.scope]
  if not l and aside then
    return pass_unknown(aside, seat)
  elseif not l then
    miss(seat.scope)
    look_by(name, now)
    return false
  end
  local before = aside and aside.place
  if aside then
    aside.met = true
    aside.place = aside.passed == 0 and aside.first == seat and seat.seat or aside.place
  end
  local ticket, score = head(l)
  if not ticket then
    if l.parked then
      parking.give_slots_back(l, seat)
    end
    move(seat)
    return true
  elseif parking.stands(ticket) and l.path_text ~= '-' then -- more than one call parks
    look_by(name, now)
    return false
  elseif l.path_text == '-' then
    leave(seat, score)
    return true
  end
  if floor(score / BAND) + LOWEST ~= seat.band then
    move(seat, name, rank_of(score, seat.stamp)) -- another task is first in the line by now
    return true
  end
  local path = path_of(l, ticket)
  local other = earlier(seat, l, path)
  if other then
    move(seat, other, rank_in(l, other, seat))
    return true
  end
  local start, binding, sure = joint_start(path, now)
  if sure and start <= now + lead + spread then
    if l.left then -- those behind it have their turns, and its round is due for whoever may release it
      move(seat, name, seat.rank, true)
      rounds[name].left = true
      return true
    end
    local gives = nil
    if most > 0 or start <= now then
      gives = gives_way(seat, l)
    end
    if gives == nil then
      if aside then
        aside.place = before -- the next look begins with it
      end
      look_by(name, now)
      return false
    elseif gives then
      return true
    end
    release(seat, l, ticket, score, path_of(l, ticket), start)
    return true
  end
  local number, free = waits_for(path, start, binding)
  local by = path[number]
  if not free and by.corrected and by.cost <= by.most and not parking.too_dear(path) then
    step_aside(seat)
    return true
  elseif not free and by.cap ~= 0 and by.p ~= 0 then
    return pass_over(seat, l, ticket, score)
  end
  local early = sure and free and free - lead > now and lead or 0
  local look = not free and now + SUSPENDED or max(now + 1, free - early)
  look_by(by.name, by.corrected and min(look, now + TOLD_LOOK) or look)
  if by.name ~= name then
    move(seat, by.name, rank_in(l, by.name, seat))
    return true
  end
  return false
end

-- Takes those seats from a round whose first task takes nothing of its rule: another was
-- first when they came there.
local function sift(name)
  local seats = call('ZRANGEBYLEX', round, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', whole(HEADS))
  for _, seat in ipairs(seats) do
    local _, rank, scope = parts_of(seat)
    local l = not moved[scope] and lines[scope]
    if not moved[scope] and not l then
      miss(scope)
      look_by(name, now)
    end
    local ticket = l and l.path_text ~= '-' and head(l)
    local path = ticket and path_of(l, ticket) or {}
    if #path > 0 and not has(path, name) then
      local its = seated(name, rank, scope, seat)
      move(its, path[1].name, rank_in(l, path[1].name, its))
      look_by(path[1].name, now)
    end
  end
  local r = rounds[name]
  if r and r.first and moved[r.first.scope] then
    r.first = nil
  end
end
