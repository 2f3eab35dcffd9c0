-- Seats in their rounds, as this look has moved them: who is first, whose turn it is rather,
-- and what a release, or one that can't be, does to a scope's place. Source:
-- docs/turns.md#lines-rounds-and-seats

-- A seat. Ranks are compared as numbers: the order of texts is the locale's.
local function seated(name, rank, scope, seat)
  local band, place = numbers_of(rank)
  return { name = name, rank = rank, scope = scope, seat = seat, band = band, stamp = place }
end

local function sooner(a, b)
  if a.band ~= b.band then
    return a.band < b.band
  elseif a.stamp ~= b.stamp then
    return a.stamp < b.stamp
  end
  return a.scope < b.scope
end

-- The first seat of a rule's round. Seats that moved in this call are kept here
-- until it ends.
local function front(name)
  local r = rounds[name]
  if not r then
    r = { here = {} }
    rounds[name] = r
  end
  while r.first == nil do
    local seat = seat_after(name, r.after)
    r.first, r.after = false, seat
    if seat then
      local _, rank, scope = parts_of(seat)
      r.first = not moved[scope] and seated(name, rank, scope, seat) or nil
    end
  end
  local best = r.first or nil
  for _, s in pairs(r.here) do
    if not best or sooner(s, best) then
      best = s
    end
  end
  return best
end

local function take_from_round(seat)
  local r = rounds[seat.name]
  if r.first == seat then
    r.first = nil
  else
    r.here[seat.scope] = nil
  end
end

-- Moves a seat: to the round of a rule, or, without one, away. One that this call
-- has nothing more to do with is not seen there.
local function move(seat, name, rank, unseen)
  take_from_round(seat)
  local was = moved[seat.scope]
  local new = name and seated(name, rank, seat.scope, seat_of(name, rank, seat.scope)) or {}
  new.was = was and was.was or seat.seat
  moved[seat.scope] = new
  if name and not unseen then
    rounds[name] = rounds[name] or { here = {} }
    rounds[name].here[seat.scope] = new
  end
  return new
end

-- The first task of a line that this call has not taken: ticket and score.
local function head(l)
  if not l.got or l.next > #l.got and #l.got == 2 * l.size then
    parking.read(l)
  end
  return l.got[l.next], tonumber(l.got[l.next + 1])
end

-- Takes the seats of lines whose tasks were all parked by this call: their rounds may not have come
-- to them, as one that is looked at beside another is parked too.
function parking.close_emptied()
  for scope, l in pairs(lines) do
    local new = moved[scope]
    if l.parked and not (new and not new.name) and not head(l) then
      read_at({ 'S' .. scope })
      local seat = new and new.seat or held['S' .. scope]
      if seat then
        local name, rank = parts_of(seat)
        local _, stamp = numbers_of(rank)
        parking.give_slots_back(l, { name = name, stamp = stamp })
        moved[scope] = { was = new and new.was or seat }
      end
    end
  end
end

-- Heeds a seat that a worker of an earlier version has given or moved back: its slot is
-- where that is. And takes slots of levels that had no rules when the scope sat down.
local function sit_by(seat, its)
  for _, s in ipairs(its) do
    if s.level == level_of(seat.name) and (s.tag or 0) < seat.stamp or its.had and #its == 1 and number_at('F' .. s.node) <= seat.stamp then
      s.tag = seat.stamp
      held['F' .. s.node] = max(number_at('F' .. s.node), seat.stamp)
      put_off(s, 1)
    elseif not s.tag then
      take_slot(s)
    end
  end
end

-- The tags of a scope that has its seat.
local function tags_of(l, seat)
  local its = shares(l, seat)
  if its.had and not l.sat then
    l.sat = true
    sit_by(seat, its)
  end
  return its
end

-- The rank of a scope in the round of a rule.
local function rank_in(l, name, seat)
  return sub(seat.rank, 1, 3) .. pack(tag_at(tags_of(l, seat), name))
end

-- The rule of the path, other than this one, whose round has a seat that is earlier there.
local function earlier(seat, l, path)
  for i = 1, #path do
    local name = path[i].name
    local first = name ~= seat.name and front(name)
    local theirs = first and lines[first.scope]
    local mine = { band = seat.band, stamp = first and tag_at(tags_of(l, seat), name), scope = seat.scope }
    if first and not (theirs and (theirs.path_text == '-' or theirs.left)) and sooner(first, mine) then
      return name
    end
  end
end

local function look_by(name, t)
  looks[name] = min(looks[name] or t, t)
end

-- Releases a line's head. Its scope has had a turn, and takes the next slot.
local function release(seat, l, ticket, score, path, start)
  slots(l)
  local its = tags_of(l, seat)
  for i = 1, #path do
    algorithms[path[i].kind].charge(path[i], now, start)
  end
  l.out = l.out or {}
  l.out[#l.out + 1] = { ticket = ticket, score = score, tag = its[1].tag or seat.stamp }
  l.taken, l.next = l.taken + 1, l.next + 2
  released[#released + 1], released[#released + 2] = l.scope, ticket
  out = out + 1
  if start == now and more > 0 then
    more = more - 1
  else
    most = most - 1
  end
  had_turn(its, path)
  local following, next_score = head(l)
  local name = following and seat.name
  if following then
    take_slots(its)
    local meets = mixed and path_of(l, following) or {}
    if #meets > 0 and not has(meets, name) then -- it takes nothing of this rule
      name = meets[1].name
      look_by(name, now)
    end
  end
  move(seat, name, name and rank_of(next_score, tag_at(its, name)))
end

-- Leaves a line alone for a while whose rules the caller doesn't know. Others may know them.
local function leave(seat, score)
  move(seat, seat.name, rank_of(score, seat.stamp), true)
  look_by(seat.name, now + AGAIN)
end

-- Parks a head that no rule will ever admit while the limits are what they are: its line goes on
-- without it, and it comes back to its place. False where this call has done so often enough.
local function pass_over(seat, l, ticket, score)
  if parking.dear == 0 then
    look_by(seat.name, now)
    return false
  end
  parking.take_from(l, { ticket, score })
  parking.dear, l.next = parking.dear - 1, l.next + 2
  move(seat, seat.name, rank_of(score, seat.stamp))
  return true
end

-- Leaves a head alone that is too dear while an API's limit is lower than its rule's: its line
-- keeps its order, and its scope is out of everybody's way until the next look.
local function step_aside(seat)
  move(seat, NO_RULE, seat.rank, true)
  look_by(NO_RULE, now + AGAIN)
end
