-- settle: charge an attempt the units that it has spent, whatever it was granted, or take its grant back.
--
-- Units that it has not spent come back, as exactly as each algorithm can: exactly under windows; of a
-- token bucket no more than provably has not been refilled since. Units that it has spent beyond its
-- grant are charged now as a debt, even if they do not fit, up to twice the rule's capacity. Units above
-- that are not charged. An attempt may be settled again: the last record counts. A grant is taken back
-- once, including the places of concurrency rules, and cannot be settled after that. Sent again, the call
-- changes nothing, and returns the same.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 5. See include/core/layout.lua.
-- KEYS[n+1]   mark      string, "X" and the attempt id when it was taken back. May be the same key as the next.
-- KEYS[n+2]   attempt   string, the grant's record; once it is taken back, "X" and the attempt id, unless by then
--                       it is the record of another attempt.
-- KEYS[n+3]   settled   hash: by rule what is recorded, see include/core/settled.lua; "#" the id and the reply of
--                       the last call, or "X" when the grant was taken back.
-- KEYS[n+4]   schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[n+5]   meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3]     call      the id of this call; "" takes the grant back.
-- ARGV[4]     until     integer µs since the epoch: from then on granted units do not come back, unless
--                       they are recorded.
-- ARGV[5]     stay      integer ms > 0, how long the record is kept: longer than until.
-- ARGV[6]     since     integer µs since the epoch: if the clock is before it, the clock has stepped back since
--                       the grant. Then units have moved, and none come back. 0 if unknown.
-- ARGV[7..]   rules     five for each rule: the rule; for the case that nothing is recorded any more, integer units
--                       that it is charged, their place (as decide returned it; 0 for units that do not come
--                       back), and integer units that it has spent and was not charged; integer units that it
--                       has spent, or, to take the grant back, its start in µs if the rule is as it was then, else 0.
--                       For a concurrency rule 1 if it has a place, and zeros. See include/core/rules.lua.
--
-- Returns  {done, now, then three for each rule, then waits}: back, debt and over for each rule
--          done  1, 0 when the grant was taken back before, -1 when the boundaries of a calendar rule are out of
--                date and nothing was changed
--          now   integer µs, the clock of this call
--          back  integer units that came back, rounded down; 1 for a freed place
--          debt  integer units that were charged in addition
--          over  integer units that it has spent and is not charged
--          waits 1 if tasks wait for something that came back, else 0
--
-- Writes   KEYS[1..n] that got units back or were charged, KEYS[n+1..n+3], and KEYS[n+4] if tasks wait
--          for them.
-- Source   docs/algorithms.md#settling

-- #include core/clock
-- #include core/pack
-- #include core/layout
-- #include core/numbers
-- #include core/rules
-- #include fairshare/freed

local n, member, id = #KEYS - 5, ARGV[2], ARGV[3]
local mark, attempt, settled, schedule, meta = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local provider = string.match(schedule, '^(.*)![^!]*$')
local taken_back = char(GIVEN_BACK) .. member
local moved, last = now < tonumber(ARGV[6]), redis.call('HGET', settled, '#')

-- Refunds units, if nothing is recorded, and places; returns how many came back.
local function take(i, r)
  r.cost = tonumber(ARGV[5 * i + 3])
  if r.cost == 0 or moved and r.kind ~= 'C' then
    return 0
  end
  if not r.corrected and not r.raises and ARGV[5 * i + 6] ~= '0' then
    r.started = tonumber(ARGV[5 * i + 6])
  end
  local back = algorithms[r.kind].refund(r, now, tonumber(ARGV[5 * i + 4]))
  if r.changed then
    algorithms[r.kind].save(r, now, now)
  end
  return back
end

local settle
if id ~= '' or last then
  -- #include core/settled
end

local out = { 1, now }
for i = 3, 3 * n + 3 do
  out[i] = 0
end
-- The reply, after the tasks that wait for what came back are set to be checked now: also when the call is sent again
-- because its reply was lost.
local function answer(came_back)
  if freed(schedule, meta, names_of_rules(n, #provider), now) and came_back then
    out[3 * n + 3] = 1
  end
  return out
end

if last == char(GIVEN_BACK) or redis.call('GET', mark) == taken_back then
  out[1] = 0
  return answer(true)
elseif id ~= '' and last and sub(last, 1, #id) == id then
  for i = 3, 3 * n + 2 do
    out[i] = unpack7(last, #id + 7 * i - 20)
  end
  return answer(true)
end
local rules = {}
for i = 1, n do
  rules[i] = load_rule(i, ARGV[5 * i + 2], 1, member, now)
  if rules[i].stale and id ~= '' then
    out[1] = -1
    return out
  end
end
if id == '' then -- written before anything comes back, so that it comes back once
  local record = redis.call('GET', attempt)
  if record and sub(record, -#member) == member then
    redis.call('SET', attempt, taken_back, 'PX', '60000')
  end
  redis.call('SET', mark, taken_back, 'PX', '60000')
  if last then
    redis.call('HSET', settled, '#', char(GIVEN_BACK))
  end
end
for i = 1, n do
  if settle and rules[i].kind ~= 'C' then
    out[3 * i], out[3 * i + 1], out[3 * i + 2] = settle(i, rules[i])
  else
    out[3 * i] = take(i, rules[i])
  end
end
if id ~= '' then
  local text = id
  for i = 3, 3 * n + 2 do
    text = text .. pack(out[i])
  end
  redis.call('HSET', settled, '#', text)
  redis.call('PEXPIRE', settled, ARGV[5])
end
local came_back = false
for i = 1, n do
  came_back = came_back or out[3 * i] > 0 or rules[i].changed and out[3 * i + 1] == 0 -- or less than a unit came back
end
return answer(came_back)
