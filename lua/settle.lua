-- settle: report what became of granted attempts.
--
-- KEYS, ARGV[1] are in include/base.lua.
-- ARGV[2..]   six for each attempt:
--             lease   the id under which it holds places of concurrency rules
--             what    "ended": its run is over, and its places are free
--                     "kept": its run goes on, and it keeps its places for another lease, if it still holds them all
--                     "unused": all that it was granted comes back, as exactly as each algorithm can, once. Its id can be used again.
--                     "late": its run began late, and its units count from then on
--                     "spent": its units are those that it has spent. What it did not spend comes back; what it spent beyond its
--                     grant is charged now as a debt, even if it does not fit, up to twice the rule's capacity. The last report counts.
--             number  integer µs: how long its run held its places; by how much the run began late; or, for "spent", how long the
--                     record is kept
--             grant   what it was granted, as in include/flight.lua, with the scope and the cost
--             rules   the text of the scope's rules. See include/rules.lua.
--             charged for each rule three numbers of seven bytes: units charged, and spent beyond that and not charged, if no record
--                     says so; and, for "spent", the units that it has spent, 2^53 - 1 for a rule that stays as it is
-- Returns  in bytes: the clock of this call in seven bytes; a byte, 1 if tasks wait for what came back; then for each attempt a byte:
--          1 done, 0 its grant had come back before, or it has lost a place, 4 the rules are out of date and nothing was done; and if it was done three
--          numbers of seven bytes for each rule: the units that came back, that were charged as a debt, and that it has spent and is
--          not charged
-- Writes   the states of rules, run times, marks of what came back, records of what was spent, and when to look at blocked nodes.
-- Source   docs/algorithms.md#settling

-- #include base
-- #include rules
-- #include flight
-- #include run_times

local out, waits = {}, 0

local function freed(r) waits = max(waits, rules.due(r.node)) end

local verbs = {}

function verbs.ended(a, its)
  for i = 1, its.many do
    local r = its[i]
    if r.of.kind == 'C' and algorithm('C', 'rare').refund(r, 0, 1, a.lease) == 1 then
      dirty(r)
      note_run(P .. 't' .. sub(r.key, #P + 2), a.number)
      freed(r)
    end
  end
  for i = its.many + 1, #its do
    local r = its[i]
    if byte(r.key) == 66 and algorithm('P', 'rare').refund(r, 0, 1, a.lease) == 1 then -- it was the probe of a breaker
      dirty(r)
      freed(r)
    end
  end
end

function verbs.kept(a, its)
  local held = {}
  for i = 1, its.many do
    local r = its[i]
    if r.of.kind == 'C' and unpacked('>I7', a.charged, 21 * i - 20) > 0 then
      if tonumber(call('ZSCORE', r.key, a.lease) or 0) <= now then return false end
      held[#held + 1] = r
    end
  end
  for _, r in ipairs(held) do
    r.its.charge(r, now, 1, a.lease)
    dirty(r)
  end
  for i = its.many + 1, #its do
    if byte(its[i].key) == 66 and algorithm('P', 'rare').renew(its[i], a.lease) then dirty(its[i]) end
  end
end

-- The record of what was spent is for each rule what it is not charged, and where and how much it was charged: by its grant, and
-- as debts, of which only those of the last place can come back.
local function record_of(a, its)
  local v, list = call('GET', P .. 's:' .. a.lease), {}
  for i = 1, its.many do
    local units, over = unpacked('>I7I7', a.charged, 21 * i - 20)
    local place, debt_place, debt, last = a.grant.places[i] or 0, 0, 0, 0
    if v and unpacked('>I7', v) == its.shape then over, place, units, debt_place, debt, last = unpacked('>I7I7I7I7I7I7', v, 42 * i - 34) end
    if a.grant.shape ~= its.shape then place = 0 end
    list[i] = { over = over, place = place, units = units, debt_place = debt_place, debt = debt, last = last }
  end
  return list
end

-- Gives back units of a rule that were charged last: of the debts first, as far as their place is known.
local function take_back(r, its, less)
  local refund = algorithm(r.of.kind, 'rare').refund
  local function from(place, units) return units > 0 and place > 0 and refund(r, place, units) or 0 end
  local debts, last = min(its.debt, less), min(its.last, less)
  local units = min(its.units, less - debts)
  its.debt, its.last, its.units = its.debt - debts, its.last - last, its.units - units
  return from(its.debt_place, last) + from(its.place, units)
end

function verbs.unused(a, its, back)
  if call('SET', P .. 'x:' .. a.lease, whole(a.grant.start), 'PX', '60000', 'GET') == whole(a.grant.start) then return false end
  local list = record_of(a, its)
  call('DEL', P .. 'a:' .. a.lease, P .. 's:' .. a.lease)
  for i, r in ipairs(its) do
    local kind, of, had = r.of.kind, list[i], not list[i] or list[i].units + list[i].debt > 0
    if kind == 'S' or kind == 'T' or kind == 'K' then
      back[i] = take_back(r, of, of.units + of.debt)
    elseif kind == 'P' or unpacked('>I7', a.charged, 21 * i - 20) > 0 then -- else it was stored, and its run has the place
      back[i] = algorithm(kind, 'rare').refund(r, a.grant.start, 1, a.lease)
    end
    if had then dirty(r) end -- a state that it did not create is none
    freed(r)
  end
end

function verbs.late(a, its)
  if a.grant.shape == its.shape then rules.move_later(its, a.grant.places, a.grant.start + a.number, a.costs) end
end

function verbs.spent(a, its, back, debts, overs)
  if call('GET', P .. 'x:' .. a.lease) == whole(a.grant.start) then return false end
  local text = packed('>I7', its.shape)
  for i, of in ipairs(record_of(a, its)) do
    local r, spent = its[i], unpacked('>I7', a.charged, 21 * i - 6)
    local more = spent == EXACT and 0 or spent - of.over - of.units - of.debt
    if more > 0 then
      local units = min(more, algorithm(r.of.kind, 'rare').room(r))
      of.over = of.over + more - units
      if units > 0 then
        local place = r.its.charge(r, now, units)
        of.debt_place, of.last = place, units + (place == of.debt_place and of.last or 0)
        of.debt, debts[i] = of.debt + units, units
      end
      dirty(r)
    elseif more < 0 then
      local free = min(of.over, -more)
      of.over = of.over - free
      back[i] = take_back(r, of, -more - free)
      dirty(r)
      freed(r)
    end
    overs[i] = of.over
    text = text .. packed('>I7I7I7I7I7I7', of.over, of.place, of.units, of.debt_place, of.debt, of.last)
  end
  call('SET', P .. 's:' .. a.lease, text, 'PX', outlast(a.number))
end

for i = 2, #ARGV, 6 do
  local a = { lease = ARGV[i], number = tonumber(ARGV[i + 2]), grant = read_grant(ARGV[i + 3]), charged = ARGV[i + 5] }
  local its = rules.granted(rules.of(a.grant.scope, ARGV[i + 4]), a.grant)
  a.costs = rules.costs(its, a.grant.cost)
  local back, debts, overs = {}, {}, {}
  if its.outdated then
    out[#out + 1] = '\4'
  elseif verbs[ARGV[i + 1]](a, its, back, debts, overs) == false then
    out[#out + 1] = '\0'
  else
    out[#out + 1] = '\1'
    for k = 1, its.many do out[#out + 1] = packed('>I7I7I7', back[k] or 0, debts[k] or 0, overs[k] or 0) end
  end
end
rules.save()
return packed('>I7B', now, waits) .. table.concat(out)
