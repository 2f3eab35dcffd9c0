-- settle: charge an attempt what it has spent, whatever it was granted.
--
-- What it has spent less comes back, in its place, as by give_back. What it has
-- spent more is charged now, as a debt, even where it does not fit, so that nobody
-- starts until it is paid: as far as the rule then holds no more than twice its
-- capacity. What is above that is charged to nobody. It may be settled again: what
-- counts is what was recorded last. Sent again it changes nothing, and answers the
-- same.
--
-- KEYS[1..n]  rule      state of rule i, none a concurrency rule; n = #KEYS - 4. See include/layout.lua.
-- KEYS[n+1]   mark      string, "X" and the attempt id when it was given back.
-- KEYS[n+2]   settled   hash: by rule what is recorded, see include/settled.lua; "#" the id and the answer of
--                       the last call, or "X" when it was given back.
-- KEYS[n+3]   schedule  sorted set of blocked nodes. See include/waiting/tree.lua, here and for the next.
-- KEYS[n+4]   meta      hash of nodes.
--
-- ARGV[1]     clock     "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     member    the attempt id.
-- ARGV[3]     call      the id of this call.
-- ARGV[4]     until     integer µs since the epoch: from then on what was granted does not come back, unless
--                       it is recorded.
-- ARGV[5]     stay      integer ms > 0, how long the record is kept: longer than until.
-- ARGV[6]     since     integer µs since the epoch that the clock shows at least, unless it has stepped back since
--                       the grant: then units have moved, and none come back. 0 where nobody knows.
-- ARGV[7..]   rules     five for each rule: the rule; where nothing is recorded any more, integer units that
--                       it is charged, their place (as decide returned it; 0 for units that do not come
--                       back), and integer units that it has spent besides; integer units that it has
--                       spent. See include/rules.lua.
--
-- Returns  {done, now, then three for each rule: back, debt, over}
--          done  1, 0 when the grant has been given back, -1 when a rule's calendar is of another time and
--                nothing was changed
--          now   integer µs, the clock of this call
--          back  integer units that came back, rounded down
--          debt  integer units that were charged besides
--          over  integer units spent that are charged to nobody
--
-- Writes   KEYS[1..n] that took something back or were charged, KEYS[n+2], and KEYS[n+3] where tasks wait for them.
-- Source   docs/algorithms.md#settling

-- #include clock
-- #include pack
-- #include layout
-- #include numbers
-- #include state
-- #include lease
-- #include token_bucket when T
-- #include sliding_window when S
-- #include calendar when K
-- #include rules
-- #include settled
-- #include waiting/freed

local n, member, id = #KEYS - 4, ARGV[2], ARGV[3]
local mark, settled, schedule, meta = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4]
local provider = string.match(schedule, '^(.*)![^!]*$')

local moved = now < tonumber(ARGV[6])

-- A bucket's numbers stay exact below this.
local MOST_LEVEL = 6755399441055744

-- What may be charged beyond what fits: a rule holds no more than two capacities.
local function room(r)
  r.cap = 2 * r.cap
  local units = algorithms[r.kind].remaining(r, now)
  r.cap = r.cap / 2
  return r.kind == 'T' and min(units, max(0, floor((MOST_LEVEL - r.x) / r.q))) or units
end

-- What is recorded under rule i, or else what the caller knows of.
local function recorded(i, name)
  local had, charged, over = redis.call('HGET', settled, name), tonumber(ARGV[5 * i + 3]), tonumber(ARGV[5 * i + 5])
  if had then
    local parts, unpaid = read_settled(had)
    for j = 1, moved and #parts or 0, 2 do
      parts[j] = 0
    end
    return parts, unpaid
  elseif charged == 0 then
    return {}, over
  end
  local place = 0
  if now < tonumber(ARGV[4]) and not moved then
    place = tonumber(ARGV[5 * i + 4])
  end
  return { place, charged }, over
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
  local name, spent = sub(KEYS[i], #provider + 1), tonumber(ARGV[5 * i + 6])
  local parts, over = recorded(i, name)
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
  redis.call('HSET', settled, name, settled_text(parts, over))
  if r.changed then
    algorithms[r.kind].save(r, now, now)
  end
  return back, debt, over
end

local last = redis.call('HGET', settled, '#')
local out = { 1, now }
for i = 3, 3 * n + 2 do
  out[i] = 0
end
if last == char(GIVEN_BACK) or redis.call('GET', mark) == char(GIVEN_BACK) .. member then
  out[1] = 0
  return out
elseif last and sub(last, 1, #id) == id then
  for i = 3, 3 * n + 2 do
    out[i] = unpack7(last, #id + 7 * i - 20)
  end
  return out
end
local rules = {}
for i = 1, n do
  rules[i] = load_rule(i, ARGV[5 * i + 2], 1, member, now)
  if rules[i].stale then
    out[1] = -1
    return out
  end
end
local answer = id
for i = 1, n do
  out[3 * i], out[3 * i + 1], out[3 * i + 2] = settle(i, rules[i])
  answer = answer .. pack(out[3 * i]) .. pack(out[3 * i + 1]) .. pack(out[3 * i + 2])
end
redis.call('HSET', settled, '#', answer)
redis.call('PEXPIRE', settled, ARGV[5])
freed(schedule, meta, names_of_rules(n, #provider), now)
return out
