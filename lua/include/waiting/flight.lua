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

-- What this call has granted, to be written: fields and values, and times and fields, by turns.
local outs = { flight = {}, overdue = {} }

-- Charges a task at its start under the rules of its path, and puts it in flight as of a moment, with the score of its
-- place. Returns what stands there.
function flights.grant(l, ticket, path, start, score, moment)
  local gid, field = id .. '.' .. whole(#outs.overdue / 2), l.scope .. '\0' .. ticket
  local text = whole(start) .. ' ' .. whole(score) .. ' ' .. whole(now) .. ' ' .. gid
  for _, r in ipairs(path) do
    if r.kind ~= 'P' then
      r.member, r.dirty = gid, true
      text = text .. ' ' .. r.name .. '=' .. whole(algorithms[r.kind].charge(r, now, start))
      if r.kind == 'C' then
        algorithms.C.save(r, now, start)
      end
    end
  end
  outs.flight[#outs.flight + 1], outs.flight[#outs.flight + 2] = field, text
  outs.overdue[#outs.overdue + 1], outs.overdue[#outs.overdue + 2] = whole(moment), field
  return text
end

function flights.save()
  if #outs.overdue > 0 then
    call('HSET', flight, unpack(outs.flight))
    call('ZADD', overdue, unpack(outs.overdue))
    keep_waiting(0, flight, overdue)
  end
end

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
