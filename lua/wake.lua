-- wake: release the tasks whose turn is near, each rule's waiters in their order.
--
-- It sees what the limiter holds, sets aside in memory what released tasks will
-- take that have not come yet, and takes from each round that is due the first
-- seat's first task, as long as its start under all its rules is near. A seat
-- whose task waits for another rule moves to that rule's round. Nothing is charged
-- and no state of a rule is changed, but for what a clock that stepped back has left in the future. Sent again under its id it answers with the
-- same tasks, as far as they have not come.
--
-- KEYS[1..n]  rule    state of rule i of those that the scopes meet; n is ARGV[9]. See include/layout.lua.
-- KEYS[n+1]   due     sorted set of rules by the time to look. See include/turns/lines.lua, here and below.
-- KEYS[n+2]   round   sorted set of seats.
-- KEYS[n+3]   out     hash of released tasks.
-- KEYS[n+4]   at      hash of seats by scope, and of sums.
-- KEYS[n+5]   told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+6..] line    the waiting tasks of a scope, one for each of s scopes.
-- KEYS[n+s+6] parked  sorted set of tasks out of their lines for now. See include/wake/parked.lua.
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
--                     that the caller cannot wake; after a "!" those of one that it leaves to others
--                     to release. See include/turns/lines.lua for "1,3*2,4".
-- ARGV[n+s+10..] news three for each task: "f" it does not exist any more, whether it was released or
--                     stands in line; of one that was released and could not be run "a" it does not
--                     exist yet, to be tried again, "r" it is running; "b" it was parked and goes back
--                     to its line; then its scope; its ticket. Or "s", any scope, and a group that
--                     stands still: what its tickets' names begin with, up to and with their first slash.
--
-- Returns  {times, released, missing, near, slow}, each a list:
--          times     {now, next, out, parked}: integer µs, the clock of this call, and when to look again, 0
--                    when nobody waits; how many tasks that this caller released have not come; 1 while
--                    any are parked
--          released  two for each task: its scope and its ticket, in the order of their turns
--          missing   the scopes that were met and are not among KEYS, each once
--          near      scopes whose turns are next, the first few of each rule that is
--          slow      a ticket of each group of which somebody was released and is slow to come
--
-- Writes   KEYS[n+1..n+4] and KEYS[n+6..n+s+6], KEYS[1..n] and KEYS[n+5] after a step of the clock. Nothing
--          when nobody waits.
-- Source   docs/turns.md#waking

-- #include clock
-- #include pack
-- #include layout

local call = redis.call
local n = tonumber(ARGV[9])
local due, round, out_key, at, told = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local there -- a key counts as often as it is named
do
  local parked = KEYS[#KEYS]
  there = call('EXISTS', due, out_key, told, told, told, parked, parked, parked, parked, parked, parked)
end
local heeds = there % 6 >= 3
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

-- How soon to look again at what can't be woken: a task that is too dear while an API's limit is
-- lower, or a scope that the caller doesn't know; and how soon to look at a suspended rule, which
-- a change of its limit brings up sooner.
local AGAIN, SUSPENDED = 1000000, 3600000000

-- How many scopes of a level to look at for one whose turn it rather is.
local RIVALS = 8

-- #include wake/lines
-- #include wake/parked
-- #include wake/news
-- #include wake/seats
-- #include wake/rivals
-- #include wake/aside
-- #include wake/turn

local served = {}

-- Lets all rounds be looked at now.
local function look_at_all()
  local names = call('ZRANGEBYSCORE', due, '(' .. whole(now), '+inf')
  for i = 1, #names do
    call('ZADD', due, 'XX', whole(now), names[i])
  end
end

-- Leases that were written before the clock has stepped back would end later by the step, and who has
-- died keep a place for as long. Those that end behind what the clock had come to are set to end a lease from
-- now: no sooner than they should, however often. Those written since end before that, until the clock is
-- nearly there again. Not every call knows of all rules, so the moment is remembered until then.
local function bring_leases_back()
  local had = held[STEPPED]
  local from = beat - now > FAR_AHEAD and beat or had and unpack7(had, 1)
  if not from then
    return
  elseif now + FAR_AHEAD >= from then
    note(STEPPED, false)
    return
  elseif from == beat then
    note(STEPPED, pack(from))
  end
  for i = 1, n do
    local lease = byte(ARGV[9 + i]) == HELD and unpack7(ARGV[9 + i], 9)
    if lease and now + lease + FAR_AHEAD < from then
      local ends = call('ZRANGEBYSCORE', KEYS[i], '(' .. whole(from), '+inf')
      for j = 1, #ends do
        call('ZADD', KEYS[i], 'XX', 'LT', whole(now + lease), ends[j])
      end
    end
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

-- #include wake/save

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

if there % 3 == 0 and not parking.news then
  if parking.parks then
    keep_waiting(0, parking.key)
  end
  return { { now, 0, 0, parking.parks and 1 or 0 }, {}, {}, {}, {} }
end
first_rules()
bring_leases_back()
heed_news()
parking.park_out()
reserve()
take_out()
write_round() -- the rounds are read from here on
local names = serve()
if #pauses.stepped > 0 then
  call('HSET', told, unpack(pauses.stepped))
end
parking.close_emptied()
local following = save(names)
if #released > 0 then
  overdue = overdue or now + STALE
  if call('PTTL', out_key) < 60000 then
    call('PEXPIRE', out_key, '60000')
  end
end
if following > 0 then
  following = min(following, overdue or following)
end
-- The first look of each minute keeps what waits, however soon it follows the one before.
if floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  local last = call('ZRANGE', due, '-1', '-1', 'WITHSCORES')[2]
  keep_waiting(max(0, (last or now) - now), due, round, at)
  for _, l in pairs(beat > 0 and lines or {}) do
    keep_waiting(0, l.key)
  end
end
if parking.parked or parking.parks and floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  keep_waiting(0, parking.key)
end
local still = parking.parks and call('EXISTS', parking.key) or 0
return { { now, following, out, still }, released, missing, ARGV[8] ~= '0' and near_scopes() or {}, parking.slow }
