-- The pause of a node: by an API, by a guess, or by a breaker. Source: docs/vendor.md#pauses, docs/breaker.md
--
-- Six numbers: when it ends; when it began; its length, 0 if an API gave its end; how many calls may be on their way at once after it,
-- as probes, 0 for all; and of a breaker how many calls opened it, and how many of them had failed. Then for each probe: until when it
-- holds its place, the length of its id in a byte, and its id. A probe holds its place until what became of it is reported, at most for
-- LEASE; that of a breaker renews its lease while its run lasts. After REMEMBERED without an end, or after the pause's own length, all go.
local pauses = { lease = { P = 10000000, B = 30000000 }, remembered = { P = 60000000, B = 3600000000 }, id = 100 } -- id: how much of one is kept
function pauses.all_go(letter, r) return r.ends + max(r.length, pauses.remembered[letter]) end
function pauses.text(r)
  local text = packed('>I7I7I7I7I7I7', r.ends, r.since, r.length, r.probes, r.calls, r.failures)
  for _, probe in ipairs(r.out) do text = text .. packed('>I7B', probe.till, #probe.id) .. probe.id end
  return text
end

function algorithms.P()
  local FAR = 60000000 -- how far ahead a start can be
  return {
    load = function(of, key, v)
      local letter, at, till, size = sub(key, 1, 1), 43, nil, nil
      local r = { of = of, key = key, lease = pauses.lease[letter], out = {} }
      r.ends, r.since, r.length, r.probes, r.calls, r.failures = unpacked('>I7I7I7I7I7I7', v)
      local back = max(0, (letter == 'B' and r.ends - r.length or r.since) - now) -- the clock has stepped back
      r.stepped, r.ends, r.since = back > 0, r.ends - back, min(r.since, now)
      r.all_go = pauses.all_go(letter, r)
      while at < #v do
        till, size = unpacked('>I7B', v, at)
        till = min(till - back, now + r.lease + FAR)
        if till > now then r.out[#r.out + 1] = { till = till, id = sub(v, at + 8, at + 7 + size) } end
        at = at + 8 + size
      end
      return r
    end,
    -- While all probes are on their way, a place is free when enough leases have ended, unless they are renewed or a probe comes back.
    fit = function(r, t)
      t = max(t, r.ends)
      if r.probes == 0 or t >= r.all_go or #r.out < r.probes then return t end
      table.sort(r.out, function(a, b) return a.till < b.till end)
      return max(t, min(r.all_go, r.out[#r.out - r.probes + 1].till)), true
    end,
    charge = function(r, start, _, id)
      if r.probes == 0 or start >= r.all_go then return nil end
      r.out[#r.out + 1] = { till = min(start + r.lease, r.all_go), id = sub(id, -pauses.id) }
      return start
    end,
    save = function(r) call('HSET', P .. 'api', r.key, pauses.text(r)) end,
  }
end

-- #for ack, decide, inspect, join, report, reset, settle
function rare.P()
  local function find(r, id) -- the place of a probe among those on their way
    for i, probe in ipairs(r.out) do
      if probe.id == sub(id, -pauses.id) then return i end
    end
  end
  return {
    refund = function(r, _, _, id)
      local i = find(r, id)
      if i then table.remove(r.out, i) end
      return i and 1 or 0
    end,
    renew = function(r, id)
      local i = find(r, id)
      if i then r.out[i].till = min(now + r.lease, r.all_go) end
      return i
    end,
    after = function(r, t) return max(t, r.ends) end,
  }
end
-- #end
