-- Grants in flight: given, and not yet come. It needs call, now, flight, overdue, pack, the numbers, tasks.lua
-- and tree.lua. Source: docs/turns.md#in-flight
--
-- flight   hash: scope, 0, ticket. Its value: the start, the score in the queue, when it was granted, and the id of
--          the grant, which ends in "!" if its start is a probe (see include/upstream/pause.lua); then for each rule
--          its name, "=" and where its units were charged, followed by the rate of a bucket. Under "=" and the
--          beginning of a caller's ids: its last call that granted anything.
-- overdue  sorted set of the same fields by when they were granted; by HANDED less until a
--          caller that serves their group has fetched them.
local flights = {}

-- After STALE a task that has not come is not on its way.
local STALE, HANDED = 3000000, 4503599627370496

function flights.read(v)
  local start, score, at, id = string.match(v, '^(%-?%d+) (%-?%d+) (%d+) (%S+)')
  local g = { start = tonumber(start), score = tonumber(score), at = tonumber(at), id = id, places = {}, rates = {}, many = 0 }
  for name, place, rate in string.gmatch(v, ' (%S+)=(%d+)(%S*)') do
    g.places[name], g.rates[name], g.many = tonumber(place), rate, g.many + 1
  end
  return g
end

-- Adds the rate of a bucket to a text: as long as it is the same, a refund knows what has drained since the start at most.
function flights.rated(text, r)
  return r.kind == 'T' and text .. ':' .. whole(r.p) .. ':' .. whole(r.q) or text
end

-- Whether a value is the grant with this id, '' for any.
function flights.is(value, id)
  return id == '' or string.match(value, '^%S+ %S+ %S+ (%S+)') == id
end

function flights.parts(field)
  local zero = string.find(field, '\0', 1, true)
  return sub(field, 1, zero - 1), sub(field, zero + 1)
end

function flights.forget(field)
  call('HDEL', flight, field)
  call('ZREM', overdue, field)
end

-- Refunds the grant of a task, under the rules that the call knows by name, and has the nodes checked that
-- wait for them. If it was a probe, the next task is one.
function flights.refund(g, scope, ticket, named)
  if sub(g.id, -1) == '!' then
    local path = {}
    add_pauses(path, scope)
    for _, r in ipairs(probed(path, g.start)) do
      r.ends, r.changed = max(now, r.trial), true
      algorithms.P.save(r)
      tree.look_at(r.level)
    end
  end
  for name, place in pairs(g.places) do
    local r = named(name)
    if r then
      r.cost, r.member = cost_of(ticket, r.unit), g.id
      r.started = g.rates[name] == flights.rated('', r) and g.start
      if r.kind == 'C' then -- an expired lease is not counted
        local ends = tonumber(call('ZSCORE', r.key, g.id) or nil)
        r.held, r.free = r.held - (ends and ends > now and 1 or 0), nil
      end
      algorithms[r.kind].refund(r, now, place)
      r.dirty = r.dirty or r.changed
      tree.look_at(level_of(name))
    end
  end
end
