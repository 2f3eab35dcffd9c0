-- µs from now until a rule alone would admit its cost; -1 can't tell.
local function retry_of(r, now)
  local t = algorithms[r.kind].fit(r, now)
  if t then
    return t - now
  end
  return r.kind == 'C' and algorithms.C.retry(r, now) or -1
end

-- The first moment from now on at which every rule admits its cost, and the rule
-- that asked for it; nil where one rule can't tell (suspended, or no free place).
local function joint_start(rules, now)
  local start, binding, again = now, 0, true
  while again do
    again = false
    for i = 1, #rules do
      local t = algorithms[rules[i].kind].fit(rules[i], start)
      if not t then
        return nil, i
      elseif t > start then
        start, binding, again = t, i, #rules > 1
      end
    end
  end
  return start, binding
end

-- Puts down what rule i has to say: limited, remaining, retry, reset, place.
local function report(out, i, r, now, retry, place)
  local n, algorithm = 5 * i, algorithms[r.kind]
  out[n + 1] = retry == 0 and 0 or 1
  out[n + 2] = algorithm.remaining(r, now)
  out[n + 3] = retry
  out[n + 4] = algorithm.reset(r, now)
  out[n + 5] = place
end

-- A denial: how long until all would be admitted, and every rule's report.
local function denied(rules, now, start, binding)
  local wait = start and max(1, start - now) or retry_of(rules[binding], now)
  local out = { 0, 0, now, wait, binding }
  for i = 1, #rules do
    report(out, i, rules[i], now, retry_of(rules[i], now), 0)
  end
  return out
end
