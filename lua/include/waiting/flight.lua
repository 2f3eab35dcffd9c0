-- What was granted, and has not come. It needs call, now, flight, overdue, pack, the numbers, tasks.lua
-- and tree.lua. Source: docs/turns.md#in-flight
--
-- flight   hash: scope, 0, ticket. Its value: the start, the score in the queue and when it was granted,
--          seven bytes each; how many rules, and for each where its units are, seven bytes; the name of each
--          with a zero byte; and the id of the grant. "=" and the beginning of a caller's ids: its last call
--          that granted anything.
-- overdue  sorted set of the same fields by when they were granted; by HANDED less while they
--          are to be fetched by whoever serves their group.
local flights = {}

-- A task that has not come for so long is not on its way.
local STALE, HANDED = 3000000, 4503599627370496

function flights.text(g, names, places)
  local text = pack(g.start) .. pack(g.score + SCORES) .. pack(now) .. char(#places)
  for _, place in ipairs(places) do
    text = text .. pack(place)
  end
  return text .. table.concat(names, '\0') .. '\0' .. g.id
end

function flights.read(v)
  local g = { start = unpack7(v, 1), score = unpack7(v, 8) - SCORES, at = unpack7(v, 15), names = {}, places = {} }
  local n = byte(v, 22)
  local from = 23 + 7 * n
  for i = 1, n do
    local zero = string.find(v, '\0', from, true)
    g.places[i], g.names[i] = unpack7(v, 16 + 7 * i), sub(v, from, zero - 1)
    from = zero + 1
  end
  g.id = sub(v, from)
  return g
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
  for i, name in ipairs(g.names) do
    local r = named(name)
    if r then
      r.cost, r.member = cost_of(ticket, r.unit), g.id
      if r.kind == 'C' then -- a lease that has run out is not counted
        local ends = tonumber(call('ZSCORE', r.key, g.id) or nil)
        r.held, r.free = r.held - (ends and ends > now and 1 or 0), nil
      end
      algorithms[r.kind].refund(r, now, g.places[i])
      r.dirty = r.dirty or r.changed
      tree.look_at(level_of(name))
    end
  end
end
