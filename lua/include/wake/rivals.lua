-- Whose turn it is among the lines below a level with weights. Source: docs/turns.md#shares

-- The rounds whose turns are being given: the one at the end, for those before it.
local serving = {}

local gives_way
do
  -- Whether a line's first task can start now, or nearly so.
  local function startable(l)
    local ticket = head(l)
    local start, _, sure = joint_start(path_of(l, ticket), now)
    return sure and start <= now + lead + spread
  end

  -- The first places in the round of a level.
  local function places_of(level)
    if not places[level] then
      places[level] = call('ZRANGEBYLEX', round, '(' .. level .. '\0', '(' .. level .. '\1', 'LIMIT', '0', whole(RIVALS))
    end
    return places[level]
  end

  -- The seat of a scope as this call has it, nil where it has none that is to be looked at.
  local function seat_in(scope)
    if moved[scope] then
      return moved[scope].name ~= NO_RULE and moved[scope].name and moved[scope] or nil
    end
    read_at({ 'S' .. scope })
    local had = held['S' .. scope]
    if not had then
      return nil
    end
    local name, rank = parts_of(had)
    rounds[name] = rounds[name] or { here = {} }
    local first = rounds[name].first
    return first and first.scope == scope and first or name ~= NO_RULE and seated(name, rank, scope, had) or nil
  end

  local function share_at(its, level)
    for _, s in ipairs(its) do
      if s.level == level then
        return s
      end
    end
  end

  -- The line that is earliest at a level of those that can start and are earlier there than
  -- this one, if any. False where the caller does not know one that may be.
  local function earliest(seat, l, s)
    local best, tag
    for _, place in ipairs(places_of(s.level)) do
      local scope, stamp = sub(place, #s.level + 12), unpack7(place, #s.level + 5)
      local other = lines[scope]
      if not other and stamp < s.tag then
        miss(scope)
        return false
      elseif other and other.path_text ~= '-' and not other.left then
        local its = other == l and seat or seat_in(scope)
        local theirs = its and share_at(slots(other), s.level)
        local emptied = not its and not moved[scope] and not held['S' .. scope] -- by an earlier version
        if emptied or its and not other.shares.had[place] then
          comes[place] = false
        end
        stamp = theirs and theirs.tag or stamp
        local rivals = other ~= l and other.favoured ~= other.taken
        if rivals and its and its.band == seat.band and stamp < (tag or s.tag) and head(other) and startable(other) then
          best, tag = other, stamp
        end
      end
    end
    return best
  end

  -- Gives the turn to another line of a level, by this one's tags at the levels above: its seat
  -- comes to this round, or, where that is none of its own, to that of its first rule.
  local function give_way(seat, l, other, level)
    other.favoured = other.taken
    local its = seat_in(other.scope)
    local other_shares = tags_of(other, its)
    for _, s in ipairs(l.shares) do
      if s == level then
        break
      end
      local theirs = share_at(other_shares, s.level)
      if theirs then
        s.tag, theirs.tag = max(s.tag, theirs.tag or 0), min(s.tag, theirs.tag or s.tag)
      end
    end
    local path = path_of(other, (head(other)))
    local name = (path[1] or rules_of(other)[1]).name -- its rules may be out of their hours
    for _, r in ipairs(path) do
      name = r.name == seat.name and r.name or name
    end
    move(its, name, rank_in(other, name, its))
    move(seat, seat.name, rank_in(l, seat.name, seat))
    if name ~= seat.name then
      serving[#serving + 1] = name
    end
  end

  -- Whether the turn is rather another line's, of those below one of the scope's levels, which
  -- then has it; nil where one is not known.
  function gives_way(seat, l)
    for _, s in ipairs(tags_of(l, seat)) do
      local other = s.placed and earliest(seat, l, s)
      if other then
        give_way(seat, l, other, s)
        return true
      elseif s.placed and other == false then
        return nil
      end
    end
    return false
  end
end
