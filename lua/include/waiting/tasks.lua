-- What a waiting task takes, and its place in the queue of its scope. It needs call and the numbers.
-- Source: docs/turns.md#queues
--
-- queue  sorted set of each scope: the tickets of its tasks, by priority and order. A ticket is
--        "cost:name", without the cost when it is 1, or by unit "requests=1,tokens=1500:name".
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local REQUESTS = 'requests'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- What waits is kept for so much longer than it is expected to take: it means something until
-- asynq brings the task back by itself.
local STAY = 86400000000

-- The first place of an empty band, or the one after its last. Places go by the clock, in ms: who
-- comes back to its place is before those who came since.
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

local numbers = {}

-- What a task costs under every rule; nil for one that costs by unit. Each ticket is taken apart once.
local function number_of(ticket)
  local number = numbers[ticket]
  if number == nil then
    local cost = string.match(ticket, '^(%d*):')
    number = cost and (tonumber(cost) or 1) or false
    numbers[ticket] = number
  end
  return number or nil
end

-- What a task takes of a unit, '' for places.
local function cost_of(ticket, unit)
  local number = number_of(ticket)
  if number then
    return number
  end
  for its, cost in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
    if its == unit then
      return tonumber(cost)
    end
  end
  return (unit == '' or unit == REQUESTS) and 1 or 0
end

-- The unit that a rule counts, '' for places and where each task counts: it follows the
-- numbers of its text.
local function unit_of(rule)
  local kind = byte(rule)
  local unit = kind == HELD and '*' or sub(rule, kind == CALENDAR and 65 or 37)
  if unit == '*' then
    return ''
  end
  return unit == '' and REQUESTS or unit
end

-- The rules of a path that a task takes anything of, each with what it takes; and the task's
-- signature: '' if those are all, or else their units.
local function counted(path, ticket)
  local number = number_of(ticket)
  if number and number > 0 then
    for i = 1, #path do
      path[i].cost = number
    end
    return path, ''
  end
  local some, units, all = {}, {}, true
  for i = 1, #path do
    local r = path[i]
    r.cost = cost_of(ticket, r.unit)
    if r.cost > 0 then
      some[#some + 1], units[r.unit] = r, true
    else
      all = false
    end
  end
  if all then
    return path, ''
  end
  local names = {}
  for unit in pairs(units) do
    names[#names + 1] = unit
  end
  table.sort(names)
  return some, table.concat(names, ',') .. ','
end

-- The group of a task: what its name begins with, up to and with the first slash; '' where it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end

-- The level of a rule, by its name: the path of its scope.
local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The numbers of a path's rules, and the weight that the scope has under each where it
-- is said: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

-- Keeps keys at least us µs more, and until asynq brings the tasks back after that: it does so half as
-- late again as expected.
local function keep_waiting(us, ...)
  us = us + us / 2
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
    end
  end
end
