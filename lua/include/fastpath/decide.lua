-- The fast path, which most calls take: every rule was used recently under the
-- limits of this call, admits its cost now, and its key lives long enough. It is one
-- straight line without functions, since making one costs as much as evaluating a
-- rule. Every other call leaves it before anything is written, for the
-- general way below, which returns the same: a test runs both. It needs call, format,
-- member, attempt, n and base.
local out, states, places, passed = { now, 0, 0, 0 }, {}, { now }, 0
for i = 1, n do
  local key, rule, cost = KEYS[i], ARGV[base + 2 * i], ARGV[base + 2 * i + 1]
  cost = cost == '1' and 1 or tonumber(cost)
  -- #include fastpath/rule
  -- #include fastpath/calendar when K
  local place, holds, state, remaining, reset, spare = now, nil, nil, nil, nil, nil
  local v = algorithm ~= HELD and call('GET', key)
  if algorithm == TOKEN then
    -- #include fastpath/token_bucket when T
    remaining, reset = floor((cap * q - level - slack * p) / q), ceil(level / p + slack)
    if remaining < 0 then
      remaining = 0
    end
  elseif algorithm == SLIDING and (two == 0 or three == 0) then
    -- #include fastpath/fixed_window when S
    remaining, reset = cap - holds, rest
  elseif algorithm == SLIDING then
    -- #include fastpath/sliding_window when S
    remaining, reset = cap - holds, place + per - now
  else
    -- #include fastpath/concurrency when C
  end
  if spare < LEAST or spare > MOST then
    break
  end
  local at = 3 * i
  out[at - 1], out[at], out[at + 1] = remaining, reset, place
  states[i], places[i + 1], passed = state, place, i
end
if passed == n then
  -- The record goes first: it is what makes the call repeatable.
  local record = packed('>' .. string.rep('I7', n + 1), unpack(places)) .. member
  local before = call('SET', attempt, record, 'PX', '30000', 'GET')
  if not before or sub(before, -#member) ~= member then
    for i = 1, n do
      if byte(ARGV[base + 2 * i], 1) ~= HELD then
        call('SET', KEYS[i], states[i], 'KEEPTTL')
      else
        -- #include fastpath/hold when C
      end
    end
    return out
  end
  call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
end
