-- give_back: take a grant back, as nearly as each algorithm can, once.
--
-- Window rules give back exactly, in the place of the grant. A token bucket gives
-- back no more than it can prove has not been refilled meanwhile: it never holds
-- more than it would had the units not been taken. Places of concurrency rules
-- are freed. Of an attempt that was settled it is what is recorded that comes back.
-- Sent again within a minute it does nothing.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 5.
-- KEYS[n+1]   mark      string, "X" and the attempt id: given back. May be the same key as the next.
-- KEYS[n+2]   attempt   string, the grant's record; afterwards "X" and the attempt id, unless it
--                       is the record of another attempt by now.
-- KEYS[n+3]   schedule  sorted set of blocked nodes. See include/waiting/tree.lua, here and for the next.
-- KEYS[n+4]   meta      hash of nodes.
-- KEYS[n+5]   settled   hash, what settle has recorded of the attempt.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3]     since     integer µs since the epoch that the clock shows at least, unless it has stepped back since
--                       the grant: then units have moved, and none come back. 0 where nobody knows.
-- ARGV[4..]   rules     three for each rule: the rule, its cost, and place (as decide returned it); both 0
--                       for a rule that it was not granted under.
--                       See include/rules.lua.
--
-- Returns  {done, then one for each rule: back}
--          done  1, or 0 when the grant had been given back before
--          back  integer units that came back, rounded down; 1 for a freed place
--
-- Writes   KEYS[1..n] that took something back, KEYS[n+1..n+2], KEYS[n+3] where tasks wait for them, and
--          KEYS[n+5] of an attempt that was settled.
-- Source   docs/algorithms.md#giving-back

-- #include clock
-- #include pack
-- #include layout
-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include concurrency when C
-- #include calendar when K
-- #include rules
-- #include settled
-- #include waiting/freed

local n, member = #KEYS - 5, ARGV[2]
local mark, attempt, schedule, meta, settled = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local provider = string.match(schedule, '^(.*)![^!]*$')
local over = char(GIVEN_BACK) .. member
local moved = now < tonumber(ARGV[3])
local last = redis.call('HGET', settled, '#')
local first = redis.call('GET', mark) ~= over and last ~= char(GIVEN_BACK)
local out = { first and 1 or 0 }
if first then
  local rules = {}
  for i = 1, n do
    rules[i] = read_rule(i, 3 * i + 1, member, now)
  end
  local record = redis.call('GET', attempt)
  if record and sub(record, -#member) == member then
    redis.call('SET', attempt, over, 'PX', '60000')
  end
  redis.call('SET', mark, over, 'PX', '60000')
  if last then
    redis.call('HSET', settled, '#', char(GIVEN_BACK))
  end
  for i = 1, n do
    local r, algorithm = rules[i], algorithms[rules[i].kind]
    local record = last and redis.call('HGET', settled, sub(KEYS[i], #provider + 1))
    if moved and r.kind ~= 'C' then
      out[i + 1] = 0
    elseif record then
      out[i + 1] = take_back(r, (read_settled(record)), MOST_UNITS)
    elseif r.cost > 0 then
      out[i + 1] = algorithm.refund(r, now, tonumber(ARGV[3 * i + 3]))
    else
      out[i + 1] = 0
    end
    if r.changed then
      algorithm.save(r, now)
    end
  end
  freed(schedule, meta, names_of_rules(n, #provider), now)
else
  for i = 1, n do
    out[i + 1] = 0
  end
end
return out
