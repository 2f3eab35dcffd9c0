-- Who waits, and in which order. It needs call, provider, and the keys due, round
-- and at. Source: docs/turns.md#lines-rounds-and-seats
--
-- line   sorted set of each scope: its tasks' tickets, by priority and order. A
--        ticket is "cost:name", the cost left out when it is 1; one by unit is
--        "requests=1,tokens=1500:name".
-- round  sorted set of seats, all of score 0. A scope whose line is not empty has
--        one seat, with the rule that its first task waits for:
--        rule, 0, rank, scope. The seats of a rule are its round; they are
--        served in the order of their ranks: the priority of the scope's first
--        task, then the stamp, which grows by what the scope has had. See shares.lua.
--        Those of which no task can ever be admitted have a round of no rule's.
-- due    sorted set of rules that have a round, by the µs to look at it.
-- out    hash of tasks that were released and have not come: scope, 0, ticket. Its
--        values: when it was, its score, its stamp, and the id of the call.
-- at     hash: S<scope> its seat, L<scope> requests in its line and, after a 0 and
--        its name, of each other unit, U<rule> units that wait in lines under the
--        rule, N<rule> those lines, # the highest stamp, @ the µs
--        of the last look, ^ what that was before the clock stepped back, M that somebody
--        takes nothing of some rule, ! the seat of no
--        rule's round that a look came to; V, F and T as in shares.lua; Q<scope> the lanes of
--        its line, as in lanes.lua.
local BAND, MIDDLE, LOWEST = 4294967296, 2147483648, 1048576
local NO_RULE, REQUESTS, MIXED = '!', 'requests', 'M'

-- A released task that has not come for so long is not on its way, and a look
-- that is later than this has nobody to make it.
local STALE, LATE = 3000000, 1000000

-- What stands for the call's id: a task is known to run, or to be about to, and one
-- that went straight to its queue and that no look has met.
local RUNNING, STRAIGHT = '!', '?'

-- Added to a score, so that it is never negative.
local SCORES = 4503599627370496

-- What waits is kept for so much longer than it is expected to take: it means
-- something until the task's own queue brings it back.
local STAY = 86400000000

-- The place after the last of a band, or the first of an empty one: not before
-- the clock, in ms, so that who was released, and comes back to its place, is before
-- those who came since, whoever stands in line by then.
local function place_after(last, band, now)
  local first = band + MIDDLE / 2 + floor(now / 1000) % MIDDLE
  return last and min(max(last + 1, first), band + BAND - 1) or first
end

local function rule_name(key)
  return sub(key, #provider + 1)
end

-- What a task costs under every rule; nil for one that costs by unit.
local function number_of(ticket)
  local cost = string.match(ticket, '^(%d*):')
  return cost and (tonumber(cost) or 1)
end

-- What a task takes of a unit, '' for places, that is known to have no number: a rule
-- that it takes nothing of is not in its path.
local function amount_of(ticket, unit)
  for its, cost in string.gmatch(string.match(ticket, '^[^:]*'), '([^=,]+)=(%d+)') do
    if its == unit then
      return tonumber(cost)
    end
  end
  return (unit == '' or unit == REQUESTS) and 1 or 0
end

local function cost_of(ticket, unit)
  return number_of(ticket) or amount_of(ticket, unit)
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

-- The field of a scope's sum of a unit.
local function sum_of(scope, unit)
  return (unit == '' or unit == REQUESTS) and 'L' .. scope or 'L' .. scope .. '\0' .. unit
end

-- The rules of a path that a task takes anything of, each with what it takes.
local function counted(path, ticket)
  local number, all = number_of(ticket), true
  for i = 1, #path do
    local r = path[i]
    r.cost = number or amount_of(ticket, r.unit)
    all = all and r.cost > 0
  end
  if all then
    return path
  end
  local some = {}
  for i = 1, #path do
    some[#some + 1] = path[i].cost > 0 and path[i] or nil
  end
  return some
end

-- The place of a scope among others: priority and stamp, ten bytes. A score that no priority has
-- would become the rank of another one.
local function rank_of(score, stamp)
  local band = floor(score / BAND) + LOWEST
  if not (band >= 0 and band < 2 * LOWEST) then
    error('a score is damaged')
  end
  return sub(pack(band), 5) .. pack(stamp)
end

-- The numbers of a path's rules, and the weight that the scope has under each where it
-- is said: "1,3*2.5,4".
local function path_numbers(text)
  return string.gmatch(text, '(%d+)%*?([%d.]*)')
end

local function seat_of(name, rank, scope)
  return name .. '\0' .. rank .. scope
end

-- The two numbers of a rank: of the priority, less first, and the stamp.
local function numbers_of(rank)
  local a, b, c = byte(rank, 1, 3)
  return (a * 256 + b) * 256 + c, unpack7(rank, 4)
end

-- The rule, rank and scope of a seat.
local function parts_of(seat)
  local zero = string.find(seat, '\0', 1, true)
  return sub(seat, 1, zero - 1), sub(seat, zero + 1, zero + 10), sub(seat, zero + 11)
end

-- The first seat of a rule's round after another.
local function seat_after(name, after)
  local from = after or name .. '\0'
  return call('ZRANGEBYLEX', round, '(' .. from, '(' .. name .. '\1', 'LIMIT', '0', '1')[1]
end

-- Keeps what waits at least us µs more, and until its own queue brings it back after that: the
-- safety net is a twentieth later than what is expected. Whether it had to.
local function keep_waiting(us, ...)
  local had_to = false
  us = us + us / 20
  for _, key in ipairs({ ... }) do
    if call('PTTL', key) < us / 1000 + STAY / 2000 then
      call('PEXPIRE', key, whole(ceil((us + STAY) / 1000)))
      had_to = true
    end
  end
  return had_to
end
