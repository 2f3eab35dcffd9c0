-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may hand in a number instead; production hands in "".
local function read_clock(override)
  if override ~= '' then
    return tonumber(override)
  end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- A state written further ahead than this was written by a clock that has since
-- stepped back: no charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
