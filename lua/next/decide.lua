-- decide: admit attempts of one provider, each under every rule on its path, or return when to try again.
--
-- Each attempt is decided after the ones before it. Either all its rules admit it and all are charged, at one start, or none is
-- charged. A denial changes nothing. Sent again, the call changes nothing and returns the first reply.
--
-- A task, an attempt of a waiter, takes its grant if it is in flight. If that has become too late, its units come back, and it is
-- decided before all that wait. Any other task is admitted only if no task waits for what its path shares: it is to join then.
--
-- KEYS[1]     prefix  of the provider's keys. See include/base.lua.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     call    the id of this call, 16 bytes.
-- ARGV[3]     record  the name of the key that keeps the reply; "" for none: the call has one attempt, with an id of its own, or
--                     only asks.
-- ARGV[4]     texts   integer, how many texts of rules follow: see include/rules.lua. Then four for each attempt, or for several
--                     that are alike:
--             scope   its path after the provider's name, such as "/acme/refunds"
--             ask     what it asks for: a byte, the sum of 1 for a call that only asks, 2 for an id of its own, and 4 for a task;
--                     a byte, the number of its text; numbers of seven bytes: how many attempts, how far ahead in µs a start may
--                     be, at most 60000000, how far ahead it must be, by how much the run may begin after its start, and the
--                     cost, 0 to take nothing
--             cost    by unit, "requests=1,tokens=5,"; "" for the cost in ask
--             id      the attempt id, or the waiter, "queue:id"; "" for none
--
-- Returns  in bytes, all numbers of seven bytes: the clock of this call; then for each attempt
--            status   a byte: 0 denied, 1 allowed, 2 allowed before, 3 a task that is to join, 4 its rules are out of date, 5 a task
--                     that takes its grant. After 4 nothing follows.
--            binding  a byte: the rule, from 1, that alone would admit it last; one more than there are rules for a pause, two
--                     more for a pause whose probe is on its way; 0 for none
--            start    µs since the epoch; of a denied attempt when it would start if no other came, 2^53 - 1 for never; of a task
--                     that had a grant and is to join, the score of its place
--            and for each rule: where it was charged, the units left, µs until it alone would admit the cost, and µs until it is
--            as if unused; 2^53 - 1 for never
--
-- Writes   the states of rules, the record, the records of attempts with an id, and what was in flight.
-- Source   docs/algorithms.md#one-decision

-- #include base
-- #include rules
-- #include flight

-- How long a grant may be claimed after its start.
local CLAIMABLE = 2000

local id, record, texts_end = ARGV[2], ARGV[3], 4 + tonumber(ARGV[4])
local out, formats, anonymous, records = {}, {}, false, {}

-- Whether tasks wait at all: most calls find none.
local waits, flies
local function look_for_waiters()
  waits = call('EXISTS', P .. 'ready', P .. 'blocked', P .. 'recheck') > 0
  flies = call('EXISTS', flight) == 1
end

-- Whether any task waits for what a path shares: a node of the path is blocked, or has children that could be served, in a queue
-- that is served.
local function held_up(its, scope, queue)
  local nodes, lists = { '' }, {}
  for level = 1, #its.weights do
    nodes[level + 1] = node(scope, level)
  end
  for _, key in ipairs({ 'blocked', 'recheck' }) do
    for _, at in ipairs(call('ZMSCORE', P .. key, unpack(nodes))) do
      if at then
        return true
      end
    end
  end
  local queues = call('HGETALL', P .. 'queues')
  for i = 1, #queues, 2 do
    local q = queues[i]
    if q == queue or tonumber(queues[i + 1]) > now - 10000000 and byte(q) ~= 42 and byte(q) ~= 35 then
      lists[#lists + 1] = P .. 'q:' .. q .. ':' .. scope
      for r = 1, its.many do
        lists[#lists + 1] = P .. 'ready:' .. q .. ':' .. its[r].blocks
      end
    end
  end
  return #lists > 0 and call('EXISTS', unpack(lists)) > 0
end

local function reply(its, status, by, start, places, retries)
  local n, numbers = its.many, {}
  for i = 1, n do
    local r = its[i]
    local of, k = r.its, 4 * i
    numbers[k - 3], numbers[k - 2] = places and places[i] or 0, of.left(r)
    numbers[k - 1], numbers[k] = retries and retries[i] or 0, min(EXACT, of.reset(r))
  end
  formats[n] = formats[n] or '>BBI7' .. string.rep('I7', 4 * n)
  out[#out + 1] = packed(formats[n], status, by, start, unpack(numbers, 1, 4 * n))
end

-- µs until each rule alone would admit the cost, or one unit if it takes nothing.
local function retries_of(its, cost, lease)
  local retries = {}
  for i = 1, its.many do
    local r = its[i]
    local t = r.its.fit(r, now, max(1, units(r, cost)), lease)
    retries[i] = t and t - now or EXACT
  end
  return retries
end

local function deny(its, cost, lease, status, score)
  local start = joint(its, cost, now, lease)
  local _, by = binding(its, cost, lease)
  if by and by > its.many then
    local r = its[by]
    by = its.many + (r.trial > 0 and r.trial <= now and 2 or 1)
  end
  reply(its, status, by or 0, score or start or EXACT, nil, retries_of(its, cost, lease))
end

local function allow(its, a, start, lease, places)
  local retries = start > now and retries_of(its, a.cost, lease)
  places = places or charge(its, start + a.leeway, a.cost, lease)
  reply(its, 1, 0, start, places, retries)
  if a.own then
    records[#records + 1] = a
    a.text = out[#out]
  else
    anonymous = true
  end
end

-- The grant of a task that is in flight. True if it was taken; else nil, and the score of its place if it was too late.
local function claim(its, a)
  local value = call('HGET', flight, a.id)
  if not value then
    return nil
  end
  local g = read_grant(value)
  local ours = g.policy == its.policy and g.scope == a.scope
  landed(a.id)
  if ours and g.start + CLAIMABLE >= now then
    anonymous = true
    reply(its, 5, 0, g.start, g.places)
    return true
  end
  refund(its, g.places, g.start, g.cost, lease_of(a.id, g.start), not ours)
  return nil, g.score
end

local function decide(a, its, number)
  local lease, score = a.own and a.id or id .. '.' .. number, nil
  if a.task then
    if waits == nil then
      look_for_waiters()
    end
    lease = nil
    local taken
    if flies then
      taken, score = claim(its, a)
    end
    if taken then
      return
    elseif waits and not score and held_up(its, a.scope, match(a.id, '^[^:]*')) then
      return deny(its, a.cost, nil, 3)
    end
  end
  local start, _, sure = joint(its, a.cost, now + a.from, lease)
  if not (start and sure and start <= now + a.ahead) then
    return deny(its, a.cost, lease, a.task and 3 or 0, score)
  end
  lease = lease or lease_of(a.id, start)
  if a.peek then
    reply(its, 1, 0, start, nil, a.cost == 0 and retries_of(its, 0, lease))
  else
    allow(its, a, start, lease)
  end
end

local count = 0
for i = texts_end + 1, #ARGV, 4 do
  local flags, text, many, ahead, from, leeway, cost = unpacked('>BBI7I7I7I7I7', ARGV[i + 1])
  local a = { scope = ARGV[i], ahead = ahead, from = from, leeway = leeway, cost = ARGV[i + 2] ~= '' and ARGV[i + 2] or cost,
    id = ARGV[i + 3], peek = flags % 2 == 1, own = flags % 4 >= 2, task = flags >= 4 }
  local its = policy(a.scope, ARGV[4 + text])
  local before = a.own and not a.peek and call('GET', P .. 'a:' .. a.id)
  for _ = 1, many do
    count = count + 1
    if now >= its.ends then
      out[#out + 1] = '\4'
    elseif before and sub(before, 1, #a.scope + 1) == a.scope .. '\n' then
      out[#out + 1] = '\2' .. sub(before, #a.scope + 3)
    else
      decide(a, its, count)
    end
  end
end

local answer = table.concat(out)
if record ~= '' and anonymous then
  local before = call('SET', P .. 'c:' .. record, id .. answer, 'PX', '31000', 'GET')
  if before and sub(before, 1, 16) == id then -- sent before: its reply was lost
    call('SET', P .. 'c:' .. record, before, 'PX', '31000')
    return packed('>I7', now) .. sub(before, 17)
  end
end
save()
for _, a in ipairs(records) do
  call('SET', P .. 'a:' .. a.id, a.scope .. '\n' .. a.text, 'PX', '30000')
end
return packed('>I7', now) .. answer
