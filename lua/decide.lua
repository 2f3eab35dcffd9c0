-- decide: admit attempts of one provider, each under every rule on its path, or return when to try again.
--
-- Each attempt is decided after the ones before it. Either all its rules admit it and all are charged, at one start, or none is
-- charged. A denial changes nothing. Sent again, the call changes nothing and returns the first reply.
--
-- A task, an attempt of a waiter, takes its grant if it is in flight. If it is too late for that, or says so of the one that it took,
-- its units come back, and it is decided before all that wait. Any other task is admitted only if no task waits for what its path shares: it is to join then.
--
-- KEYS, ARGV[1] are in include/base.lua.
-- ARGV[2]     call    the id of this call, 16 bytes.
-- ARGV[3]     record  the name of the key that keeps the reply; "" for none: the call has one attempt, with an id of its own, or only asks
-- ARGV[4]     texts   integer, how many texts of rules follow: see include/rules.lua. Then for each attempt, or for several alike:
--             ask     what it asks for: a byte, the sum of 1 for a call that only asks, 2 for an id of its own, 4 for a task, and 8 if it missed a grant;
--                     a byte, the number of its text; numbers of seven bytes: how many scopes ask for it, how many attempts of
--                     each, how far ahead in µs a start may be, at most 60000000, how far ahead it must be, by how much the run
--                     may begin after its start, and the cost, 0 to take nothing
--             cost    by unit, "requests=1,tokens=5,"; "" for the cost in ask. Of a task that missed a grant this, as in include/flight.lua
--             id      the attempt id, or the waiter, "queue:id"; "" for none
--             scopes  each is a path after the provider's name, such as "/acme/refunds"
-- Returns  in bytes, all numbers of seven bytes: the clock of this call; then for each attempt
--            status   a byte: 0 denied, 1 allowed, 2 allowed before, 3 a task that is to join, 4 its rules are out of date, 5 a task
--                     that takes its grant, 6 a task that had a grant and is to join. 16 more for a probe. After 4 nothing follows.
--            member   of a scope with a pool alone: the length of the name of the member whose rules are the last ones, in two bytes, and the name
--            binding  a byte: the rule, from 1, that alone would admit it last; one more than there are rules for a pause, two
--                     more for a pause whose probe is on its way; 0 for none
--            start    µs since the epoch; of a denied attempt when it would start if no other came; after 6 the score of its place
--            and for each rule: where it was charged, the units left, µs until it alone would admit the cost, and µs until it is as if
--            unused. 2^53 - 1 is never.
-- Writes   the states of rules, the record, the records of attempts with an id, and what was in flight.
-- Source   docs/algorithms.md#one-decision

-- #include base
-- #include rules
-- #include flight

local CLAIMABLE = 2000 -- how long after its start a grant may be claimed
local id, record, texts_end = ARGV[2], ARGV[3], 4 + tonumber(ARGV[4])
local out, formats, anonymous, records = {}, {}, false, {}

-- Whether any task waits for what a path shares: a node of the path is blocked, or has children that could be served, in a queue
-- that is served.
local function held_up(its, scope, queue)
  local nodes, lists = {}, {}
  for level = 0, #its.weights do nodes[level + 1] = node(scope, level) end
  for _, key in ipairs({ 'blocked', 'recheck' }) do
    for _, at in ipairs(call('ZMSCORE', P .. key, unpack(nodes))) do
      if at then return true end
    end
  end
  local queues = call('HGETALL', P .. 'queues')
  for i = 1, #queues, 2 do
    local q = queues[i]
    if q == queue or q ~= '*' and q ~= '#' and tonumber(queues[i + 1]) > now - 10000000 then
      lists[#lists + 1] = P .. 'q:' .. q .. ':' .. scope
      for r = 1, its.many do lists[#lists + 1] = P .. 'ready:' .. q .. ':' .. its[r].node end
      if its.pool then lists[#lists + 1] = P .. 'ready:' .. q .. ':' .. its.node end
    end
  end
  return #lists > 0 and call('EXISTS', unpack(lists)) > 0
end

-- µs until each rule alone would admit the cost, or one unit if it takes nothing.
local function retries_of(its, costs, lease)
  local retries = {}
  for i = 1, its.many do
    local t = its[i].its.fit(its[i], now, max(1, costs[i]), lease)
    retries[i] = t and t - now or EXACT
  end
  return retries
end

local numbers = {}
local function reply(its, status, by, start, at, retries)
  local n = its.many
  for i = 1, n do
    local k = 4 * i
    numbers[k - 3], numbers[k - 1] = at and at[i] or 0, retries and retries[i] or 0
    numbers[k - 2], numbers[k] = its[i].its.show(its[i])
  end
  formats[n] = formats[n] or '>BBI7' .. string.rep('I7', 4 * n)
  local text = packed(formats[n], status, by, start, unpack(numbers, 1, 4 * n))
  local name = its.pool and '' or its.member and its.member.of.name
  if name then text = sub(text, 1, 1) .. packed('>I2', #name) .. name .. sub(text, 2) end
  out[#out + 1] = text
end

local function deny(of, a, lease, status, place)
  local its, costs, start = rules.choose(of, a.cost, now, lease)
  local _, by = rules.binding(its, costs, now, lease)
  if by and by > its.many then by = its.many + (its[by].probes > 0 and its[by].ends <= now and 2 or 1) end
  reply(its, status, by or 0, place or start or EXACT, nil, retries_of(its, costs, lease))
end

-- Takes the grant of a task that is in flight: returns true if it is in time. Else it comes back, and what follows is nil, the score
-- of the place that it had, and its rules.
local function claim(of, a)
  local value = not a.missed and call('HGET', flight, a.id)
  local g = a.missed or value and read_grant(value)
  if not g then return nil end
  local its = rules.granted(of, g)
  local ours = g.shape == its.shape and g.scope == a.scope
  if value then landed(a.id) end
  anonymous = true
  if ours and g.start + CLAIMABLE >= now then
    reply(its, g.probe and 21 or 5, 0, g.start, g.places)
    return true
  end
  rules.refund(its, g.places, g.start, rules.costs(its, g.cost), lease_of(a.id, g.start), not ours)
  return nil, g.score, its
end

local waits, flies
local function decide(a, of, number)
  local lease, taken, place, freed = a.own and a.id or id .. '.' .. number, false, nil, nil
  if a.task then
    lease = nil
    if waits == nil then waits, flies = call('EXISTS', P .. 'ready', P .. 'blocked', P .. 'recheck') > 0, call('EXISTS', flight) == 1 end
    if flies or a.missed then taken, place, freed = claim(of, a) end
    if taken then return end
    if not place and waits and held_up(of, a.scope, match(a.id, '^[^:]*')) then return deny(of, a, nil, 3) end
  end
  local its, costs, start, _, sure = rules.choose(of, a.cost, now + a.from, lease, a.task and of.pool and of.pool.waits)
  local admitted = start and sure and start <= now + a.ahead
  if freed and not (admitted and freed == its) then -- its units came free, and another member may have admitted it
    for _, r in ipairs(freed) do rules.due(r.node) end
  end
  if not admitted then return deny(of, a, lease, place and 6 or a.task and 3 or 0, place) end
  lease = lease or lease_of(a.id, start)
  local retries = (start > now or a.cost == 0) and retries_of(its, costs, lease)
  local at = not a.peek and rules.charge(its, start, costs, lease, a.leeway)
  reply(its, at and rules.is_probe(its) and 17 or 1, 0, start, at, retries)
  if a.own and not a.peek then records[#records + 1], a.text = a, out[#out] end
  anonymous = anonymous or not a.own and not a.peek
end

-- Admits plain attempts of a scope that all its rules admit now, as decide does, in less time: none of them asks for more than a
-- start, and all rules are buckets or windows, which no report changes. Returns how many it has admitted.
local rules_met = {}
local function admit(scope, of, cost, many)
  local n, met = #of.rules, rules_met
  for i = 1, n do met[i] = rules.state(of.rules[i], scope) end
  formats[n] = formats[n] or '>BBI7' .. string.rep('I7', 4 * n)
  for done = 1, many do
    for i = 1, n do
      if met[i].its.fit(met[i], now, cost) ~= now then return done - 1 end
    end
    for i = 1, n do
      local r, k = met[i], 4 * i
      numbers[k - 3], numbers[k - 1] = r.its.charge(r, now, cost), 0
      numbers[k - 2], numbers[k] = r.its.show(r)
      dirty(r)
    end
    out[#out + 1] = packed(formats[n], 1, 0, now, unpack(numbers, 1, 4 * n))
    anonymous = true
  end
  return many
end

local count = 0
local function general(scope, i, flags, text, many, ahead, from, leeway, cost)
  local missed = flags >= 8 and read_grant(ARGV[i + 1]) or nil
  local a = { scope = scope, ahead = ahead, from = from, leeway = leeway, cost = missed and missed.cost or ARGV[i + 1] ~= '' and ARGV[i + 1] or cost,
    id = ARGV[i + 2], peek = flags % 2 == 1, own = flags % 4 >= 2, task = flags >= 4, missed = missed }
  local its = rules.of(scope, text)
  local before = a.own and not a.peek and call('GET', P .. 'a:' .. a.id)
  for _ = 1, many do
    count = count + 1
    if its.outdated then
      out[#out + 1] = '\4'
    elseif before and sub(before, 1, #scope + 1) == scope .. '\n' then
      out[#out + 1] = '\2' .. sub(before, #scope + 3)
    else
      decide(a, its, count)
    end
  end
end

local i = texts_end + 1
while ARGV[i] do
  local flags, number, scopes, many, ahead, from, leeway, cost = unpacked('>BBI7I7I7I7I7I7', ARGV[i])
  local text = ARGV[4 + number]
  texts[text] = texts[text] or rules.read(text)
  local of = texts[text]
  local plain = flags == 0 and from == 0 and leeway == 0 and cost > 0 and of.plain and not reported and ARGV[i + 1] == '' and now >= of.from and now < of.ends
  for j = i + 3, i + 2 + scopes do
    local admitted = plain and admit(ARGV[j], of, cost, many) or 0
    count = count + admitted
    if admitted < many then general(ARGV[j], i, flags, text, many - admitted, ahead, from, leeway, cost) end
  end
  i = i + 3 + scopes
end
local answer = table.concat(out)
if record ~= '' then
  local key, before = P .. 'c:' .. record, nil
  if anonymous then before = call('SET', key, id .. answer, 'PX', '31000', 'GET') else before = call('GET', key) end
  if before and sub(before, 1, 16) == id then -- sent before: its reply was lost
    if anonymous then call('SET', key, before, 'PX', '31000') end
    return packed('>I7', now) .. sub(before, 17)
  end
end
rules.save()
for _, a in ipairs(records) do call('SET', P .. 'a:' .. a.id, a.scope .. '\n' .. a.text, 'PX', '30000') end
return packed('>I7', now) .. answer
