-- What was granted, and has not come. It needs call, now, flight, overdue, pack, the numbers, tasks.lua
-- and tree.lua. Source: docs/turns.md#in-flight
--
-- flight   hash: scope, 0, ticket. Its value: the start, the score in the queue, when it was granted, and the id of
--          the grant; then for each rule its name, "=" and where its units are. "=" and the beginning of a
--          caller's ids: its last call that granted anything.
-- overdue  sorted set of the same fields by when they were granted; by HANDED less while they
--          are to be fetched by whoever serves their group.
local flights = {}

-- A task that has not come for so long is not on its way.
local STALE, HANDED = 3000000, 4503599627370496

function flights.read(v)
  local start, score, at, id = string.match(v, '^(%-?%d+) (%-?%d+) (%d+) (%S+)')
  local g = { start = tonumber(start), score = tonumber(score), at = tonumber(at), id = id, places = {}, many = 0 }
  for name, place in string.gmatch(v, ' (%S+)=(%d+)') do
    g.places[name], g.many = tonumber(place), g.many + 1
  end
  return g
end

-- Whether a value is that of a grant by its id, '' for any.
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

-- Gives back what a task was granted, under the rules that the call knows by name, and has those looked at
-- that wait for them.
function flights.refund(g, ticket, named)
  for name, place in pairs(g.places) do
    local r = named(name)
    if r then
      r.cost, r.member = cost_of(ticket, r.unit), g.id
      if r.kind == 'C' then -- a lease that has run out is not counted
        local ends = tonumber(call('ZSCORE', r.key, g.id) or nil)
        r.held, r.free = r.held - (ends and ends > now and 1 or 0), nil
      end
      algorithms[r.kind].refund(r, now, place)
      r.dirty = r.dirty or r.changed
      tree.look_at(level_of(name))
    end
  end
end
