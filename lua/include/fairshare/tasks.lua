-- What a waiting task takes, and its place in the queue of its scope. It needs call and the numbers.
-- Source: docs/turns.md#queues
--
-- queue  sorted set of each scope: the tickets of its tasks, by priority and order. A ticket is
--        "cost:name", without the cost when it is 1, or by unit "requests=1,tokens=1500:name".
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local REQUESTS = 'requests'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- How much longer than their expected wait the keys of waiting tasks are kept: they have a meaning until
-- asynq brings the task back by itself.
local STAY = 86400000000

-- The first place of an empty band, or the place after its last. Places follow the clock, in ms: a task that
-- comes back to its place is before the tasks that came since.
local function place_after(last, band, now)
  local first = band + MIDDLE / 2 + floor(now / 1000) % MIDDLE
  return last and min(max(last + 1, first), band + BAND - 1) or first
end

-- The number that sorts bands: 0 for the highest priority.
local function band_of(score)
  local band = floor(score / BAND) + LOWEST
  if not (band >= 0 and band < 2 * LOWEST) then
    error('a score is damaged')
  end
  return band
end

local known_costs = {}

-- The cost of a task: a number, under every rule, or a table by unit. Each ticket is parsed once.
local function costs_of(ticket)
  local costs = known_costs[ticket]
  if not costs then
    local text = string.match(ticket, '^(%d*):')
    costs = text and (tonumber(text) or 1) or {}
    if not text then
      for unit, units in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
        costs[unit] = tonumber(units)
      end
    end
    known_costs[ticket] = costs
  end
  return costs
end

-- How many units of a kind a task takes, '' for places.
local function cost_of(ticket, unit)
  local costs = costs_of(ticket)
  if type(costs) == 'number' then
    return costs
  end
  return costs[unit] or (unit == '' or unit == REQUESTS) and 1 or 0
end

-- The unit that a rule counts, '' for places and for a rule that counts each task: it follows the
-- numbers of the rule's text.
local function unit_of(rule)
  local kind = byte(rule)
  local unit = kind == HELD and '*' or sub(rule, kind == CALENDAR and 65 or 37)
  if unit == '*' then
    return ''
  end
  return unit == '' and REQUESTS or unit
end

-- The signature of tasks that take only these units, and so not all rules of their path.
local function signature(units)
  local names = {}
  for unit in pairs(units) do
    names[#names + 1] = unit
  end
  table.sort(names)
  return table.concat(names, ',') .. ','
end

-- The rules of a path that a task takes units of, each with that cost; and the task's
-- signature, '' if those are all rules.
local function counted(path, ticket)
  local costs = costs_of(ticket)
  if type(costs) == 'number' and costs > 0 then
    for i = 1, #path do
      path[i].cost = costs
    end
    return path, ''
  end
  local some, units = {}, {}
  for _, r in ipairs(path) do
    r.cost = cost_of(ticket, r.unit)
    if r.cost > 0 then
      some[#some + 1], units[r.unit] = r, true
    end
  end
  return some, #some == #path and '' or signature(units)
end

-- The rule of a path that a task waits for, and until when, nil if unknown: a rule with no known moment, or the
-- rule that alone would admit the task last. Units that come free of other rules cannot start the task sooner.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return path[i], nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return path[last or max(1, binding)], at or start
end

-- The group of a task: the beginning of its name, up to and including the first slash; '' if it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end

-- The level of a rule, by its name: the path of its scope.
local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The numbers of a path's rules, and the weight of the scope under each rule that has
-- one: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

-- Runs a command on any number of members of a key, in several calls.
local function in_parts(command, key, list)
  for i = 1, #list, 500 do
    call(command, key, unpack(list, i, min(#list, i + 499)))
  end
end

-- The values of any number of fields of a hash, false for none.
local function values_of(key, fields)
  local values = #fields > 0 and call('HMGET', key, unpack(fields, 1, min(#fields, 500))) or {}
  for i = 501, #fields, 500 do
    for _, value in ipairs(call('HMGET', key, unpack(fields, i, min(#fields, i + 499)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Keeps keys at least us µs more, and after that until asynq brings the tasks back: it does so half as
-- late again as expected.
local function keep_waiting(us, ...)
  us = us + us / 2
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
    end
  end
end
