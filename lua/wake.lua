-- wake: release the tasks whose turn is near, each rule's waiters in their order.
--
-- It sees what the limiter holds, sets aside in memory what released tasks will
-- take that have not come yet, and takes from each round that is due the first
-- seat's first task, as long as its start under all its rules is near. A seat
-- whose task waits for another rule moves to that rule's round. Nothing is charged
-- and no state of a rule is changed. Sent again under its id it answers with the
-- same tasks, as far as they have not come.
--
-- KEYS[1..n]  rule    state of rule i of those that the scopes meet; n is ARGV[9]. See include/layout.lua.
-- KEYS[n+1]   due     sorted set of rules by the time to look. See include/turns/lines.lua, here and below.
-- KEYS[n+2]   round   sorted set of seats.
-- KEYS[n+3]   out     hash of released tasks.
-- KEYS[n+4]   at      hash of seats by scope, and of sums.
-- KEYS[n+5]   told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+6..] line    the waiting tasks of a scope, one for each of s scopes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     call    the id of this call. The first ten bytes are the caller's own.
-- ARGV[3]     lead    integer µs >= 0, how long before its start a task is released at the latest,
-- ARGV[4]     spread  and integer µs >= 0, how much earlier it may be, so that one call serves several.
-- ARGV[5]     most    integer >= 0, how many tasks to release at most.
-- ARGV[6]     all     1 to look at every round, whatever it waits for: a limit may have changed.
-- ARGV[7]     now     integer >= 0, how many more to release whose start has come already.
-- ARGV[8]     near    integer >= 0, of how many rules to name the scopes that are next.
-- ARGV[9]     rules   integer n.
-- ARGV[10..]  rule    one for each rule. See include/rules.lua.
-- ARGV[n+10..] path   one for each of s scopes: the numbers of its rules, as "1,3,4", or "-" for a scope
--                     that the caller cannot wake. See include/turns/lines.lua for "1,3*2,4".
-- ARGV[n+s+10..] news three for each task: "f" it does not exist any more, whether it was released or
--                     stands in line; of one that was released and could not be run "a" it does not
--                     exist yet, to be tried again, "r" it is running; then its scope; its ticket.
--
-- Returns  {times, released, missing, near}, each a list:
--          times     {now, next, out}: integer µs, the clock of this call, and when to look again, 0 when
--                    nobody waits; how many tasks that this caller released have not come
--          released  two for each task: its scope and its ticket, in the order of their turns
--          missing   the scopes that were met and are not among KEYS, each once
--          near      scopes whose turns are next, the first few of each rule that is
--
-- Writes   KEYS[n+1..n+4] and KEYS[n+6..n+s+5]. Nothing when nobody waits.
-- Source   docs/turns.md#waking

-- #include clock
-- #include pack
-- #include layout

local call = redis.call
local n = tonumber(ARGV[9])
local due, round, out_key, at, told = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local there = call('EXISTS', due, out_key, told, told, told) -- a key counts as often as it is named
local heeds = there >= 3
local id, lead, spread = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local most, more = tonumber(ARGV[5]), tonumber(ARGV[7])
local provider = sub(due, 1, -5)

-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include fixed_window when F
-- #include concurrency when C
-- #include calendar when K
-- #include rules
-- #include answer
-- #include told
-- #include turns/lines
-- #include turns/shares
-- #include turns/binding

-- How many turns a call gives at most, moves of seats included, and how many
-- heads of a line are read at once.
local STEPS, HEADS, ROUNDS = 1000, 16, 64

-- How soon to look again at what can't be woken: a task that a changed limit can
-- never admit, or a scope that the caller doesn't know; how many such tasks of a
-- line a call passes over; and how soon to look at a suspended rule, which a change
-- of its limit brings up sooner.
local AGAIN, PASSES, SUSPENDED = 1000000, 100, 3600000000

-- How many scopes of a level to look at for one whose turn it rather is.
local RIVALS = 8

local lines, released, missing = {}, {}, {}
local out = 0
local known, moved, looks = {}, {}, {} -- by scope, by scope, by rule
local rules, rounds, places = {}, {}, {}

-- Reads rule i once.
local function rule(i)
  if not rules[i] then
    rules[i] = load_rule(i, ARGV[9 + i], 1, '', now)
    rules[i].name, rules[i].unit = rule_name(KEYS[i]), unit_of(ARGV[9 + i])
  end
  return rules[i]
end

-- The rules of a line's scope.
local function rules_of(l)
  if not l.path then
    l.path, l.weights = {}, {}
    for i, weight in path_numbers(l.path_text) do
      l.path[#l.path + 1], l.weights[#l.path + 1] = rule(tonumber(i)), weight
    end
    add_pauses(l.path, l.scope)
  end
  return l.path
end

-- Those that a task meets, each with its cost.
local function path_of(l, ticket)
  return counted(rules_of(l), ticket)
end

-- The units that a line is counted in: requests, and those of its rules.
local function units_of(l)
  if not l.of then
    l.of = { [REQUESTS] = true }
    for i in path_numbers(l.path_text) do
      l.of[unit_of(ARGV[9 + tonumber(i)])] = true
    end
  end
  return l.of
end

-- Counts a task into a line (1) or out of it (-1).
local function count(l, ticket, sign)
  for unit in pairs(units_of(l)) do
    l.units[unit] = (l.units[unit] or 0) + sign * cost_of(ticket, unit)
  end
end

local function miss(scope)
  if not known[scope] then
    known[scope] = true
    missing[#missing + 1] = scope
  end
end

local function first_rules()
  for i = n + 6, #KEYS do
    local scope = sub(KEYS[i], #provider + 1, -6)
    lines[scope] = { key = KEYS[i], path_text = ARGV[i + 4], scope = scope, taken = 0, next = 1, units = {} }
  end
end

-- The last look, and whether a task may be first that takes nothing of the rule which its
-- scope has its seat with.
read_at({ '#', '@', MIXED, PAST })
local beat, mixed = number_at('@'), held[MIXED]

-- The names of a line's rules.
local function names_in(l)
  local names = {}
  for i in path_numbers(l.path_text) do
    names[#names + 1] = rule_name(KEYS[tonumber(i)])
  end
  return names
end

-- The sums that a line counts in.
local function sums_of(l)
  local fields = {}
  for unit in pairs(units_of(l)) do
    fields[#fields + 1] = sum_of(l.scope, unit)
  end
  for _, name in ipairs(names_in(l)) do
    fields[#fields + 1], fields[#fields + 2] = 'U' .. name, 'N' .. name
  end
  return fields
end

-- What a line's scope has at each level, with what its turn is to change.
local function slots(l)
  l.shares = l.shares or levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
  read_slots(l.shares, sums_of(l))
  return l.shares
end

-- The same, as far as it must be known of one who has a seat.
local function shares(l, seat)
  if not l.shares then
    l.shares = levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
    shares_of(l.shares, seat and seat.name, seat and seat.stamp, sums_of(l))
  end
  return l.shares
end

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
    call('HDEL', out_key, field)
    if call('ZADD', l.key, 'NX', whole(score), ticket) == 1 then
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
      local its, tag = slots(l), unpack7(value, 15)
      take_slots(its)
      its[1].tag = min(its[1].tag, max(1, tag))
      local name = rule_name(KEYS[tonumber(string.match(l.path_text, '^%d+'))])
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

  -- What became of tasks that were released.
  function heed_news()
    for i = 5 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l, field = lines[scope], scope .. '\0' .. ticket
      local value = call('HGET', out_key, field)
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
    shares(l, { name = name, stamp = stamp })
    for _, s in ipairs(slots(l)) do
      if s.tag then
        put_off(s, -1)
      end
    end
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

  -- Takes those out of their lines who have ended there.
  function take_out()
    for i = 5 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l = what == 'f' and lines[scope]
      local place = l and l.path_text ~= '-' and call('ZRANK', l.key, ticket)
      if place then
        call('ZREM', l.key, ticket)
        count(l, ticket, -1)
        read_at({ 'S' .. scope })
        local seat = held['S' .. scope]
        if seat and place == 0 then
          seat_anew(l, seat)
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
  if not l.got or l.next > #l.got and #l.got == 2 * HEADS then
    l.got, l.next = call('ZRANGE', l.key, whole(l.taken), whole(l.taken + HEADS - 1), 'WITHSCORES'), 1
  end
  return l.got[l.next], tonumber(l.got[l.next + 1])
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
    if first and not (theirs and theirs.path_text == '-') and sooner(first, mine) then
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

-- Passes over a head that can't be woken: its line and its scope go on without it.
-- A scope that has no other is left alone for a while: out of everybody's way, or, if
-- others know its rules, where it is.
local function pass_over(seat, l, score, what)
  l.passed, l.passes = l.passed or what, (l.passes or 0) + 1
  if l.passes > 1 and l.passed == what or l.passes > PASSES then
    local name = what == 'unknown' and seat.name or NO_RULE
    move(seat, name, seat.rank, true)
    look_by(name, now + AGAIN)
    return
  end
  if what ~= 'unknown' then
    local last = call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')
    if last[1] ~= what then
      call('ZADD', l.key, whole(tonumber(last[2]) + 1), what)
      l.got = nil
    end
  end
  move(seat, seat.name, rank_of(score, seat.stamp))
end

-- Leaves a head alone that is too dear while an API's limit is lower than its rule's: its line
-- keeps its order, and its scope is out of everybody's way until the next look.
local function step_aside(seat)
  move(seat, NO_RULE, seat.rank, true)
  look_by(NO_RULE, now + AGAIN)
end

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
      elseif other and other.path_text ~= '-' then
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

-- The round of those that are left alone may have more scopes than a caller brings along. So a
-- look begins behind where the last one came to, and goes on past those that are not known.
local begin_aside, pass_unknown, begin_again
do
  -- How many to pass: as many again may take turns. And how soon to look at those.
  local SKIPS, SOON = 32, AGAIN / 4

  function begin_aside()
    read_at({ NO_RULE })
    local r, from = rounds[NO_RULE] or { here = {} }, held[NO_RULE] or nil
    rounds[NO_RULE] = r
    r.from, r.place, r.after, r.passed = from, from, from, 0
  end

  -- Passes a scope that the caller doesn't know, and is to bring along. True while there may be
  -- others.
  function pass_unknown(r, seat)
    miss(seat.scope)
    if r.passed == 0 then
      look_by(NO_RULE, r.met and now + SOON or now)
    end
    r.passed = r.passed + 1
    take_from_round(seat)
    return r.passed < SKIPS
  end

  -- Goes on, behind the last, with the first, unless the look has begun there.
  function begin_again(r)
    local goes_on = r.from and r.passed == 0
    if r.passed == 0 then
      r.from, r.place = nil, nil
    end
    if goes_on then
      r.first = nil
    end
    return goes_on
  end
end

-- Whether a rule of a path can never admit its task, not even once it has grown.
local function too_dear(path)
  for _, r in ipairs(path) do
    local grows = r.corrected and r.cost <= r.most
    if not grows and r.cap ~= 0 and r.p ~= 0 and not algorithms[r.kind].fit(r, now) then
      return true
    end
  end
  return false
end

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
    move(seat)
    return true
  elseif l.path_text == '-' then
    pass_over(seat, l, score, 'unknown')
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
  if not free and by.corrected and by.cost <= by.most and not too_dear(path) then
    step_aside(seat)
    return true
  elseif not free and by.cap ~= 0 and by.p ~= 0 then
    pass_over(seat, l, score, ticket)
    return true
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

local served = {}

-- Lets all rounds be looked at now.
local function look_at_all()
  local names = call('ZRANGEBYSCORE', due, '(' .. whole(now), '+inf')
  for i = 1, #names do
    call('ZADD', due, 'XX', whole(now), names[i])
  end
end

local steps = 0

-- Gives the turns of a round, until it waits, and those of rounds that it gives way to first.
local function serve_round(first)
  serving[1] = first
  while #serving > 0 do
    local name = serving[#serving]
    steps = steps + 1
    local over = most + more <= 0 or steps > STEPS
    if over then
      look_by(name, now)
    elseif not turn(name) then
      over = true
      if mixed and name ~= NO_RULE then
        sift(name)
      end
    end
    if over then
      serving[#serving] = nil
    end
  end
end

local function serve()
  if ARGV[6] == '1' or freed_unknown or beat > now then -- or the clock has stepped back
    look_at_all()
  end
  local names = call('ZRANGEBYSCORE', due, '-inf', whole(now), 'LIMIT', '0', whole(ROUNDS))
  for _, name in ipairs(names) do
    served[name] = true
    if name ~= NO_RULE then -- there may be those in it that this call looks at no more
      looks[name] = nil
      serve_round(name)
    else
      begin_aside()
      serve_round(name)
      local place = rounds[name].place or false
      if place ~= held[name] then
        note(name, place)
      end
    end
  end
  return names
end

local save
do
  -- Moves released tasks from their lines to those that are out.
  local function save_released()
    for _, l in pairs(lines) do
      local tickets, outs = {}, {}
      for i, o in ipairs(l.out or {}) do
        tickets[i] = o.ticket
        outs[2 * i - 1] = l.scope .. '\0' .. o.ticket
        outs[2 * i] = pack(now) .. pack(o.score + SCORES) .. pack(o.tag) .. id
        count(l, o.ticket, -1)
      end
      if #tickets > 0 then
        call('ZREM', l.key, unpack(tickets))
        call('HSET', out_key, unpack(outs))
      end
    end
  end

  -- Whether a line was emptied.
  local function closed(l)
    return moved[l.scope] and not moved[l.scope].name
  end

  -- Adds up the units and lines that came and went.
  local function save_sums()
    local add, fields = {}, {}
    local function plus(field, k)
      if k ~= 0 then
        add[field] = (add[field] or 0) + k
        fields[#fields + 1] = field
      end
    end
    for _, l in pairs(lines) do
      local opened = (l.opened and 1 or 0) - (closed(l) and 1 or 0)
      if next(l.units) or opened ~= 0 then
        for unit, k in pairs(l.units) do
          plus(sum_of(l.scope, unit), unit ~= '' and k or 0)
        end
        for i in path_numbers(l.path_text) do
          local name = rule_name(KEYS[tonumber(i)])
          plus('U' .. name, l.units[unit_of(ARGV[9 + tonumber(i)])] or 0)
          plus('N' .. name, opened)
        end
      end
    end
    read_at(fields)
    for field, k in pairs(add) do
      note(field, max(0, number_at(field) + k))
    end
  end

  local function save_seats()
    for scope, seat in pairs(moved) do
      if seat.seat ~= seat.was then
        comes[seat.was] = false
        note('S' .. scope, seat.seat or false)
        if seat.seat then
          comes[seat.seat] = true
        end
      end
    end
  end

  -- Notes the tags of all that were looked at, and of lines that were emptied what is to be
  -- remembered.
  local function save_tags()
    for scope, l in pairs(lines) do
      if closed(l) then
        remember(slots(l), names_in(l), true)
        save_shares(l.shares, true)
        for unit in pairs(units_of(l)) do
          note(sum_of(scope, unit), false)
        end
      elseif l.shares then
        save_shares(l.shares)
      end
    end
  end

  local function save_looks(names)
    local set, lower, gone = {}, {}, {}
    for name, look in pairs(looks) do
      local list = served[name] and set or lower
      list[#list + 1], list[#list + 2] = whole(look), name
    end
    for _, name in ipairs(names) do
      if not looks[name] then
        gone[#gone + 1] = name
      end
    end
    if #set > 0 then
      call('ZADD', due, unpack(set))
    end
    if #lower > 0 then
      call('ZADD', due, 'LT', unpack(lower))
    end
    if #gone > 0 then
      call('ZREM', due, unpack(gone))
    end
  end

  -- Forgets nodes whose slots the time has passed. So many nodes or turns after the last time
  -- it looks through twice as many: what is kept is about as much as means anything.
  local FORGET = 32
  local function forget()
    local many = number_at(PAST)
    if many == 0 then
      return
    end
    many = many + #released / 2
    note(PAST, many)
    if many < FORGET then
      return
    end
    write_round() -- nodes that this call has noted, or taken up again, are looked through as they are now
    local most = min(2 * many, MANY)
    local past = call('ZRANGEBYLEX', round, '(' .. PAST .. '\0', '(' .. PAST .. '\1', 'LIMIT', '0', whole(most))
    local fields, left = {}, #past == most
    for _, entry in ipairs(past) do
      local node = sub(entry, 13)
      local level = level_above(node)
      fields[#fields + 1], fields[#fields + 2] = 'F' .. node, 'V' .. level
    end
    read_at(fields)
    for i, entry in ipairs(past) do
      local slot, time = fields[2 * i - 1], fields[2 * i]
      comes[entry] = false
      if held[time] and number_at(slot) > number_at(time) then
        comes[past_at(sub(slot, 2))], left = true, true
      else
        note(slot, false)
      end
    end
    note(PAST, left and 1 or 0)
  end

  -- Writes what the call has come to. Returns the round that is due next, and when.
  function save(names)
    save_released()
    save_looks(names)
    local next_rule = call('ZRANGE', due, '0', '0', 'WITHSCORES')
    if #next_rule == 0 then
      call('DEL', at, round)
      return next_rule
    end
    save_sums()
    save_seats()
    save_tags()
    forget()
    note('@', now)
    write_round()
    write_at()
    return next_rule
  end
end

-- The scopes that are next, by the rules that are.
local function near_scopes()
  local near, seen = {}, {}
  for _, name in ipairs(call('ZRANGE', due, '0', whole(ARGV[8] - 1))) do
    local seats = call('ZRANGEBYLEX', round, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', '4')
    for _, seat in ipairs(seats) do
      local _, _, scope = parts_of(seat)
      if not seen[scope] then
        seen[scope] = true
        near[#near + 1] = scope
      end
    end
  end
  return near
end

if there % 3 == 0 then
  return { { now, 0, 0 }, {}, {}, {} }
end
first_rules()
heed_news()
reserve()
take_out()
write_round() -- the rounds are read from here on
local names = serve()
local next_rule = save(names)
if #released > 0 then
  overdue = overdue or now + STALE
  if call('PTTL', out_key) < 60000 then
    call('PEXPIRE', out_key, '60000')
  end
end
local following = tonumber(next_rule[2] or 0)
if following > 0 then
  following = min(following, overdue or following)
end
if now - beat > STAY / 1440 then
  local last = call('ZRANGE', due, '-1', '-1', 'WITHSCORES')[2]
  keep_waiting(max(0, (last or now) - now), due, round, at)
end
return { { now, following, out }, released, missing, ARGV[8] ~= '0' and near_scopes() or {} }
