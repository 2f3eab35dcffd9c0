-- The pause of a node by an API, or by a guess. Source: docs/vendor.md#pauses
--
-- Four numbers: when it ends; when it began; its length if the API gave none, 0 if it did; and then its trial, the moment at
-- which the guess is over. From the trial on calls go one at a time, as probes: each start puts the end off by PROBE, until a
-- call has gone through. A probe of which nothing is heard holds up the others no longer, and no trial lasts longer than the
-- guess is remembered.
local PROBE, RESTED = 10000000, 60000000

-- Whether starts at a moment are probes.
local function is_trial(r, at)
  return r.trial > 0 and at >= r.trial and at < r.trial + max(r.length, RESTED)
end

algorithms.P = function()
  return {
    fit = function(r, t)
      return max(t, r.ends), r.trial > 0 and r.ends > max(t, r.trial)
    end,
    charge = function(r, start)
      if is_trial(r, start) then
        r.ends = start + PROBE
        return start
      end
    end,
    refund = function(r, start)
      if r.trial > 0 and r.ends == start + PROBE then
        r.ends = max(now, r.trial)
      end
    end,
    save = function(r)
      call('HSET', api, 'P' .. r.node, packed('>I7I7I7I7', r.ends, r.since, r.length, r.trial))
    end,
    left = function()
      return 0
    end,
    reset = function(r)
      return max(0, r.ends - now)
    end,
    after = function(r, t)
      return max(t, r.ends)
    end,
  }
end

local function read_pause(v)
  local r = {}
  r.ends, r.since, r.length, r.trial = unpacked('>I7I7I7I7', v)
  local back = r.since - now
  if back > 0 then -- the clock has stepped back
    r.ends, r.since, r.trial = r.ends - back, now, max(0, r.trial - back)
  end
  return r
end

-- Adds the pauses of a scope's nodes to its rules.
local function add_pauses(its, scope, names)
  for level = 0, names do
    local at = node(scope, level)
    local key = api .. at
    local r = loaded[key]
    if r == nil then
      local v = call('HGET', api, 'P' .. at)
      r = v and read_pause(v) or false
      if r then
        r.kind, r.unit, r.name, r.node, r.blocks, r.its = 'P', '*', '', at, at, algorithm('P')
      end
      loaded[key] = r
    end
    its[#its + 1] = r or nil
  end
end
