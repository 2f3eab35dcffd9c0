-- Grants in flight: given, and not yet claimed. Source: docs/turns.md#in-flight
--
-- flight   hash: a waiter, "queue:id", and its grant: a byte, how many rules it was charged under, and 128 more for a probe; numbers of
--          seven bytes, its start, the score of its place in the queue, when it was granted, the shape of the rules, and the places of
--          its units; then the scope, a newline, and the cost, a number or by unit; and of a pool a newline and the member's name
-- flights  sorted set of the same waiters by when they were granted
local flight, flights = P .. 'flight', P .. 'flights'

local grant_formats = {} -- by the number of rules
local function grant_text(n, probe, start, place, shape, at, scope, cost, member)
  grant_formats[n] = grant_formats[n] or '>BI7I7I7I7' .. string.rep('I7', n)
  return packed(grant_formats[n], probe and n + 128 or n, start, place, now, shape, unpack(at, 1, n)) .. scope .. '\n' .. cost .. (member and '\n' .. member or '')
end

-- #for ack, decide, inspect, repair, settle
local function read_grant(value)
  local g, n = { probe = byte(value) > 127 }, byte(value) % 128
  g.start, g.score, g.granted, g.shape = unpacked('>I7I7I7I7', value, 2)
  g.places = { unpacked('>' .. string.rep('I7', n), value, 30) }
  g.scope, g.cost, g.member = match(sub(value, 30 + 7 * n), '^([^\n]*)\n([^\n]*)\n?(.*)$')
  g.cost = tonumber(g.cost) or g.cost
  return g
end
-- #end

-- The lease that a waiter holds by a grant.
local function lease_of(waiter, start) return waiter .. '@' .. whole(start) end

-- #for ack, decide
local function landed(waiter)
  call('HDEL', flight, waiter)
  call('ZREM', flights, waiter)
end
-- #end
