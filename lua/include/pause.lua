-- The pause of a node by an API, or by a guess. Source: docs/vendor.md#pauses
--
-- Four numbers: when it ends; when it began; its length if the API gave none, 0 if it did; and then its trial, the moment at which the
-- guess is over. From the trial on calls go one at a time, as probes: each start puts the end off by PROBE, until a call has gone through.
-- A probe of which nothing is heard holds up the others no longer, and no trial lasts longer than the guess is remembered.
local PROBE, RESTED = 10000000, 60000000
local function probed_until(r, start) return min(start + PROBE, r.trial + max(r.length, RESTED)) end

function algorithms.P()
  return {
    load = function(of, key, v)
      local r = { of = of, key = key }
      r.ends, r.since, r.length, r.trial = unpacked('>I7I7I7I7', v)
      local back = r.since - now
      r.stepped = back > 0
      if r.stepped then r.ends, r.since, r.trial = r.ends - back, now, max(0, r.trial - back) end -- the clock has stepped back
      return r
    end,
    fit = function(r, t) return max(t, r.ends), r.trial > 0 and r.ends > max(t, r.trial) end,
    charge = function(r, start)
      if r.trial > 0 and start >= r.trial and start < r.trial + max(r.length, RESTED) then
        r.ends = probed_until(r, start)
        return start
      end
    end,
    save = function(r) call('HSET', P .. 'api', r.key, packed('>I7I7I7I7', r.ends, r.since, r.length, r.trial)) end,
  }
end

-- #for ack, decide, inspect, join, reset, settle
function rare.P()
  return {
    refund = function(r, start)
      if r.trial > 0 and r.ends == probed_until(r, start) then r.ends = max(now, r.trial) end
    end,
    after = function(r, t) return max(t, r.ends) end,
  }
end
-- #end
