-- concurrency: at most cap runs at once, each holding a place under its id until the place is released or its lease expires.
-- Source: docs/algorithms.md#concurrency
--
-- The state is a sorted set of ids by the end of their lease. No lease is longer than a day: an end beyond that was written by a
-- clock that has since stepped back, and counts for nothing.
function algorithms.C()
  local FAR = 60000000 -- how far ahead a start can be
  local from, to = '(' .. whole(now), whole(now + 86400000000 + FAR)

  return {
    load = function(of, key, numbers)
      local cap, lease = unpacked('>I7I7', numbers)
      return { of = of, key = key, cap = cap, lease = lease, held = call('ZCOUNT', key, from, to), new = {}, gone = {}, first = EXACT, latest = 0 }
    end,
    -- A full rule has a free place once enough leases have ended to be below cap, unless they are renewed.
    fit = function(r, t, _, id)
      if r.cap == 0 then return nil end
      if r.held < r.cap or id and tonumber(call('ZSCORE', r.key, id) or 0) > now then return t end
      r.free = r.free or tonumber(call('ZRANGEBYSCORE', r.key, from, to, 'WITHSCORES', 'LIMIT', whole(r.held - r.cap), '1')[2] or now + r.lease)
      return max(t, min(r.free, r.first)), true
    end,
    charge = function(r, start, _, id)
      r.held, r.free, r.first, r.latest = r.held + 1, nil, min(r.first, start + r.lease), max(r.latest, start + r.lease)
      r.new[#r.new + 1], r.new[#r.new + 2] = whole(start + r.lease), id
      return 0
    end,
    save = function(r)
      call('ZREMRANGEBYSCORE', r.key, '-inf', whole(now))
      if #r.gone > 0 then call('ZREM', r.key, unpack(r.gone)) end
      if #r.new > 0 then
        call('ZADD', r.key, unpack(r.new))
        if call('PTTL', r.key) < (r.latest - now) / 1000 then call('PEXPIRE', r.key, outlast(r.latest - now)) end
      end
    end,
    -- #for decide
    show = function(r)
      local last = r.held > 0 and call('ZREVRANGEBYSCORE', r.key, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]
      return max(0, r.cap - r.held), r.held > 0 and max(r.latest, tonumber(last or 0)) - now or 0
    end,
    -- #end
  }
end

-- #for ack, decide, inspect, join, reset, settle
function rare.C()
  return {
    refund = function(r, _, _, id)
      local score = call('ZSCORE', r.key, id)
      if not score then return 0 end
      r.gone[#r.gone + 1], r.free = id, nil
      r.held = r.held - (tonumber(score) > now and 1 or 0)
      return 1
    end,
    room = function() return 0 end,
    after = function(r, t, others) return others + r.held < r.cap and t or nil end,
  }
end
-- #end
