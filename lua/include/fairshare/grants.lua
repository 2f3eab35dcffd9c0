-- How a task is granted its start. It needs flight.lua, and id, the id of the call.

-- The grants of this call, to be written: fields and values, and times and fields, by turns.
local outs = { flight = {}, overdue = {} }

-- Charges a task at its start under the rules of its path, and puts it in flight as of a moment, with the score of its
-- place. Returns its value in flight.
function flights.grant(l, ticket, path, start, score, moment)
  local gid, field = id .. '.' .. whole(#outs.overdue / 2), l.scope .. '\0' .. ticket
  for _, r in ipairs(reported and path or {}) do
    if r.kind == 'P' then
      algorithms.P.charge(r, now, start)
      algorithms.P.save(r)
    end
  end
  if reported and probed(path, start)[1] then
    gid = gid .. '!'
  end
  local text = whole(start) .. ' ' .. whole(score) .. ' ' .. whole(now) .. ' ' .. gid
  for _, r in ipairs(path) do
    if r.kind ~= 'P' then
      r.member, r.dirty = gid, true
      text = flights.rated(text .. ' ' .. r.name .. '=' .. whole(algorithms[r.kind].charge(r, now, start)), r)
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
