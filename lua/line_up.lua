-- line_up: give places to tasks before they are enqueued, many in one call.
--
-- A task whose start would be near, and that nobody is before, goes straight to
-- its queue. Where its rules have not plenty of units it counts as released, so
-- that nobody else is given its own. All others join the lines of their scopes,
-- as if they had come and been denied. Nothing is charged. Sent again, it leaves
-- tasks that stand in line where they are.
--
-- KEYS[1..n]  rule    state of rule i of those that the scopes meet; n is ARGV[4]. See include/layout.lua.
-- KEYS[n+1]   due     sorted set of rules by the time to look. See include/turns/lines.lua, here and below.
-- KEYS[n+2]   round   sorted set of seats.
-- KEYS[n+3]   out     hash of released tasks.
-- KEYS[n+4]   at      hash of seats by scope, and of sums.
-- KEYS[n+5]   told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+6..] line    the waiting tasks of a scope, one for each of s scopes.
-- KEYS[n+s+6] parked  sorted set of tasks out of their lines for now. See include/wake/parked.lua.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     lead    integer µs >= 0, how long before its start a task is released.
-- ARGV[3]     near    integer µs >= 0, how near a start must be for its task to go straight to its queue.
-- ARGV[4]     rules   integer n.
-- ARGV[5..]   rule    one for each rule. See include/rules.lua.
-- ARGV[n+5..] path    one for each of s scopes: the numbers of its rules, as "1,3,4". See
--                     include/turns/lines.lua for "1,3*2,4".
-- ARGV[n+s+5..] tasks three for each task: the number of its scope; its ticket; its priority, with its lane
--                     as in turn.lua.
--
-- Returns  {now, then two for each task: placed, expected}
--          now       integer µs, the clock of this call
--          placed    1 when the task stands in line now, 0 when it goes straight to its queue
--          expected  integer µs until its start is expected; -1 can't be told
--
-- Writes   KEYS[n+1..n+4] and KEYS[n+6..n+s+5], when a task joins a line.
-- Source   docs/turns.md#planned-at-enqueue

-- #include clock
-- #include pack
-- #include layout

local call = redis.call
local n, lead, near = tonumber(ARGV[4]), tonumber(ARGV[2]), tonumber(ARGV[3])
local due, round, out_key, at, told = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local parked = KEYS[#KEYS]
local there = call('EXISTS', out_key, told, told, parked, parked, parked, parked)
local heeds = there % 4 >= 2 -- a key counts as often as it is named
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
-- #include turns/lanes
-- #include turns/group
-- #include turns/shares
-- #include turns/binding
-- #include turns/expect

-- So many tasks that went straight to their queues count as released: those that come
-- first, since each look adds them up. They are forgotten when they have not come in time, which
-- begins with the first look: until then nobody may be there to take them.
local MARKED = 2000

-- Units that are plenty: who has so many left may send its tasks on without a mark.
-- Those of a backlog that go unmarked before lines form are behind them when they come.
local PLENTY = 2000

local rules, lines, mixed = {}, {}, false

-- Rule i, with the units and lines that wait under it, the calls of this one included.
local function rule(i)
  local r = rules[i]
  if not r then
    r = load_rule(i, ARGV[4 + i], 1, '', now)
    r.name, r.unit = rule_name(KEYS[i]), unit_of(ARGV[4 + i])
    r.round = call('ZSCORE', due, r.name) and true or false
    rules[i] = r
  end
  return r
end

-- Reads the sums of a line and of its rules, and the slots for one that is to be opened.
local function read_sums(l)
  local fields = { 'S' .. l.scope, 'L' .. l.scope, 'Q' .. l.scope }
  for i = 1, #l.path do
    local r = l.path[i]
    if r.kind ~= 'P' then
      fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = 'U' .. r.name, 'N' .. r.name, sum_of(l.scope, r.unit)
    end
  end
  if l.card == 0 then
    read_slots(l.shares, fields)
  else
    read_at(fields)
  end
  l.seat, l.units[REQUESTS] = held['S' .. l.scope], number_at('L' .. l.scope)
  l.laned = l.card > 0 and held['Q' .. l.scope]
  l.lanes = read_lanes(l.laned)
  for i = 1, #l.path do
    local r = l.path[i]
    if r.kind ~= 'P' then
      r.units, r.lines = r.units or number_at('U' .. r.name), r.lines or number_at('N' .. r.name)
    end
    l.units[r.unit] = l.units[r.unit] or number_at(sum_of(l.scope, r.unit))
  end
end

local function line(j)
  local l = lines[j]
  if not l then
    l = { key = KEYS[n + 5 + j], path = {}, weights = {}, joins = {}, units = {}, last = {}, most = {}, first = {}, own = {}, parked = {} }
    l.scope = sub(l.key, #provider + 1, -6)
    for i, weight in path_numbers(ARGV[n + 4 + j]) do
      l.path[#l.path + 1], l.weights[#l.path + 1] = rule(tonumber(i)), tonumber(weight) or 0
    end
    add_pauses(l.path, l.scope)
    for i = 1, #l.path do
      local r = l.path[i]
      if r.kind == 'P' and r.round == nil then
        r.round = call('ZSCORE', due, r.name) and true or false
      end
    end
    l.card = call('ZCARD', l.key)
    l.was, l.shares = l.card, levels_of(l.scope, names_of(l.path), l.weights)
    read_sums(l)
    lines[j] = l
  end
  return l
end

-- Whether anybody waits for one of the rules of a path, or stands in the line.
local function waited_for(l, path)
  for i = 1, #path do
    if path[i].round then
      return true
    end
  end
  return l.card > 0
end

-- How long until a task's turn, behind so many of its line. See turn.lua.
local function expected_of(l, place)
  local latest, known = now, false
  for i = 1, #l.path do
    local r, own = l.path[i], l.units[l.path[i].unit]
    local before = place < l.card and floor(own * place / l.card) or own
    if r.cost > 0 or before > 0 then
      local others = min(max(0, r.units - own), turns_of(before + r.cost, r.lines - (l.card > 0 and 1 or 0), l.weights[i] or 0))
      local t = after_units(r, now, before + others)
      if not t then
        return -1
      end
      known = known or can_tell(r)
      latest = max(latest, t)
    end
  end
  return known and latest - now or -1
end

-- The last of all who stand in line, and the last of a band, those of this call included.
local function highest_in(l)
  if l.highest == nil then
    l.highest = l.was > 0 and tonumber(call('ZRANGE', l.key, '-1', '-1', 'WITHSCORES')[2]) or false
  end
  return l.highest
end

local function last_in(l, band)
  if l.last[band] == nil then
    local last, to = highest_in(l), band + BAND
    if last and last >= to then
      last = tonumber(call('ZREVRANGEBYSCORE', l.key, '(' .. whole(to), whole(band), 'WITHSCORES', 'LIMIT', '0', '1')[2])
    end
    l.last[band] = last and last >= band and last
  end
  local last, most = l.last[band], l.most[band]
  return last and most and max(last, most) or last or most
end

-- The first of a band that stands for its time: those of this call are behind it.
local function first_in(l, band)
  if l.first[band] == nil and l.was > 0 then
    local from, to = whole(band + FRONT), '(' .. whole(band + BAND)
    l.first[band] = tonumber(call('ZRANGEBYSCORE', l.key, from, to, 'WITHSCORES', 'LIMIT', '0', '1')[2]) or false
  end
  return l.first[band]
end

-- The place of a task in its line, as in turn.lua.
local function score_in(l, band, lane, stride, group)
  local score = lane ~= '' and l.laned and place_in_lane(l.lanes, band, lane, first_in(l, band))
  score = score or place_after(last_in(l, band), band, now)
  if l.parked[group] == nil then
    l.parked[group] = there >= 4 and call('ZSCORE', parked, l.scope .. '\0:' .. group) or false
  end
  score = behind_parked(score, l.parked[group], band)
  l.most[band] = max(l.most[band] or score, score)
  if l.was == 0 or l.first[band] == false then
    l.first[band] = l.first[band] or score
  end
  l.laned = l.laned or lane ~= ''
  if l.laned then
    take_place(l.lanes, band, lane, stride, score)
  end
  return score
end

-- How many of a list of scores that grow are below one.
local function below(list, score)
  local from, to = 0, #list
  while from < to do
    local middle = ceil((from + to) / 2)
    if list[middle] < score then
      from = middle
    else
      to = middle - 1
    end
  end
  return from
end

-- How many are before a task that joins a line. Those of this call are in order by band and lane.
local function before(l, key, score)
  local many = l.was
  if many > 0 and score <= highest_in(l) then
    many = call('ZCOUNT', l.key, '-inf', '(' .. whole(score))
  end
  for _, scores in pairs(l.own) do
    many = many + below(scores, score)
  end
  l.own[key] = l.own[key] or {}
  l.own[key][#l.own[key] + 1] = score
  return many
end

local function join(l, path, ticket, rank)
  mixed = mixed or #path < #l.path
  local place = l.was > 0 and call('ZRANK', l.key, ticket)
  if place then
    return expected_of(l, place)
  end
  local priority, stride, lane = priority_of(rank)
  local score = score_in(l, -priority * BAND, lane, stride, group_of(ticket))
  local expected = expected_of(l, before(l, lane_key(-priority * BAND, lane), score))
  l.joins[#l.joins + 1], l.joins[#l.joins + 2] = whole(score), ticket
  if not l.best or score < l.best then
    l.meets = path
  end
  if l.best and score < l.best then
    l.start, l.rule = nil, nil -- they are those of a task that is first no more
  end
  l.best = min(l.best or score, score)
  l.longest = max(l.longest or 0, expected)
  for i = 1, #l.path do
    local r = l.path[i]
    if r.kind ~= 'P' then
      r.units, r.round = r.units + r.cost, r.round or r.cost > 0
      r.lines = r.lines + (l.card == 0 and 1 or 0)
    end
  end
  for unit, units in pairs(l.units) do
    l.units[unit] = units + cost_of(ticket, unit)
  end
  l.card = l.card + 1
  return expected
end

-- The tasks of the call, and those that are out.
local out, straight, outs = { now }, {}, {}

local function place(l, ticket, rank)
  local path = counted(l.path, ticket)
  local out = outs[l.scope .. '\0' .. ticket]
  if out then
    local whose = sub(out, 22)
    return (whose == RUNNING or whose == STRAIGHT) and 0 or 1, 0
  end
  if not waited_for(l, path) then
    local start, binding, sure = joint_start(path, now)
    if sure and start - now <= near then
      for i = 1, #path do
        algorithms[path[i].kind].charge(path[i], now, start)
        path[i].took = (path[i].took or 0) + path[i].cost
      end
      straight[#straight + 1] = { scope = l.scope, ticket = ticket, priority = priority_of(rank) }
      return 0, start - now
    end
    if not l.seat then
      l.start, l.rule = start, path[waits_for(path, start, binding)]
    end
  end
  return 1, join(l, path, ticket, rank)
end

-- Released tasks that have not come yet will take their units.
local function reserve()
  local fields = there % 2 == 1 and call('HGETALL', out_key) or {}
  local by_scope = {}
  for j = 1, #KEYS - n - 6 do
    by_scope[line(j).scope] = line(j)
  end
  for f = 1, #fields, 2 do
    local zero = string.find(fields[f], '\0', 1, true)
    local l, ticket = by_scope[sub(fields[f], 1, zero - 1)], sub(fields[f], zero + 1)
    local whose = sub(fields[f + 1], 22)
    local coming = whose == STRAIGHT or unpack7(fields[f + 1], 1) + STALE > now
    if coming or whose ~= RUNNING then
      outs[fields[f]] = fields[f + 1]
    end
    if l and coming then
      for _, r in ipairs(counted(l.path, ticket)) do
        local t = algorithms[r.kind].fit(r, now)
        if t then
          algorithms[r.kind].charge(r, now, t)
        end
      end
    end
  end
end

-- A scope that has no seat yet gets one: with the rule that its first task waits
-- for, to be looked at in time, or, where others wait, to be looked at now. Units
-- that are set aside may be free when those they are for have not come in time.
local function sit(l)
  local score = l.best
  if l.seat then
    local name, rank = parts_of(l.seat)
    local band, its = numbers_of(rank)
    if floor(score / BAND) + LOWEST < band then
      local own = #l.meets == 0
      for i = 1, #l.meets do
        own = own or l.meets[i].name == name
      end
      if not own then -- the one that was first waits for what this one takes nothing of
        shares_of(l.shares, name, its)
        name = l.meets[1].name
        its = tag_at(l.shares, name)
        save_shares(l.shares)
      end
      local seat = seat_of(name, rank_of(score, its), l.scope)
      comes[seat], comes[l.seat] = true, false
      note('S' .. l.scope, seat)
      call('ZADD', due, 'LT', whole(now), name)
    end
    return
  end
  take_slots(l.shares)
  local name = (l.rule or l.meets[1] or l.path[1]).name
  local seat = seat_of(name, rank_of(score, tag_at(l.shares, name)), l.scope)
  comes[seat] = true
  note('S' .. l.scope, seat)
  save_shares(l.shares)
  local look = (#straight > 0 or next(outs)) and min(l.start or now, now + STALE) or l.start or now
  look = heeds and min(look, now + TOLD_LOOK) or look
  call('ZADD', due, 'LT', whole(max(now, look - lead)), name)
end

-- Whether a rule would not admit a call's worth of tasks besides those that it is to
-- admit of this one: then the next call must know of these.
local function scarce()
  for _, r in pairs(rules) do
    if r.took then
      r.cost = max(PLENTY, r.took)
      local t = algorithms[r.kind].fit(r, now)
      if not t or t > now then
        return true
      end
    end
  end
  return false
end

local function mark()
  local fields = {}
  for i = 1, min(#straight, MARKED - call('HLEN', out_key)) do
    local s = straight[i]
    fields[2 * i - 1] = s.scope .. '\0' .. s.ticket
    fields[2 * i] = pack(now) .. pack(SCORES - s.priority * BAND + MIDDLE) .. pack(0) .. STRAIGHT
  end
  if #fields > 0 then
    call('HSET', out_key, unpack(fields))
    keep_waiting(0, out_key)
  end
end

local function save()
  local set, longest, changed = {}, 0, {}
  for _, l in pairs(lines) do
    if #l.joins > 0 then
      for i = 1, #l.joins, 2 * MANY do
        call('ZADD', l.key, unpack(l.joins, i, min(#l.joins, i + 2 * MANY - 1)))
      end
      sit(l)
      keep_waiting(l.longest, l.key)
      longest = max(longest, l.longest)
      if l.laned then
        note('Q' .. l.scope, lanes_text(l.lanes))
      end
      for unit, units in pairs(l.units) do
        if unit ~= '' then
          note(sum_of(l.scope, unit), units)
        end
      end
      for i = 1, #l.path do
        if l.path[i].kind ~= 'P' then
          changed[l.path[i].name] = l.path[i]
        end
      end
    end
  end
  for name, r in pairs(changed) do
    note('U' .. name, r.units)
    note('N' .. name, r.lines)
    set = true
  end
  if mixed then
    note(MIXED, '1')
  end
  write_round()
  write_at()
  if set == true then
    keep_waiting(longest, due, round, at)
  end
  return set == true
end

reserve()
for i = #KEYS - 1, #ARGV, 3 do
  out[#out + 1], out[#out + 2] = place(line(tonumber(ARGV[i])), ARGV[i + 1], ARGV[i + 2])
end
local joined = save()
if #straight > 0 and (joined or scarce()) then
  mark()
end
return out
