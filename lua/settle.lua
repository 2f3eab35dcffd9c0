-- settle: charge an attempt what it has spent, whatever it was granted, or take its grant back.
--
-- What it has spent less comes back in its place, as nearly as each algorithm can: exactly under
-- windows; of a token bucket no more than has provably not been refilled meanwhile. What it has spent
-- more is charged now as a debt, even where it does not fit, as far as the rule then holds no more than
-- twice its capacity; what is above that is charged to nobody. It may be settled again: what counts is
-- what was recorded last. A grant is taken back once, places of concurrency rules included, and not
-- settled after that. Sent again the call changes nothing, and answers the same.
--
-- KEYS[1..n]  rule      state of rule i; n = #KEYS - 5. See include/layout.lua.
-- KEYS[n+1]   mark      string, "X" and the attempt id when it was taken back. May be the same key as the next.
-- KEYS[n+2]   attempt   string, the grant's record; once it is taken back "X" and the attempt id, unless it is
--                       the record of another attempt by now.
-- KEYS[n+3]   settled   hash: by rule what is recorded, see include/settled.lua; "#" the id and the answer of
--                       the last call, or "X" when it was taken back.
-- KEYS[n+4]   schedule  sorted set of blocked nodes. See include/waiting/tree.lua, here and for the next.
-- KEYS[n+5]   meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3]     call      the id of this call; "" takes the grant back.
-- ARGV[4]     until     integer µs since the epoch: from then on what was granted does not come back, unless
--                       it is recorded.
-- ARGV[5]     stay      integer ms > 0, how long the record is kept: longer than until.
-- ARGV[6]     since     integer µs since the epoch that the clock shows at least, unless it has stepped back since
--                       the grant: then units have moved, and none come back. 0 where nobody knows.
-- ARGV[7..]   rules     five for each rule: the rule; where nothing is recorded any more, integer units that
--                       it is charged, their place (as decide returned it; 0 for units that do not come
--                       back), and integer units that it has spent besides; integer units that it has
--                       spent. Of a concurrency rule 1 where it has a place, and zeros. See include/rules.lua.
--
-- Returns  {done, now, then three for each rule: back, debt, over}
--          done  1, 0 when the grant was taken back before, -1 when a rule's calendar is of another time and
--                nothing was changed
--          now   integer µs, the clock of this call
--          back  integer units that came back, rounded down; 1 for a freed place
--          debt  integer units that were charged besides
--          over  integer units spent that are charged to nobody
--
-- Writes   KEYS[1..n] that took something back or were charged, KEYS[n+1..n+3], and KEYS[n+4] where tasks wait
--          for them.
-- Source   docs/algorithms.md#settling

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

local n, member, id = #KEYS - 5, ARGV[2], ARGV[3]
local mark, attempt, settled, schedule, meta = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local provider = string.match(schedule, '^(.*)![^!]*$')
local taken_back = char(GIVEN_BACK) .. member
local moved, last = now < tonumber(ARGV[6]), redis.call('HGET', settled, '#')

-- A bucket's numbers stay exact below this.
local MOST_LEVEL = 6755399441055744

-- What may be charged beyond what fits: a rule holds no more than two capacities.
local function room(r)
  r.cap = 2 * r.cap
  local units = algorithms[r.kind].remaining(r, now)
  r.cap = r.cap / 2
  return r.kind == 'T' and min(units, max(0, floor((MOST_LEVEL - r.x) / r.q))) or units
end

-- What is recorded under a rule, or else what the caller knows of.
local function recorded(name, charged, place, over)
  local had = last and redis.call('HGET', settled, name)
  local parts = { place, charged }
  if had then
    parts, over = read_settled(had)
  elseif charged == 0 then
    parts = {}
  end
  for j = 1, (moved or not had and now >= tonumber(ARGV[4])) and #parts or 0, 2 do
    parts[j] = 0
  end
  return parts, over
end

-- Charges units as a debt, in r alone.
local function owe(r, parts, units)
  r.cost = units
  parts[#parts + 1] = algorithms[r.kind].charge(r, now, now)
  parts[#parts + 1] = units
  if #parts > 2 * MOST_PLACES then
    parts[3], parts[4] = 0, parts[4] + parts[6]
    table.remove(parts, 6)
    table.remove(parts, 5)
  end
  r.changed = true
end

local function settle(i, r)
  local name, given = sub(KEYS[i], #provider + 1), {}
  for j = 1, 4 do
    given[j] = tonumber(ARGV[5 * i + 2 + j])
  end
  local charged, place, besides, spent = unpack(given)
  if r.kind == 'C' then
    return charged > 0 and algorithms.C.refund(r) or 0, 0, 0
  end
  local parts, over = recorded(name, charged, place, besides)
  local more, back, debt = spent - over, 0, 0
  for j = 2, #parts, 2 do
    more = more - parts[j]
  end
  if more > 0 then
    debt = min(more, room(r))
    over = over + more - debt
    if debt > 0 then
      owe(r, parts, debt)
    end
  elseif more < 0 then
    local less = -more
    local free = min(over, less)
    over = over - free
    back = take_back(r, parts, less - free)
  end
  if id ~= '' then
    redis.call('HSET', settled, name, settled_text(parts, over))
  end
  if r.changed then
    algorithms[r.kind].save(r, now, now)
  end
  return back, debt, over
end

local out = { 1, now }
for i = 3, 3 * n + 2 do
  out[i] = 0
end
if last == char(GIVEN_BACK) or redis.call('GET', mark) == taken_back then
  out[1] = 0
  return out
elseif id ~= '' and last and sub(last, 1, #id) == id then
  for i = 3, 3 * n + 2 do
    out[i] = unpack7(last, #id + 7 * i - 20)
  end
  return out
end
local rules = {}
for i = 1, n do
  rules[i] = load_rule(i, ARGV[5 * i + 2], 1, member, now)
  if rules[i].stale and id ~= '' then
    out[1] = -1
    return out
  end
end
if id == '' then -- noted before anything comes back, so that it does so once
  local record = redis.call('GET', attempt)
  if record and sub(record, -#member) == member then
    redis.call('SET', attempt, taken_back, 'PX', '60000')
  end
  redis.call('SET', mark, taken_back, 'PX', '60000')
  if last then
    redis.call('HSET', settled, '#', char(GIVEN_BACK))
  end
end
local answer = id
for i = 1, n do
  out[3 * i], out[3 * i + 1], out[3 * i + 2] = settle(i, rules[i])
  answer = answer .. pack(out[3 * i]) .. pack(out[3 * i + 1]) .. pack(out[3 * i + 2])
end
if id ~= '' then
  redis.call('HSET', settled, '#', answer)
  redis.call('PEXPIRE', settled, ARGV[5])
end
freed(schedule, meta, names_of_rules(n, #provider), now)
return out
