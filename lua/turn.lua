-- turn: decide, as decide does, for a task that can wait for a turn of its own.
--
-- A task that was released takes the earliest start. Any other goes behind those
-- that wait for one of its rules, to the end of its scope's line, and one that
-- nobody is before takes its start where that is at most `ahead` from now, or
-- goes to the line too. A task that has been standing in line keeps its place.
-- Nothing is charged but at a start. Where looks at the rounds are late, nobody is
-- there to wake, and tasks start when their units are free, whoever comes.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 8. See include/layout.lua and concurrency.lua.
-- KEYS[n+1]   attempt   string, the grant under this attempt id, as decide's.
-- KEYS[n+2]   line      sorted set of the scope's waiting tasks. See include/turns/lines.lua, here and
--                       for the next five, which the provider has one of each.
-- KEYS[n+3]   due       sorted set of rules by the time to look at their rounds.
-- KEYS[n+4]   round     sorted set of seats.
-- KEYS[n+5]   out       hash of released tasks.
-- KEYS[n+6]   at        hash of seats by scope, and of sums.
-- KEYS[n+7]   told      hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+8]   parked    sorted set of tasks out of their lines for now. See include/wake/parked.lua.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id: holder of places under concurrency rules.
-- ARGV[3]     ask       integers with a space between: priority, at most 1000000 either way, of which higher
--                       goes first, and behind it, as "0:6:low", the stride and the name of a lane for a
--                       task that has one; ahead, µs >= 0, at most 60000000, how far ahead a start may be charged for
--                       a task that was released; near, µs >= 0, the same for one that was not; lead, µs >= 0,
--                       how long before its start a task is released. Then the levels of the scope that have
--                       rules, as how many names below the provider, each with the weight that its name has
--                       there where one is said: "0 10000 0 5000 0,1*2.5".
-- ARGV[4]     ticket    the task's name in line, its cost before it: "50:name", or ":name" for 1, or
--                       by unit "requests=1,tokens=1500:name".
-- ARGV[5]     again     0; 1 for a task whose start came too late: it had its turn, and has it still; 2
--                       for one that had its turn and shall only be put back before those in its line; 3
--                       for one that cannot run now, and only takes its place in line, whatever its limits would admit.
--                       What was too late before may follow, as before decide's ask: "1L20000"; and behind
--                       that the start that it could not use, where it is known, in integer µs since the
--                       epoch: "1L20000 1800000000000000".
-- ARGV[6]     others    the names of the scope's other rules, which it takes nothing of, each with a
--                       zero byte after it, and with a byte of one and its unit before that where it
--                       counts none of requests.
-- ARGV[7..]   rules     two for each rule: the rule, and integer units > 0 that it costs. See
--                       include/rules.lua.
--
-- Returns  {now, then three for each rule: remaining, reset, place}, as decide;
--          {now, then three for each rule, then look}: the same where others may wait; or
--          {allowed, replayed, now, wait, binding, then five for each rule, then ahead, expected, look}:
--          all but the last three as decide, and
--          wait       denied: as decide; it says nothing of those who are before
--          ahead      how many of its scope are before it; -1 when it does not stand in line
--          expected   integer µs until its turn is expected; -1 can't be told
--          look       integer µs until the provider's rounds must be looked at for it; -1 when
--                     they need not for this one, and allowed: 0 when others wait, or may
--
-- Writes   KEYS[1..n+1] when allowed, KEYS[n+2..n+4] and KEYS[n+6] when it joins or leaves the line,
--          KEYS[n+5] when it had been released, under several rules or at more than one unit the times
--          to look with it, KEYS[n+8] when it had been parked.
-- Source   docs/turns.md#the-decision

-- #include clock
-- #include pack
-- #include layout

local call, format = redis.call, string.format
local member, COLON = ARGV[2], 58
local n, base = #KEYS - 8, 5
local attempt, line = KEYS[n + 1], KEYS[n + 2]
local due, round, out_key, at, told = KEYS[n + 3], KEYS[n + 4], KEYS[n + 5], KEYS[n + 6], KEYS[n + 7]
local parked = KEYS[n + 8]
local ticket, provider = ARGV[4], sub(due, 1, -5)
local scope = sub(line, #provider + 1, -6)
-- #include turns/stale when K

-- Whether the API has told anything; whether nobody waits; whether it is this task's turn; and the
-- place that it has if it was parked.
local there = call('EXISTS', due, out_key, told, told, told, parked, parked, parked, parked, parked, parked)
local heeds, quiet, released = there % 6 >= 3, there % 3 == 0, false -- a key counts as often as it is named
local had_place = there >= 6 and tonumber(call('ZSCORE', parked, scope .. '\0' .. ticket) or nil)
-- The field of one that was released, and what it says. It goes when the task has its start or
-- its place in line, not before, and so does what was parked: a server that refuses a command
-- half-way leaves it its turn.
local on_way = not quiet and scope .. '\0' .. ticket
local was_out = on_way and call('HGET', out_key, on_way)
on_way = was_out and on_way or nil
if was_out then
  released = true
  -- Those who were released together may come in another order, and take each other's
  -- starts. Under one rule that is the same to everybody else, if each costs one unit.
  if n > 1 or byte(ticket) ~= COLON then
    local looks = {}
    for i = 1, n do
      looks[2 * i - 1], looks[2 * i] = format('%.0f', now), sub(KEYS[i], #provider + 1)
    end
    call('ZADD', due, 'XX', 'LT', unpack(looks))
  end
end

local again, late = string.match(ARGV[5], '^(%d)([LF]?%d*)')
late = late ~= '' and late or nil
local mine = released or again == '1' or again == '2'

-- One who was parked goes back to its line once: others of its scope may be parked who are before it.
local parked_before = had_place and not mine

-- One that a bucket paces mostly comes before its start, which the express way has not.
local at_once = released and byte(ARGV[base + 2]) ~= TOKEN
if (quiet or at_once) and not heeds and not late and again < '2' and not had_place then
  local look = not quiet and 0 or nil
  -- #include express/way
end

-- The general way.

local rank, ahead, near, lead, ranks = string.match(ARGV[3], '^(%S+) (%S+) (%S+) (%S+) (.*)$')
ahead, lead = tonumber(mine and ahead or near), tonumber(lead)
local left_out = ARGV[6]

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
-- #include grant
-- #include turns/lines
-- #include turns/lanes
-- #include turns/group
-- #include turns/shares
-- #include turns/binding
-- #include turns/expect
-- #include turns/freed

-- So many on their way are not added up for one decision: whoever comes besides
-- waits for a look, which adds them up once for many.
local CROWD = 200

local rules = read_rules()

-- The name of the round of those who wait for a rule of the path, or for a pause.
local function round_of(i)
  return i <= n and rule_name(KEYS[i]) or rules[i].name
end

-- When the task's line is looked at, whose first may wait for what the task does not: for a
-- rule that it takes nothing of, for an API's limit to grow, or for a pause that was forgotten.
local line_look

local function line_waits()
  local seat = call('HGET', at, 'S' .. scope)
  local look = seat and tonumber(call('ZSCORE', due, (parts_of(seat))) or nil)
  line_look = look and look + LATE > now and look or nil
  return look
end

-- The rule, of those on the path, that others wait for: they go first. A line stays in
-- order, whatever its first waits for.
local function waited_for()
  local late
  if left_out ~= '' then
    late = line_waits() and 1
    if line_look then
      return 1
    end
  end
  for i = 1, #rules do
    local look = call('ZSCORE', due, round_of(i))
    if look and look + LATE > now then
      return i
    end
    late = late or look and i
  end
  if heeds and left_out == '' then
    late = line_waits() and 1 or late
    if line_look then
      return 1
    end
  end
  late = late or call('HLEN', out_key) > CROWD and 1 or nil
  local beat = late and call('HGET', at, '@')
  return beat and beat + LATE > now and late or nil
end

-- Sets aside, in rules alone, what released tasks that are on their way will take.
-- A rule counts those of the scopes under its own level. Returns when the first of
-- them will have been on its way for too long; nil when there are none.
local function reserve(rules)
  local overdue
  local fields = call('HGETALL', out_key)
  for f = 1, #fields, 2 do
    local zero = string.find(fields[f], '\0', 1, true)
    local whose, its = sub(fields[f], 1, zero - 1) .. '/', sub(fields[f], zero + 1)
    local late = unpack7(fields[f + 1], 1) + STALE
    if late > now then
      for i = 1, n do
        local r = rules[i]
        local level = string.match(rule_name(KEYS[i]), '^[^:]*') .. '/'
        local cost = sub(whose, 1, #level) == level and cost_of(its, unit_of(ARGV[base + 2 * i])) or 0
        if cost > 0 then
          local own = r.cost
          r.cost, overdue = cost, min(overdue or late, late)
          local t = algorithms[r.kind].fit(r, now)
          if t then
            algorithms[r.kind].charge(r, now, t)
          end
          r.cost = own
        end
      end
    end
  end
  return overdue
end

-- The levels of the scope that have rules.
local function levels()
  local names, weights = {}, {}
  for depth, weight in path_numbers(ranks) do
    names[#names + 1] = string.match(scope, '^' .. string.rep('/[^/]*', tonumber(depth))) .. ':'
    weights[#weights + 1] = weight
  end
  return levels_of(scope, names, weights)
end

-- The names of the scope's rules: those of the path, and others.
local function rule_names()
  local names = {}
  for i = 1, n do
    names[i] = rule_name(KEYS[i])
  end
  for name in string.gmatch(left_out, '([^%z\1]+)%Z*') do
    names[#names + 1] = name
  end
  return names
end

-- The sums of the scope: its seat, its lanes, the requests in its line, for each rule the units and
-- the lines that wait and the units of its own line, and the lines of its other rules. The
-- slots are read with them for one that opens or closes its line.
local function sums(shares)
  local fields = { 'S' .. scope, 'L' .. scope, 'Q' .. scope }
  for i, name in ipairs(rule_names()) do
    if i <= n then
      fields[#fields + 1], fields[#fields + 2] = 'U' .. name, sum_of(scope, unit_of(ARGV[base + 2 * i]))
    end
    fields[#fields + 1] = 'N' .. name
  end
  if shares then
    read_slots(shares, fields)
  else
    read_at(fields)
  end
end

-- Counts the task into the line (1) or out of it (-1), and lines (1, 0, -1).
local function count(sign, lines)
  local done = {} -- rules may count the same unit
  local function add(field, k)
    if not done[field] then
      done[field] = true
      note(field, max(0, number_at(field) + k))
    end
  end
  add('L' .. scope, sign * cost_of(ticket, REQUESTS))
  for i, name in ipairs(rule_names()) do
    local own = i <= n and sum_of(scope, unit_of(ARGV[base + 2 * i]))
    if own then
      local units = sign * tonumber(ARGV[base + 2 * i + 1])
      add('U' .. name, units)
      add(own, units)
    end
    add('N' .. name, lines)
  end
end

-- The rules of the path and what the task costs under each, as had_turn takes them.
local function path_costs()
  local path = {}
  for i = 1, n do
    path[i] = { name = rule_name(KEYS[i]), cost = tonumber(ARGV[base + 2 * i + 1]) }
  end
  return path
end

-- Takes the task out of its line, if it stands there.
local function leave()
  if call('ZREM', line, ticket) == 0 then
    return
  end
  local shares = call('ZCARD', line) == 0 and levels()
  sums(shares)
  count(-1, shares and -1 or 0)
  if shares then
    local seat = held['S' .. scope]
    if seat then
      local name, rank = parts_of(seat)
      shares_of(shares, name, unpack7(rank, 4))
      comes[seat] = false
    end
    had_turn(shares, path_costs())
    remember(shares, rule_names(), seat)
    save_shares(shares, true)
    note('S' .. scope, false)
    note('L' .. scope, false)
    note('Q' .. scope, false)
    for i = 1, n do
      note(sum_of(scope, unit_of(ARGV[base + 2 * i])), false)
    end
    for unit in string.gmatch(left_out, '\1(%Z+)') do
      note(sum_of(scope, unit), false)
    end
  end
  write_round()
  write_at()
end

-- How long until the task's turn, with so much of its own line before it. Under a
-- rule that several lines share each of them has a turn in between.
local function expected_in(rules, share)
  local latest, known, weights = line_look or now, line_look and true, {}
  for depth, weight in path_numbers(ranks) do
    weights[tonumber(depth)] = tonumber(weight)
  end
  for i = 1, #rules do
    local u, lines, own = 0, 0, 0
    local name = round_of(i)
    if i <= n then
      u, lines, own = number_at('U' .. name), number_at('N' .. name), number_at(sum_of(scope, unit_of(ARGV[base + 2 * i])))
    end
    local _, depth = string.gsub(level_of(name), '/', '')
    local before = floor(own * share)
    local turns = turns_of(before + rules[i].cost, lines - (before > 0 and 1 or 0), weights[depth] or 0)
    local others = min(max(0, u - before), turns)
    local t = after_units(rules[i], now, before + others)
    if not t then
      return -1
    end
    known = known or can_tell(rules[i])
    latest = max(latest, t)
  end
  return known and latest - now or -1
end

-- Takes the task from those who are out, or parked.
local function arrive()
  if on_way then
    call('HDEL', out_key, on_way)
  end
  if had_place then
    call('ZREM', parked, scope .. '\0' .. ticket)
  end
end

local score_for
do
  -- Where one goes whose turn had come: back to its place, if it had one, or else to the front, which
  -- no place at the end ever is, by the start that it could not use. So those who go back together
  -- stand as they stood, whichever comes first.
  local function own_place(band)
    local score = was_out and #was_out > 21 and unpack7(was_out, 8) - SCORES
    if score and score > band and score < band + BAND and score ~= band + MIDDLE then -- that is one that went straight
      return score
    end
    local start = string.match(ARGV[5], ' (%d+)')
    return band + floor((start and tonumber(start) or now) / 1000) % FRONT
  end

  -- Puts the task in line: at its end or where its lane goes on, behind those of its group who are
  -- parked, or, with its turn come, where that was.
  function score_for(mine, empty)
    local priority, stride, lane = priority_of(rank)
    local band = -priority * BAND
    if mine then
      return own_place(band)
    end
    local from, to = whole(band), '(' .. whole(band + BAND)
    local text, score = not empty and held['Q' .. scope] or nil, nil
    local lanes = read_lanes(text)
    if lane ~= '' and text then
      local first = call('ZRANGEBYSCORE', line, whole(band + FRONT), to, 'WITHSCORES', 'LIMIT', '0', '1')[2]
      score = place_in_lane(lanes, band, lane, tonumber(first))
    end
    if not score then
      local last = call('ZREVRANGEBYSCORE', line, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]
      score = place_after(tonumber(last), band, now)
    end
    score = behind_parked(score, there >= 6 and call('ZSCORE', parked, scope .. '\0:' .. group_of(ticket)), band)
    if text or lane ~= '' then
      take_place(lanes, band, lane, stride, score)
      note('Q' .. scope, lanes_text(lanes))
    end
    return score
  end
end

-- The scope's tag at the level of a rule, that it takes slots for where it has none.
local function tag_for(shares, name)
  local seat = held['S' .. scope]
  if seat then
    local its, rank = parts_of(seat)
    shares_of(shares, its, unpack7(rank, 4))
  else
    take_slots(shares)
  end
  return tag_at(shares, name)
end

-- Whether a task that is first may wait in the round of a name.
local function meets(rules, name)
  if #rules == 0 then
    return name ~= NO_RULE
  end
  for i = 1, #rules do
    if round_of(i) == name then
      return true
    end
  end
  return false
end

-- Gives the scope a seat, or a better one, with a rule of the task's own; returns in how many
-- µs to look at it.
local FOREVER, overdue = 9007199254740991, nil
local function sit(rules, shares, score, held_up, start, binding)
  local had, name, stamp = held['S' .. scope], NO_RULE, nil
  if had then
    local rank
    name, rank = parts_of(had)
    stamp = unpack7(rank, 4)
  end
  if not meets(rules, name) then
    name = round_of(held_up or overdue and binding or waits_for(rules, start, binding))
    stamp = tag_for(shares, name)
    save_shares(shares)
  end
  local seat = seat_of(name, rank_of(score, stamp), scope)
  comes[seat] = true
  if had and had ~= seat then
    comes[had] = false
  end
  note('S' .. scope, seat)
  write_round()
  write_at()
  if seat_after(name) ~= seat then
    return -1
  end
  local look = held_up and now or min(max(now, start - lead), overdue or FOREVER, heeds and now + TOLD_LOOK or FOREVER)
  call('ZADD', due, 'LT', whole(look), name)
  keep_waiting(start - now, due, round, at)
  return look - now
end

-- Has a round looked at whose time to look was lost, as a key is that somebody deletes or a
-- server evicts: without it nobody is woken, and tasks come back as this one has. And puts a
-- seat where it belongs that a worker of an earlier version took to a round by another's stamp.
local function heal(shares)
  local seat = held['S' .. scope]
  local name, rank = parts_of(seat)
  local band, stamp = numbers_of(rank)
  local tag = stamp
  if name ~= NO_RULE and #shares > 1 then
    tag = tag_for(shares, name)
    save_shares(shares)
  end
  if tag < stamp then
    comes[seat] = false
    seat = seat_of(name, rank_of((band - LOWEST) * BAND, tag), scope)
    comes[seat] = true
    note('S' .. scope, seat)
  end
  write_round()
  write_at()
  if call('ZSCORE', due, name) then
    return -1
  end
  call('ZADD', round, '0', seat)
  call('ZADD', due, whole(now), name)
  keep_waiting(0, round, due)
  return 0
end

local function join(rules, mine, held_up, start, binding)
  local stood, card, shares = call('ZSCORE', line, ticket), call('ZCARD', line), levels()
  sums((card == 0 or stood and #shares > 1) and shares)
  local score = stood and tonumber(stood) or parked_before and had_place or score_for(mine, card == 0)
  if not stood then
    call('ZADD', line, whole(score), ticket)
  end
  arrive()
  local place = call('ZRANK', line, ticket)
  local others = stood and card - 1 or card
  local expected = expected_in(rules, others > 0 and place / others or 0)
  local keeps = keep_waiting(max(0, expected), line)
  if not stood then
    count(1, card == 0 and 1 or 0)
    if left_out ~= '' then
      note(MIXED, '1')
    end
  end
  local look, seat = -1, held['S' .. scope]
  local name = seat and parts_of(seat) or NO_RULE
  local misplaced = name ~= NO_RULE and not meets(rules, name)
  if not seat or place == 0 and (not stood or misplaced) then
    look = sit(rules, shares, score, held_up, start, binding)
  elseif stood then
    look = heal(shares)
    if keeps then -- what all lines share lives no shorter, where nobody looks
      keep_waiting(max(0, expected), due, round, at)
    end
  end
  write_at()
  if mine then
    look = 0
    freed(due, at, names_of_rules(n, #provider), now) -- what was set aside for it may do for others
  end
  return place, expected, look
end

-- Adds the three numbers of a turn to a general reply.
local function with_turn(reply, place, expected, look)
  local last = #reply
  reply[last + 1], reply[last + 2], reply[last + 3] = place, expected, look
  return reply
end

local start, binding, sure = joint_start(rules, now + from)
local held_up = parked_before and 1 or nil
if not quiet and not held_up then
  held_up = not mine and waited_for() or nil
  overdue = not mine and not held_up and reserve(rules) or nil
  if overdue then
    start, binding, sure = joint_start(rules, now + from)
    binding = waits_for(rules, start, binding)
    rules = read_rules()
  end
end

if sure and not held_up and start - now <= ahead and again < '2' then
  local reply = grant(rules, start, binding)
  if reply then
    arrive()
    if not quiet and not released then
      leave()
    end
    return with_turn(reply, -1, 0, quiet and -1 or 0)
  end
  rules = read_rules()
end

-- What this attempt has been, as in decide.
local before = call('GET', attempt)
if before and sub(before, -#member) ~= member then
  before = nil
end
if before and #before == 7 * (n + 1) + #member then
  arrive()
  return with_turn(granted_before(rules, before), -1, 0, -1)
end
if from > 0 then
  start, binding = joint_start(rules, now)
end
mend(rules)
local reply = denied(rules, now, start, held_up or binding)
if before then
  arrive()
  return with_turn(reply, -1, -1, -1)
end
return with_turn(reply, join(rules, mine, held_up, start, binding))
