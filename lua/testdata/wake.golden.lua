-- wake: release the tasks whose turn is near, each rule's waiters in their order.
--
-- It sees what the limiter holds, sets aside in memory what released tasks will
-- take that have not come yet, and takes from each round that is due the first
-- seat's first task, as long as its start under all its rules is near. A seat
-- whose task waits for another rule moves to that rule's round. Nothing is charged
-- and no state of a rule is changed, but for what a clock that stepped back has left in the future. Sent again under its id it answers with the
-- same tasks, as far as they have not come.
--
-- KEYS[1..n]  rule    state of rule i of those that the scopes meet; n is ARGV[9]. See include/layout.lua.
-- KEYS[n+1]   due     sorted set of rules by the time to look. See include/turns/lines.lua, here and below.
-- KEYS[n+2]   round   sorted set of seats.
-- KEYS[n+3]   out     hash of released tasks.
-- KEYS[n+4]   at      hash of seats by scope, and of sums.
-- KEYS[n+5]   told    hash, what the API has told of its limits. See include/told.lua.
-- KEYS[n+6..] line    the waiting tasks of a scope, one for each of s scopes.
-- KEYS[n+s+6] parked  sorted set of tasks out of their lines for now. See include/wake/parked.lua.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]     call    the id of this call. The first ten bytes are the caller's own.
-- ARGV[3]     lead    integer µs >= 0, how long before its start a task is released at the latest,
-- ARGV[4]     spread  and integer µs >= 0, how much earlier it may be, so that one call serves several.
-- ARGV[5]     most    integer >= 0, how many tasks to release at most.
-- ARGV[6]     all     1 to look at every round, whatever it waits for: a limit may have changed.
-- ARGV[7]     now     integer >= 0, how many more to release whose start has come already.
-- ARGV[8]     near    integer >= 0, of how many rules to name the scopes that are next.
-- ARGV[9]     rules   integer n.
-- ARGV[10..]  rule    one for each rule. See include/rules.lua.
-- ARGV[n+10..] path   one for each of s scopes: the numbers of its rules, as "1,3,4", or "-" for a scope
--                     that the caller cannot wake; after a "!" those of one that it leaves to others
--                     to release. See include/turns/lines.lua for "1,3*2,4".
-- ARGV[n+s+10..] news three for each task: "f" it does not exist any more, whether it was released or
--                     stands in line; of one that was released and could not be run "a" it does not
--                     exist yet, to be tried again, "r" it is running; "b" it was parked and goes back
--                     to its line; then its scope; its ticket. Or "s", any scope, and a group that
--                     stands still: what its tickets' names begin with, up to and with their first slash.
--
-- Returns  {times, released, missing, near, slow}, each a list:
--          times     {now, next, out, parked}: integer µs, the clock of this call, and when to look again, 0
--                    when nobody waits; how many tasks that this caller released have not come; 1 while
--                    any are parked
--          released  two for each task: its scope and its ticket, in the order of their turns
--          missing   the scopes that were met and are not among KEYS, each once
--          near      scopes whose turns are next, the first few of each rule that is
--          slow      a ticket of each group of which somebody was released and is slow to come
--
-- Writes   KEYS[n+1..n+4] and KEYS[n+6..n+s+6], KEYS[1..n] and KEYS[n+5] after a step of the clock. Nothing
--          when nobody waits.
-- Source   docs/turns.md#waking

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may hand in a number instead; production hands in "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes. Plain arithmetic: not every
-- server has a struct library, and "%" is an instruction where math.floor is a
-- call.
local floor, ceil = math.floor, math.ceil
local char, byte, sub = string.char, string.byte, string.sub

local function pack(n)
  local low = n % 16777216
  local high = (n - low) / 16777216
  local g, d = low % 256, high % 256
  low, high = (low - g) / 256, (high - d) / 256
  local f, c = low % 256, high % 256
  high = (high - c) / 256
  local b = high % 256
  return char((high - b) / 256, b, c, d, (low - f) / 256, f, g)
end
-- A rate rule's state is one string whose first byte names its layout, so that
-- a rule whose algorithm has changed still finds what was spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window
--   F till last count prior before since ahead          fixed window
--   K till last from count prior before carry since next was   calendar
-- All are numbers of seven bytes, but for the log, and for `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail, last) was ahead of the clock
-- when the state was written. What is further ahead now was written by a clock that has since stepped
-- back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, HELD, CALENDAR = 84, 83, 70, 67, 75

-- The first byte of the record of an attempt that was given back: no start has it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since, as a number and packed.
local UNTOUCHED, NEVER = 9007199254740991, '\31\255\255\255\255\255\255'

-- To set a TTL costs as much as a write. So one is set for LONGER than the state
-- means anything, and kept while it is no less than LEAST and no more than MOST.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

local call = redis.call
local n = tonumber(ARGV[9])
local due, round, out_key, at, told = KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4], KEYS[n + 5]
local there -- a key counts as often as it is named
do
  local parked = KEYS[#KEYS]
  there = call('EXISTS', due, out_key, told, told, told, parked, parked, parked, parked, parked, parked)
end
local heeds = there % 6 >= 3
local id, lead, spread = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local most, more = tonumber(ARGV[5]), tonumber(ARGV[7])
local provider = sub(due, 1, -5)

-- Numbers on their way out of and into Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Numbers leave as text through this alone: %.0f keeps every digit.
local function whole(n)
  return string.format('%.0f', n)
end

-- The TTL, in ms, of a key whose meaning ends us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- Writes r's state, which means nothing any more lasts µs from now.
local function write(r, now, kind, state, lasts)
  lasts = ceil(lasts)
  local spare = r.till - now - lasts
  if spare >= LEAST and spare <= MOST then
    redis.call('SET', r.key, char(kind) .. pack(r.till) .. state, 'KEEPTTL')
  else
    redis.call('SET', r.key, char(kind) .. pack(now + lasts + LONGER) .. state, 'PX', outlast(lasts + LONGER))
  end
end

-- How far the latest start of a state is ahead of the clock, and what that tells of steps of the
-- clock. It is one table, since locals are few.
local stored = { known = {} }

-- The state of a rule: a call that needs many reads them at once.
function stored.get(key)
  local v = stored.known[key]
  if v == nil then
    return redis.call('GET', key)
  end
  return v
end

-- The byte of the state.
function stored.ahead(now, latest)
  return char(min(255, max(0, ceil((latest - now) / 250000))))
end

-- By how many µs the clock has stepped back since the state was written, at least; 0 for less than
-- a second, or than `least`, which is waited for. With so much taken off, all its times are no earlier
-- against the clock than they are in truth, and no later than when it was written.
function stored.stepped(now, latest, notches, least)
  local back = latest - notches * 250000 - now
  return back > max(1000000, least or 0) and back or 0
end

-- What a state of another algorithm still holds against the rule: times and units by
-- turns, oldest first. Of a bucket, which knows no times, it is the level as of its last
-- decision: all that its rate has not let go.
function stored.carried(v)
  local kind = byte(v, 1)
  if kind == TOKEN then
    local at = unpack7(v, 9)
    return { at - stored.stepped(now, at, byte(v, 44)), ceil(unpack7(v, 16) / unpack7(v, 23)) }
  elseif kind == FIXED then
    return { unpack7(v, 23), unpack7(v, 30), unpack7(v, 9), unpack7(v, 16) }
  elseif kind == CALENDAR then
    return { unpack7(v, 30), unpack7(v, 37), unpack7(v, 9), unpack7(v, 23) }
  end
  local out, grain, cell, i = {}, unpack7(v, 9), unpack7(v, 23), 52
  local tail = unpack7(v, 37)
  local back = floor(stored.stepped(now, (tail - 1) * grain, byte(v, 51)) / grain)
  local function unvarint()
    local n, digit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, digit, i = n + (b - 128) * digit, digit * 128, i + 1
      b = byte(v, i)
    end
    i = i + 1
    return n + b * digit
  end
  while i <= #v do
    cell = i > 52 and cell + unvarint() or cell
    out[#out + 1], out[#out + 2] = (cell - back) * grain, unvarint()
  end
  out[#out + 1], out[#out + 2] = (tail - back) * grain, unpack7(v, 44)
  return out
end

-- The algorithms, by kind; those that a call has no rule of are left out of its
-- script, since making functions is what a short script spends most on. Each has
--   load(key, now, cost, a, b, c, d, member)  the rule as it stands; healed where
--                         that is no longer what is stored, and stepped where the clock has
--                         stepped back since: it must be stored, or each look would find the
--                         state as new as the first one did
--   fit(r, t)             the first moment from t on at which it admits the cost, and
--                         true where it may be later; nil can't tell
--   charge(r, now, start) takes the cost at start, in r only; returns its place
--   refund(r, now, place) takes it back, in r only; returns the units that came
--                         back, and says in r.changed whether anything did
--   save(r, now, start)   writes r
--   remaining(r, now)     units left
--   reset(r, now)         µs until it is as if unused; -1 can't tell
--   lasts(r, now)         µs until the state means nothing any more
-- Concurrency keeps no state but its places: it refunds at once and has no lasts.
local algorithms = {}
-- Keeps the key at least until its meaning ends, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
-- token-bucket: at most cap + p/q * t units start in any interval of t µs, and
-- arrive so when they are up to slack µs apart in how late they are.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in parts of which q are a unit, drains p parts a µs. x stands at
-- the decision `at`, which never repeats, so that it also names the grant. `low`
-- is the least level that any charge after `since` met: nothing granted since
-- then can have been refilled below it, so a refund up to `low` is exact.
do
  -- What a level may come to when a limit changes: sums must stay exact.
  local MOST_PARTS = 4503599627370496

  -- So many µs, at the most, a bucket waits for a clock that has stepped back.
  local TO_AND_FRO = 10000000

  -- The level at t, below zero where the bucket has been full for a while.
  local function level(r, t)
    return r.x - (t - r.at) * r.p
  end

  -- x parts, of which q are a unit, in parts of this rule's own unit.
  local function convert(r, x, q, round)
    local rest = x % q
    return min(MOST_PARTS, (x - rest) / q * r.q + round(rest / q * r.q))
  end

  -- Lets go what a limit that was changed makes of the level beyond full: a bucket that
  -- was lowered would be waited for for as long as it takes to drain that at its new
  -- rate. What is granted ahead is left on top. What an API makes of the rate forgets
  -- nothing, debts of another burst neither: `whole` is the rate without that.
  local function clip(r, whole)
    local most = (whole and 2 or 1) * r.cap * r.q + FAR_AHEAD * max(r.p, whole or 0)
    if r.p > 0 and r.x > most then
      r.x, r.since, r.low = most, r.at + 1, 0
    end
  end

  local function load(key, now, cost, p, q, cap, slack, _, whole)
    local r = { kind = 'T', key = key, cost = cost, p = p, q = q, cap = cap, slack = slack,
      at = now - slack - 1, x = 0, since = now, low = UNTOUCHED, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= TOKEN then
      -- What the bucket would hold, had it been there: no more than that is spent.
      local units = stored.carried(v)
      r.at, r.low, r.healed = min(units[1], now), 0, true
      for i = 1, #units, 2 do
        local t = min(units[i], now)
        r.x = max(0, r.x - (t - r.at) * p)
        r.x, r.at = min(MOST_PARTS, r.x + min(MOST_PARTS, units[i + 1] * q)), t
      end
      clip(r)
      return r
    end
    r.at, r.x, r.since, r.low = unpack7(v, 9), unpack7(v, 16), unpack7(v, 30), unpack7(v, 37)
    r.till = unpack7(v, 2)
    local before = unpack7(v, 23)
    if before ~= q and p > 0 then
      r.x = convert(r, r.x, before, ceil)
      r.low = r.low < UNTOUCHED and max(0, convert(r, r.low, before, floor) - 1) or r.low
      -- One that was corrected before counted in finer parts of the same unit.
      clip(r, whole or before > q and before % q == 0 and p)
    end
    -- A clock that goes to and fro would fill the bucket each time that it goes forth: so it is waited
    -- for, where that takes no longer than the bucket does to fill.
    local back = stored.stepped(now, r.at, byte(v, 44), p > 0 and min(TO_AND_FRO, cap * q / p) or 0)
    if back > 0 then
      r.at, r.low, r.healed, r.stepped = r.at - back, 0, true, true
      r.since = r.at
    end
    return r
  end

  local function fit(r, t)
    if r.p == 0 or r.cost > r.cap then
      return nil
    end
    local over = level(r, t) + r.slack * r.p + (r.cost - r.cap) * r.q
    return over <= 0 and t or t + ceil(over / r.p)
  end

  local function charge(r, now, start)
    local p, at_start = r.p, max(0, level(r, start))
    -- A rate that was corrected may be whole before the start comes, or be raised by then, and
    -- must not drain then what is taken there: the level is kept as of the start.
    local mark = max(now, r.at + 1, (r.corrected or r.raises) and start or 0)
    local x = max(level(r, now), (start - now) * p) + r.cost * r.q
    if at_start < r.q then
      r.since, r.low = mark, UNTOUCHED
    elseif at_start < r.low then
      r.low = at_start
    end
    r.x, r.at = max(0, x - (mark - now) * p), mark
    return mark
  end

  local function refund(r, now, mark)
    if r.p == 0 or not r.found or r.healed or mark < r.since or mark > r.at then
      return 0
    end
    local back = max(0, min(r.cost * r.q, level(r, now), r.x))
    if mark < r.at and r.low < UNTOUCHED then
      back = min(back, r.low)
      r.low = r.low - back
    end
    r.x, r.changed = r.x - back, back > 0
    return floor(back / r.q)
  end

  -- A bucket that has been full for less than slack is not yet as if untouched.
  local function lasts(r, now)
    return max(0, level(r, now) / r.p + r.slack)
  end

  local function save(r, now)
    write(r, now, TOKEN, pack(r.at) .. pack(r.x) .. pack(r.q) .. pack(r.since) .. pack(r.low)
      .. stored.ahead(now, r.at), lasts(r, now))
  end

  local function remaining(r, now)
    return r.p == 0 and 0 or max(0, floor((r.cap * r.q - max(0, level(r, now) + r.slack * r.p)) / r.q))
  end

  local function reset(r, now)
    return r.p == 0 and -1 or ceil(lasts(r, now))
  end

  algorithms.T = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts }
end
-- sliding-window: never more than cap units in any window of `per` µs.
-- Source: docs/algorithms.md#sliding-window
--
-- Time is cut into cells of `grain` µs. A unit counts from its start and leaves
-- `per` after the end of its cell: less than a grain late and never early, so
-- that per/grain + 1 cells are enough whatever the limit. Cells are numbered by
-- their ends. The last one (tail) stands apart, since it grows most; `log` holds
-- those before it that have units, oldest first, as varints: units, then (cells
-- since the one before, units) for each next.
do
  local function varint(n)
    local s = ''
    while n >= 128 do
      local low = n % 128
      s = s .. char(128 + low)
      n = (n - low) / 128
    end
    return s .. char(n)
  end

  -- Returns the number at i and the place after it.
  local function unvarint(v, i)
    local n, unit, b = 0, 1, byte(v, i)
    while b >= 128 do
      n, unit, i = n + (b - 128) * unit, unit * 128, i + 1
      b = byte(v, i)
    end
    return n + b * unit, i + 1
  end

  -- Calls visit(cell, units, entry, from, to, before) for each entry of the log,
  -- oldest first, until it returns true. In the text, the entry begins at entry
  -- and its units stand at from, up to but not at to; before is the cell before.
  local function each(r, visit)
    local log, pos, cell, before = r.log, 1, r.head, nil
    local len = #log
    while pos <= len do
      local entry, delta, from, units = pos, 0, pos, 0
      if before then
        delta, from = unvarint(log, pos)
        cell = before + delta
      end
      units, pos = unvarint(log, from)
      if visit(cell, units, entry, from, pos, before) then
        return true
      end
      before = cell
    end
  end

  local function clear(r)
    r.total, r.head, r.last, r.tail, r.count, r.log = 0, 0, 0, 0, 0, ''
  end

  -- Puts units into a cell after all of the log.
  local function append(r, cell, units)
    if r.log == '' then
      r.head, r.log = cell, varint(units)
    else
      r.log = r.log .. varint(cell - r.last) .. varint(units)
    end
    r.last = cell
  end

  -- Puts units into a cell before the last of the log.
  local function insert(r, cell, units)
    each(r, function(at, had, entry, from, to, before)
      if at < cell then
        return false
      elseif at == cell then
        r.log = sub(r.log, 1, from - 1) .. varint(had + units) .. sub(r.log, to)
      elseif before then
        r.log = sub(r.log, 1, entry - 1) .. varint(cell - before) .. varint(units)
          .. varint(at - cell) .. sub(r.log, from)
      else
        r.log, r.head = varint(units) .. varint(at - cell) .. r.log, cell
      end
      return true
    end)
  end

  local function put(r, cell, units)
    if r.total == 0 then
      clear(r)
      r.tail = cell
    end
    r.total = r.total + units
    if cell > r.tail then
      append(r, r.tail, r.count)
      r.tail, r.count = cell, units
    elseif cell == r.tail then
      r.count = r.count + units
    elseif r.log == '' or cell > r.last then
      append(r, cell, units)
    else
      insert(r, cell, units)
    end
  end

  -- Writes all cells anew: in another grain, each at the later end, and without
  -- some units of one of them. Returns how many those were.
  local function rewrite(r, grain, less, cost)
    local old, back = { head = r.head, log = r.log }, 0
    local was, tail, count = r.grain, r.tail, r.count
    local function keep(cell, units)
      if cell == less then
        back = min(units, cost)
      end
      if cell ~= less or units > back then
        put(r, ceil(cell * was / grain), cell == less and units - back or units)
      end
    end
    clear(r)
    each(old, keep)
    if count > 0 then
      keep(tail, count)
    end
    r.grain = grain
    return back
  end

  -- Forgets what has left the window.
  local function expire(r, now)
    local gone = floor((now - r.per) / r.grain)
    if r.tail <= gone then
      clear(r)
    elseif r.log ~= '' and r.head <= gone then
      local rest, head = '', 0
      each(r, function(cell, units, _, from)
        if cell > gone then
          rest, head = sub(r.log, from), cell
          return true
        end
        r.total = r.total - units
      end)
      r.log, r.head = rest, head
    end
  end

  -- The units of another algorithm. A bucket does not know when what it granted
  -- last begins: in no more than a second.
  local function take_over(r, v, now)
    local units, later = stored.carried(v), byte(v, 1) == TOKEN and 1000000 or 0
    for i = 1, #units, 2 do
      if units[i + 1] > 0 then
        put(r, ceil(min(units[i] + later, now + FAR_AHEAD) / r.grain), units[i + 1])
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, grain)
    local r = { kind = 'S', key = key, cost = cost, cap = cap, per = per, grain = grain,
      total = 0, head = 0, last = 0, tail = 0, count = 0, log = '', till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= SLIDING then
      take_over(r, v, now)
      expire(r, now)
      return r
    end
    r.till, r.grain, r.total, r.head = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.last, r.tail, r.count, r.log = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), sub(v, 52)
    local back = stored.stepped(now, (r.tail - 1) * r.grain, byte(v, 51))
    if r.grain ~= grain then
      rewrite(r, grain)
    end
    back = floor(back / grain)
    if back > 0 then
      r.tail, r.healed, r.stepped = r.tail - back, true, true
      if r.log ~= '' then
        r.head, r.last = r.head - back, r.last - back
      end
    end
    expire(r, now)
    return r
  end

  -- The moment from which `need` of the units held have left.
  local function leave(r, need)
    local at = r.tail
    each(r, function(cell, units)
      need = need - units
      if need <= 0 then
        at = cell
        return true
      end
    end)
    return at * r.grain + r.per
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local need = r.total + r.cost - r.cap
    return need <= 0 and t or max(t, leave(r, need))
  end

  local function charge(r, _, start)
    local cell = ceil(start / r.grain)
    put(r, cell, r.cost)
    return cell * r.grain
  end

  local function refund(r, _, place)
    if r.total == 0 or r.healed then
      return 0
    end
    local back = rewrite(r, r.grain, ceil(place / r.grain), r.cost)
    r.changed = back > 0
    return back
  end

  local function lasts(r, now)
    return r.total == 0 and 0 or r.tail * r.grain + r.per - now
  end

  local function save(r, now)
    write(r, now, SLIDING, pack(r.grain) .. pack(r.total) .. pack(r.head) .. pack(r.last) .. pack(r.tail)
      .. pack(r.count) .. stored.ahead(now, (r.tail - 1) * r.grain) .. r.log, lasts(r, now))
  end

  local function remaining(r)
    return max(0, r.cap - r.total)
  end

  algorithms.S = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
-- fixed-window: at most cap units in each window of `per` µs since the epoch.
-- Source: docs/algorithms.md#fixed-window
--
-- The state is the latest charged window and the one before it, each by its last
-- start, with their units: a start ahead does not close the window at hand. No
-- unit goes into a window before those two, and none comes back that was taken
-- before `since`, when the state began. The last `slack` µs of a window admit
-- nothing: what starts late must not land in the next. A clock that steps back by
-- less than a window finds those two as they were; otherwise what they had counts in
-- the window at hand.
do
  -- The units of another algorithm, in the last two windows that have any.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and floor(t / r.per) > floor(r.last / r.per) then
        r.prior, r.before, r.last, r.count = r.last, r.count, t, n
      elseif n > 0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, slack)
    local r = { kind = 'F', key = key, cost = cost, cap = cap, per = per, slack = min(slack, per - 1),
      last = 0, count = 0, prior = 0, before = 0, since = now, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= FIXED then
      take_over(r, v, now)
      return r
    end
    r.till, r.since = unpack7(v, 2), unpack7(v, 37)
    r.last, r.count, r.prior, r.before = unpack7(v, 9), unpack7(v, 16), unpack7(v, 23), unpack7(v, 30)
    local notches = byte(v, 44)
    if stored.stepped(now, r.last, notches) > per then
      r.count = r.count + (notches > 0 and r.before or 0) -- the last start was in a window ahead, maybe
      r.last, r.prior, r.before, r.since, r.healed, r.stepped = now, 0, 0, now, true, true
    elseif floor(r.prior / per) == floor(r.last / per) then
      r.count, r.before = r.count + r.before, 0
    end
    return r
  end

  local function window(r, t)
    return floor(t / r.per)
  end

  local function used(r, w)
    return w == window(r, r.last) and r.count or w == window(r, r.prior) and r.before or 0
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local w = window(r, t)
    if w < window(r, r.prior) then
      w = window(r, r.prior)
      t = w * r.per
    end
    while (w + 1) * r.per - t <= r.slack or used(r, w) + r.cost > r.cap do
      w = w + 1
      t = w * r.per
    end
    return t
  end

  local function charge(r, _, start)
    local w, latest = window(r, start), window(r, r.last)
    if w == latest then
      r.last, r.count = max(r.last, start), r.count + r.cost
    elseif w == window(r, r.prior) then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      if w > latest then
        r.prior, r.before, r.last, r.count = r.last, r.count, start, r.cost
      else
        r.prior, r.before = start, r.cost
      end
      r.since = max(r.since, window(r, r.prior) * r.per) -- the window before those two is let go
    end
    return start
  end

  local function refund(r, _, place)
    local w, back = window(r, place), 0
    if r.healed or place < r.since then
      return 0
    elseif w == window(r, r.last) then
      back = min(r.count, r.cost)
      r.count = r.count - back
      if r.count == 0 and r.prior > 0 then
        r.last, r.count, r.before = r.prior, r.before, 0
      end
    elseif w == window(r, r.prior) then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed = back > 0
    return back
  end

  -- µs until the last window with units is over, and the last is open that may
  -- not get any.
  local function lasts(r, now)
    local last = r.count > 0 and r.last or r.before > 0 and r.prior or r.prior - r.per
    return max(0, (window(r, last) + 1) * r.per - now)
  end

  local function save(r, now)
    write(r, now, FIXED, pack(r.last) .. pack(r.count) .. pack(r.prior) .. pack(r.before) .. pack(r.since)
      .. stored.ahead(now, r.last), lasts(r, now))
  end

  local function remaining(r, now)
    local w = window(r, now)
    return w < window(r, r.prior) and 0 or max(0, r.cap - used(r, w))
  end

  algorithms.F = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
-- concurrency: at most cap runs at once, each holding a place under its attempt
-- id until it is released or its lease runs out unrenewed.
-- Source: docs/algorithms.md#concurrency
--
-- A sorted set of attempt ids by the end of their lease.
do
  local function bounds(now)
    return '(' .. whole(now), whole(now + LONGEST_LEASE + FAR_AHEAD)
  end

  local function load(key, now, cost, cap, lease, _, _, member)
    local from, to = bounds(now)
    local r = { kind = 'C', key = key, cost = cost, cap = cap, lease = lease, member = member, now = now,
      held = redis.call('ZCOUNT', key, from, to), mine = false }
    if r.held >= cap and r.held > 0 then
      local ends = redis.call('ZSCORE', key, member)
      r.mine = ends and tonumber(ends) > now or false
    end
    return r
  end

  -- The end of one of the leases now held: skip others end before it
  -- (ZRANGEBYSCORE) or after it (ZREVRANGEBYSCORE). Nil when there are not so many:
  -- some places are only set aside.
  local function ends(command, key, a, b, skip)
    return tonumber(redis.call(command, key, a, b, 'WITHSCORES', 'LIMIT', whole(skip), 1)[2] or '')
  end

  -- A full rule has a place free when as many leases have ended as are too many,
  -- unless they are renewed.
  local function fit(r, t)
    if r.held < r.cap or r.mine then
      return t
    elseif r.cap == 0 then
      return nil
    end
    local from, to = bounds(r.now)
    r.free = r.free or ends('ZRANGEBYSCORE', r.key, from, to, r.held - r.cap) or r.now + r.lease
    return max(t, r.free), true
  end

  local function charge(r)
    if not r.mine then
      r.held, r.free = r.held + 1, nil
    end
    return 0
  end

  local function refund(r)
    return redis.call('ZREM', r.key, r.member)
  end

  local function save(r, now, start)
    redis.call('ZREMRANGEBYSCORE', r.key, '-inf', whole(now))
    redis.call('ZADD', r.key, whole(start + r.lease), r.member)
    keep(r.key, start + r.lease - now)
  end

  local function remaining(r)
    return max(0, r.cap - r.held)
  end

  local function reset(r, now)
    local from, to = bounds(now)
    return r.held > 0 and ends('ZREVRANGEBYSCORE', r.key, to, from, 0) - now or 0
  end

  algorithms.C = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
-- calendar: at most cap units in each period, and up to `rollover` that the period
-- before it left over.
-- Source: docs/algorithms.md#calendar
--
-- A period begins at b0 and at b1 the next one does; a is when the one before began,
-- b2 and b3 are when the next two end. They come from the caller, whose clock or
-- memory may be wrong: where the clock is not between b0 and b1 the rule is stale, and
-- admits nothing until the caller has others.
--
-- The state is the latest period that has units and the one before it, each by the
-- last of its starts, as with fixed windows: whatever the boundaries are by now, none
-- of its units started later. `from` is no later than any start of the latest, `since`
-- than any of both. A start ahead may stand in the next period while this one still
-- has room. `carry` is what had been rolled over into the period before; what comes to
-- the latest follows from it, so that what is given back late is rolled over too. The
-- last `slack` µs of a period admit nothing. Where what is left is spread, nothing
-- starts before `next`; before the last charge that was `was`.
do
  local EXACT = 9007199254740991

  -- How soon to ask a rule again that is stale.
  local SOON = 10000

  -- units/of of a time, rounded up; no more than it. All are whole.
  local function part(time, units, of)
    local rest = time % of
    local over = rest * units
    if over <= EXACT then
      over = ceil(over / of)
    else
      over = ceil(rest / of * units) + 1
    end
    return min(time, (time - rest) / of * units + over)
  end

  -- What the period before the latest has left over, once it has ended.
  local function left_over(r)
    if r.prior == 0 or r.prior >= r.b0 then
      return 0
    end
    return min(r.rollover, max(0, r.cap + min(r.carry, r.rollover) - r.before))
  end

  -- Begins a period: the latest is the one before from now on, or, where it ended
  -- sooner than at `from`, one that passed without a unit. What had been rolled over into
  -- that one rolls on; several in a row count as one.
  local function begin(r, from, before)
    local carry = left_over(r)
    r.gap = r.last < before
    if r.gap then
      carry = min(r.rollover, max(0, r.cap + carry - r.count))
      r.prior, r.before, r.carry, r.since = before, 0, carry, max(r.since, before)
    else
      r.prior, r.before, r.carry, r.since = r.last, r.count, carry, max(r.since, r.from)
    end
    r.last, r.from, r.count, r.next, r.was = from, from, 0, 0, 0
  end

  -- Sees the state as it is at now: r.idle where the period at hand has no units,
  -- r.ahead where the latest is the next one, r.gone where nobody knows any more what
  -- the one at hand had, since the clock has stepped back into it.
  local function settle(r, now)
    if r.last - now > 2 * FAR_AHEAD then
      r.count = r.count + (r.prior >= r.b0 and r.before or 0)
      r.last, r.from, r.since, r.healed, r.stepped = now, now, now, true, true
      r.prior, r.before, r.carry, r.next, r.was = 0, 0, 0, 0, 0
    elseif r.last < r.b0 then
      begin(r, r.b0, r.a)
      r.idle = true
    elseif r.from >= r.b1 then
      r.ahead = true
      if r.prior < r.b0 then -- the boundaries have changed, or the clock has stepped back
        r.prior, r.before, r.carry, r.since = r.b0, 0, left_over(r), max(r.since, r.b0)
      end
    end
    r.gone = r.ahead and r.since >= r.b1 and r.prior >= r.b1
    r.next = r.spread and min(r.next, r.ahead and r.b2 or r.b1) or 0
  end

  -- The units of another algorithm that are of the period at hand. What the one before
  -- it left over nobody knows.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and t >= r.b0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = r.found
  end

  local function load(key, now, cost, rule)
    local r = { kind = 'K', key = key, cost = cost, cap = unpack7(rule, 2), b0 = unpack7(rule, 9), b1 = unpack7(rule, 16),
      b2 = unpack7(rule, 23), slack = unpack7(rule, 30), rollover = unpack7(rule, 37), spread = unpack7(rule, 44) == 1,
      a = unpack7(rule, 51), b3 = unpack7(rule, 58), count = 0, prior = 0, before = 0, carry = 0, since = now,
      next = 0, was = 0, till = 0, found = false, healed = false }
    r.last, r.from, r.stale = r.b0, r.b0, now < r.b0 or now >= r.b1
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = not r.stale or byte(v, 1) == CALENDAR
    if byte(v, 1) ~= CALENDAR then
      take_over(r, v, now)
      return r
    end
    r.till, r.last, r.from, r.count = unpack7(v, 2), unpack7(v, 9), unpack7(v, 16), unpack7(v, 23)
    r.prior, r.before, r.carry, r.since = unpack7(v, 30), unpack7(v, 37), unpack7(v, 44), unpack7(v, 51)
    r.next, r.was, r.ends, r.raw = unpack7(v, 58), unpack7(v, 65), r.till - LONGER, sub(v, 9)
    if not r.stale then
      settle(r, now)
    end
    return r
  end

  -- The units of the period at hand, and of the next. Where the boundaries have
  -- changed, those that may be of either count in both.
  local function used(r)
    return r.ahead and r.before or r.count + (r.prior >= r.b0 and r.before or 0)
  end

  local function used_next(r)
    return r.last >= r.b1 and r.count + (r.prior >= r.b1 and r.before or 0) or 0
  end

  -- The units that the period at hand has left, and the next one, which gets nothing
  -- rolled over before it has begun.
  local function room(r)
    return r.gone and 0 or r.cap + (r.ahead and min(r.carry, r.rollover) or left_over(r)) - used(r)
  end

  local function room_next(r)
    return r.cap - used_next(r)
  end

  -- What happens from b2 on nobody knows here, only that nothing is admitted sooner.
  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    elseif r.stale then
      return max(t, now + SOON), true
    end
    local at = max(t, r.next)
    if at < r.b1 - r.slack and room(r) >= r.cost then
      return at
    end
    at = max(at, r.b1)
    if at < r.b2 - r.slack then
      local left = room_next(r)
      if left >= r.cost then
        return at
      elseif left + min(r.rollover, max(0, room(r))) >= r.cost then
        return at, true
      end
    end
    return max(t, r.b2), true
  end

  local function charge(r, _, start)
    if r.stale then
      return start
    end
    local here, was = start < r.b1, r.next
    local left, ends = here and room(r) or room_next(r), (here and r.b1 or r.b2) - r.slack
    if not here and r.last < r.b1 then
      begin(r, r.b1, r.b0)
      r.ahead = true
    end
    if here and r.ahead then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      r.last, r.from, r.count = max(r.last, start), min(r.from, start), r.count + r.cost
    end
    r.idle = false
    if r.spread then
      r.was, r.next = was, start + part(max(0, ends - start), r.cost, max(left, r.cost))
    end
    return start
  end

  -- The pace goes back by the charge that was the last.
  local function refund(r, _, place)
    local back = 0
    if r.healed or place < r.since then
      return 0
    elseif place >= r.from and place <= r.last then
      back = min(r.count, r.cost)
      r.count = r.count - back
      r.next = place == r.last and r.was or r.next
    elseif place <= r.prior then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed, r.idle = back > 0, r.idle and back == 0
    return back
  end

  -- µs until the rule is as if unused.
  local function reset(r, now)
    if r.stale then
      return 0
    elseif used_next(r) > 0 then
      return r.b2 - now
    end
    return used(r) > 0 and r.b1 - now or max(0, r.next - now)
  end

  -- µs until the state means nothing any more: where units roll over, not before
  -- another period has passed.
  local function lasts(r, now)
    if r.stale then
      return max(0, (r.ends or r.b1) - now)
    elseif r.rollover == 0 then
      return reset(r, now)
    elseif r.idle then
      return r.gap and 0 or r.b2 - now -- of what was before a gap nobody knows how long it has been
    end
    return r.b3 + (r.ahead and r.b3 - r.b2 or 0) - now
  end

  local function save(r, now)
    if r.idle then
      return write(r, now, CALENDAR, r.raw, lasts(r, now))
    end
    write(r, now, CALENDAR, pack(r.last) .. pack(r.from) .. pack(r.count) .. pack(r.prior)
      .. pack(r.before) .. pack(r.carry) .. pack(r.since) .. pack(r.next) .. pack(r.was), lasts(r, now))
  end

  local function remaining(r)
    return (r.stale or r.cap == 0) and 0 or max(0, room(r))
  end

  -- When `units` before it and then the cost will have been admitted: an estimate,
  -- which takes later periods to be as long as the next.
  local function after(r, now, units)
    if r.cost > r.cap or r.stale then
      return (fit(r, now))
    end
    local at, ends, left = max(now, r.next), r.b1 - r.slack, max(0, room(r))
    if at >= ends or units + r.cost > left then
      units = at < ends and max(0, units - left) or units
      at, ends, left = max(at, r.b1), r.b2, max(0, room_next(r))
      if units + r.cost > left then
        units = max(0, units - left)
        local rest = units % r.cap
        at, left = r.b2 + (units - rest) / r.cap * (r.b2 - r.b1), r.cap
        units, ends = rest, at + r.b2 - r.b1
      end
    end
    return min(EXACT, r.spread and at + part(max(0, ends - at), units, left) or at)
  end

  algorithms.K = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset, lasts = lasts, after = after }
end
-- The rules of a call: a key each, and two ARGV: the rule and its cost. A rule is a
-- letter and numbers of seven bytes each, as include/pack.lua writes them:
--   T token-bucket    p      q      cap    slack  most
--   S sliding-window  cap    per    grain  slack  most
--   F fixed-window    cap    per    slack  -      most
--   C concurrency     cap    lease  -      -      -
--   K calendar        cap    b0     b1     b2, and five more: slack, rollover, spread, a, b3; see
--                     include/calendar.lua
-- The name of what it counts may follow, where that is not requests, or "*": decisions are told
-- what each rule costs, and have no need of it. p = 0 and cap = 0 suspend; slack < per, and part
-- of it in a sliding window. What an API says may make most millionths of a limit, 0 for no more
-- than it is. All times are whole microseconds.

-- What an API makes of a rule's numbers, where it has told anything: see include/told.lua.
local corrected

local function most_of(rule)
  return max(1000000, #rule > 35 and unpack7(rule, 30) or 0)
end

-- Rule i, which a text describes.
local function load_rule(i, rule, cost, member, now)
  if sub(rule, 1, 1) == 'K' then
    return algorithms.K.load(KEYS[i], now, cost, rule)
  end
  local kind, a, b, c, d = sub(rule, 1, 1), unpack7(rule, 2), unpack7(rule, 9), unpack7(rule, 16), unpack7(rule, 23)
  local most, changed, whole, burst = kind == 'T' and c or a, nil, nil, nil
  if corrected then
    a, b, changed, whole, burst = corrected(KEYS[i], rule, kind, a, b, c, d)
  end
  local r = algorithms[kind].load(KEYS[i], now, cost, a, b, c, d, member, whole)
  r.corrected, r.cap, r.most = changed, burst or r.cap, most
  r.raises = kind == 'T' and most_of(rule) > 1000000
  return r
end

-- Rule i, whose text is ARGV[first], and its cost the next.
local function read_rule(i, first, member, now)
  return load_rule(i, ARGV[first], tonumber(ARGV[first + 1]), member, now)
end
-- µs from now until a rule alone would admit its cost; -1 can't tell.
local function retry_of(r, now)
  local t = algorithms[r.kind].fit(r, now)
  return t and t - now or -1
end

-- The first moment from now on at which every rule that can tell admits its cost,
-- the rule that asked for it, and whether that is sure: a suspended rule can't
-- tell, a full concurrency rule hopes for leases to end. Fixed windows that are
-- out of step may take long to agree; then it is only the earliest that it can be.
local function joint_start(rules, now)
  local start, binding, sure = now, 0, true
  for _ = 1, 50 do
    local before = start
    for i = 1, #rules do
      local t, hope = algorithms[rules[i].kind].fit(rules[i], start)
      if not t or hope then
        sure = false
      end
      if t and t > start then
        start, binding = t, i
      end
    end
    if start == before or #rules == 1 then
      return start, binding, sure
    end
  end
  return start, binding, false
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

-- A denial: how long until all would be admitted, and every rule's report. What
-- can't be told (-1) outlasts every wait, and a pause besides is told as so much less
-- than that: one by hand, of which no script knows the end, may be over sooner. A pause
-- binds where no rule is for ever.
local function denied(rules, now, start, binding)
  local wait, pause = start - now, 0
  local out, last = { 0, 0, now, 0, 0 }, 0
  for i = 1, #rules do
    local r = rules[i]
    if r.kind ~= 'P' then
      local retry = retry_of(r, now)
      if wait >= 0 and retry < 0 then
        wait, binding = -1, i
      end
      report(out, i, r, now, retry, 0)
      last = i
    else
      pause = max(pause, r.ends - now)
      binding = pause > 0 and wait >= 0 and last + 1 or binding
    end
  end
  wait = wait < 0 and -1 - pause or wait
  out[4], out[5] = wait == 0 and 1 or wait, min(binding, last + 1)
  return out
end
-- What an API has told of the scopes of a provider. It needs call, now and told, and
-- where heeds says that there is anything. Source: docs/vendor.md#pauses
--
-- told   hash: P<level> the pause of a level and of all below it: when it ends, when it
--        began, and how long it was where the API did not say. A level is the path of a
--        scope after the provider's name. R<rule> the correction of a rule: see
--        include/correction.lua. #<level> how many of both there are below a name of the
--        second or third level; @ how far tell has looked through them for what is over.
--
-- A pause is one more rule of a path, behind the others: it admits nothing before it ends,
-- is charged nothing, and has a round of its own, which no name of a rule can be. One that
-- has ended stays until it is swept, since there may be those who waited for it.
algorithms.P = {
  fit = function(r, t)
    return max(t, r.ends)
  end,
  charge = function()
    return 0
  end,
}

-- While anything is told, who waits is looked at so soon: a correction may end, and will grow
-- back, before its rule admits more by itself.
local TOLD_LOOK = 1000000

-- What an API has made of a rule: a part of its limit, which was cut when calls were refused
-- and grows by the clock, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; the part, in millionths, of a moment, and by how many
-- it grows in a second; a limit, 0 for none, its window in µs, and until when it holds; until
-- when the part may be above the whole, since calls go through; when it was cut. One that a
-- worker of an earlier version has written ends with the first seven.
local WHOLE = 1000000

-- One table, since locals are few.
local corrections = {}

-- What says by its moment i when it was written, with the moments at all of a list of places as
-- they are since the clock has stepped back behind that: or else it would hold longer by the step.
-- The second result says so.
function corrections.brought_back(v, i, ...)
  local back = unpack7(v, i) - now
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs({ ... }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

-- The second result is the text of one that a step of the clock has changed.
function corrections.read(v)
  local changed
  if #v > 49 then
    v, changed = corrections.brought_back(v, 8, 1, 8, 43, 50, 57)
  end
  local r = { ends = unpack7(v, 1), since = unpack7(v, 8), part = unpack7(v, 15), grows = unpack7(v, 22),
    limit = unpack7(v, 29), per = unpack7(v, 36), till = unpack7(v, 43), raised = 0, cut = 0 }
  if r.till <= now then
    r.limit = 0
  end
  if #v > 49 then
    r.raised, r.cut = unpack7(v, 50), unpack7(v, 57)
  else
    r.cut = r.since
  end
  return r, changed and v or nil
end

-- The part by now, `most` at the most; while the API's own limit counts, the whole: from there
-- it grows on when that is over.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end

-- By level, false for none; and what a step of the clock has changed, as fields and texts by turns,
-- which whoever may write does: else each look would find a pause as new as the first one did.
local pauses = { stepped = {} }

local function pause_of(level)
  local p = pauses[level]
  if p == nil then
    local v, stepped = call('HGET', told, 'P' .. level), false
    if v then
      v, stepped = corrections.brought_back(v, 8, 1, 8)
    end
    if stepped then
      table.insert(pauses.stepped, 'P' .. level)
      table.insert(pauses.stepped, v)
    end
    p = v and { kind = 'P', name = level .. ':!stop', ends = unpack7(v, 1), unit = '', cost = 1, units = 0,
      lines = 0 } or false
    pauses[level] = p
  end
  return p
end

-- Adds the pauses of a scope and of all above it to the rules of its path.
local function add_pauses(path, scope)
  if not heeds then
    return
  end
  for ends in string.gmatch(scope .. '/', '()/') do
    local p = pause_of(sub(scope, 1, ends - 1))
    if p then
      path[#path + 1] = p
    end
  end
end

-- A bucket whose rate is corrected counts in so much finer parts, as far as its numbers
-- allow, so that only p changes from look to look: what it holds is rewritten when the first
-- correction comes and when the last one goes, and no unit is lost or won between. There is
-- room for what may come of its rate; one that is near MOST_RATE by itself goes no further.
local FINER, MOST_RATE, MOST_LEVEL = 1000, 33554432, 4503599627370495

-- So many millionths of n, rounded down: exact below 10^13 of them.
local function part_of(n, part)
  local rest = n % WHOLE
  return (n - rest) / WHOLE * part + floor(rest * part / WHOLE)
end

-- What of a limit counts: the part of it, or the API's own, 0 for none, of which refusals
-- leave less too where it is the larger. Never more than `most`.
local function counts(limit, own, part, most)
  if own == 0 then
    return min(most, part_of(limit, part))
  end
  own = min(own, most)
  return min(own, part_of(max(limit, own), min(part, WHOLE)))
end

if heeds then
  corrected = function(key, rule, kind, a, b, c, d)
    local v = kind ~= 'C' and a > 0 and call('HGET', told, 'R' .. sub(key, #told - 4))
    local r, stepped
    if v then
      r, stepped = corrections.read(v)
    end
    if stepped then
      table.insert(pauses.stepped, 'R' .. sub(key, #told - 4))
      table.insert(pauses.stepped, stepped)
    end
    if not r or r.ends <= now then
      return a, b
    end
    local most = most_of(rule)
    local part = corrections.part_at(r, most)
    if kind ~= 'T' then
      -- A limit is one of its window: the policy may have given the rule another since.
      local own = r.per == (kind == 'S' and b - d or b) and r.limit or 0
      return max(1, counts(a, own, part, part_of(a, most))), b, true
    end
    local top = a * most / WHOLE
    local finer = max(1, floor(min(FINER, MOST_RATE / top, MOST_LEVEL / (2 * b * c), MOST_LEVEL / (top * max(d, 1)))))
    local p, q, own, burst = a * finer, b * finer, 0, nil
    if r.limit > 0 then
      own, burst = max(1, floor(q * r.limit / r.per)), min(c, r.limit)
    end
    local rate = counts(p, own, part, min(part_of(p, most), MOST_RATE, floor(MOST_LEVEL / max(d, 1))))
    return max(1, rate), q, true, p, burst
  end
end
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
-- Which place a scope has among others, by what they and it have had. It needs call, now, at,
-- round, pack and the numbers. Source: docs/turns.md#shares
--
-- Each level of a path that has rules has a virtual time. The names right below it, its
-- nodes, have slots in that time, each node one after another: a slot is SLOT / weight
-- long for each unit. A scope in line holds a slot of its node at each level, and the
-- beginning of that is its tag there: the stamp of its seat while that is with a rule of
-- the level. All are kept in `at`:
--   V<level>  the virtual time: the highest tag that had its turn; none where nobody waits
--             below the level
--   F<node>   where the node's next slot begins
--   T<scope>  the tags of a scope in line, where several levels have rules: seven bytes for
--             each level from the provider down, zero where there are no rules. Where it has
--             places, one more byte: 1 for the second level, 2 for the third, 4, and so on
--   "         how many nodes were noted since some were last forgotten
-- The nodes of lines that were emptied are noted in `round`, until the time has passed their
-- next slots: ", 0, three zeros, when, node. Of all scopes that ever waited they would be as
-- many as those.
-- Where a level below the first has weights, each of its scopes in line has a place in the
-- round of the level too, whatever rule it waits for: level, 0, three zeros, tag, scope.
local SLOT, LATEST, PAST = 100000, 9007199254740991, '"'

-- Fields of `at` as they will be, false for none, and which of them are to be written; and
-- members of `round` that come or, false, go.
local held, noted, comes = {}, {}, {}

-- Commands read and write so many fields at a time.
local MANY = 500

-- Reads fields that are not known yet.
local function read_at(fields)
  local unknown = {}
  for i = 1, #fields do
    if held[fields[i]] == nil then
      unknown[#unknown + 1] = fields[i]
    end
  end
  for i = 0, #unknown - 1, MANY do
    local values = call('HMGET', at, unpack(unknown, i + 1, min(#unknown, i + MANY)))
    for j = 1, #values do
      held[unknown[i + j]] = values[j]
    end
  end
end

local function number_at(field)
  return tonumber(held[field] or 0)
end

-- Notes what a field will be, false for none.
local function note(field, value)
  held[field], noted[field] = value, true
end

-- Notes a time; the highest of all is kept, for levels that have none.
local function note_time(field, value)
  note(field, value)
  if value > number_at('#') then
    note('#', value)
  end
end

-- Writes what was noted of members. They come before others go: a key that is there stays,
-- with its TTL.
local function write_round()
  local come, go = {}, {}
  for member, is in pairs(comes) do
    if is then
      come[#come + 1], come[#come + 2] = '0', member
    else
      go[#go + 1] = member
    end
  end
  comes = {}
  for i = 1, #come, MANY do
    call('ZADD', round, unpack(come, i, min(#come, i + MANY - 1)))
  end
  for i = 1, #go, MANY do
    call('ZREM', round, unpack(go, i, min(#go, i + MANY - 1)))
  end
end

local function write_at()
  local set, gone = {}, {}
  for field in pairs(noted) do
    local value = held[field]
    if value then
      set[#set + 1], set[#set + 2] = field, type(value) == 'number' and whole(value) or value
    else
      gone[#gone + 1] = field
    end
  end
  noted = {}
  for i = 1, #set, MANY do
    call('HSET', at, unpack(set, i, min(#set, i + MANY - 1)))
  end
  for i = 1, #gone, MANY do
    call('HDEL', at, unpack(gone, i, min(#gone, i + MANY - 1)))
  end
end

local function level_of(name)
  return string.match(name, '^[^:]*')
end

-- The rules of a path that have units to share: pauses have none.
local function names_of(path)
  local names = {}
  for _, r in ipairs(path) do
    names[#names + 1] = r.kind ~= 'P' and r.name or nil
  end
  return names
end

-- The levels of a path that have rules, the provider's first.
local function levels_of(scope, names, weights)
  local shares, path = { scope = scope }, scope .. '/'
  for i = 1, #names do
    local level = level_of(names[i])
    if #shares == 0 or shares[#shares].level ~= level then
      local _, depth = string.gsub(level, '/', '')
      local weight = tonumber(weights[i]) or 0
      -- the name below the level: "/a" of "/a/x", and "/a/x/" where the scope is the level itself
      local ends = string.find(path, '/', #level + 2, true) or #path + 1
      shares[#shares + 1] = { level = level, node = sub(path, 1, ends - 1), depth = depth,
        placed = weight > 0 and #shares > 0, weight = weight > 0 and weight or 1 }
    end
  end
  return shares
end

local function place_at(level, tag, scope)
  return level .. '\0\0\0\0' .. pack(tag) .. scope
end

local read_slots
do
  -- The places that a scope has, as its tags say.
  local function places_had(tags, scope)
    local had, bits = {}, #tags % 7 == 1 and byte(tags, #tags) or 0
    for depth = 1, 7 do
      if bits % 2 == 1 then
        local level = string.match(scope, '^' .. string.rep('/[^/]*', depth))
        had[place_at(level, unpack7(tags, 7 * depth + 1), scope)] = true
      end
      bits = floor(bits / 2)
    end
    return had
  end

  -- The fields that the slots of a path's levels are read from, behind others.
  local function slot_fields(shares, scope, fields)
    fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = '#', PAST, 'T' .. scope
    for _, s in ipairs(shares) do
      fields[#fields + 1], fields[#fields + 2] = 'V' .. s.level, 'F' .. s.node
    end
    return fields
  end

  -- Reads the slots and, where several levels have rules, the tags, with other fields. Where
  -- a level has no time yet it begins with the highest stamp that anybody has.
  function read_slots(shares, others)
    if shares.had then
      return
    end
    local scope = shares.scope
    read_at(slot_fields(shares, scope, others or {}))
    local tags = held['T' .. scope] or ''
    shares.had = places_had(tags, scope)
    for _, s in ipairs(shares) do
      held['V' .. s.level] = held['V' .. s.level] or max(1, number_at('#'))
      if not s.tag and #tags >= 7 * s.depth + 7 then
        local tag = unpack7(tags, 7 * s.depth + 1)
        s.tag = tag > 0 and tag or nil
      end
    end
  end
end

-- What a path has of each level, for one who has a seat with the rule of a name. Where only
-- one level has rules, the stamp is the tag, and nothing is read for it.
local function shares_of(shares, name, stamp, others)
  local pause = name and (name == NO_RULE or sub(name, -6) == ':!stop')
  if name and #shares == 1 and (pause or level_of(name) == shares[1].level) then
    shares[1].tag = stamp
  else
    read_slots(shares, others)
  end
  return shares
end

-- Puts a node's next slot off by so many units, or on by those that nobody had a turn for,
-- which are below zero.
local function put_off(s, units)
  local length = max(1, floor(SLOT * math.abs(units) / s.weight + 0.5))
  local slot = number_at('F' .. s.node) + (units < 0 and -length or length)
  note_time('F' .. s.node, max(0, min(LATEST, slot)))
end

-- Takes the next slot of the node. The virtual time is the earliest: nobody saves up.
local function take_slot(s)
  local time = number_at('V' .. s.level)
  s.tag = max(time, number_at('F' .. s.node))
  held['F' .. s.node] = s.tag
  note_time('V' .. s.level, time)
  put_off(s, 1)
end

local function take_slots(shares)
  read_slots(shares)
  for _, s in ipairs(shares) do
    take_slot(s)
  end
end

-- The scope's tag in the rounds of a level, of the first one for a rule that it has not.
local function tag_at(shares, name)
  local level, its = level_of(name), shares[1]
  for _, s in ipairs(shares) do
    its = s.level == level and s or its
  end
  if not its.tag then
    read_slots(shares)
    take_slot(its)
  end
  return its.tag
end

-- No turn counts for more: units may be bytes, and virtual times are to last.
local MOST_OF_A_TURN = 10000

-- The units that a turn counts for at a level: the most that the task takes of any rule there.
local function units_at(level, path)
  local units = 1
  for i = 1, #path do
    if level_of(path[i].name) == level then
      units = max(units, min(path[i].cost, MOST_OF_A_TURN))
    end
  end
  return units
end

-- Notes a turn of a task that has met the rules of a path: the time comes to it. A slot is
-- for one unit, and the rest is paid now.
local function had_turn(shares, path)
  read_slots(shares)
  for _, s in ipairs(shares) do
    note_time('V' .. s.level, max(number_at('V' .. s.level), s.tag or 0))
    local units = units_at(s.level, path)
    if units > 1 then
      put_off(s, units - 1)
    end
  end
end

-- The level that a node is below: of "/a/" it is "/a", of "/a" and "/" the provider.
local function level_above(node)
  return string.match(node, '^(.*)/')
end

local function past_at(node)
  return PAST .. '\0\0\0\0' .. pack(now) .. node
end

-- Notes nodes of a line that was emptied, to be forgotten when the time has passed their
-- slots, and forgets all of rules and levels that nobody waits below. It needs the lines that wait
-- under each of the scope's rules, and its seat, which goes with this: without one there may
-- be no key.
local function remember(shares, names, seat)
  local waits = {}
  for _, name in ipairs(names) do
    local level = level_of(name)
    waits[level] = waits[level] or seat and number_at('N' .. name) > 0
    if number_at('N' .. name) == 0 then
      note('N' .. name, false)
      note('U' .. name, false)
    end
  end
  for _, s in ipairs(shares) do
    if not waits[s.level] then
      note('V' .. s.level, false)
    end
    if waits[s.level] and number_at('F' .. s.node) > number_at('V' .. s.level) then
      comes[past_at(s.node)] = true
      note(PAST, number_at(PAST) + 1)
    else
      note('F' .. s.node, false)
    end
  end
end

-- What T<scope> says of a scope in line, and its places.
local function tags_text(shares)
  local text, depth, bits, places = '', 0, 0, {}
  for _, s in ipairs(shares) do
    text = text .. string.rep(pack(0), s.depth - depth) .. pack(s.tag or 0)
    depth = s.depth + 1
    if s.placed and s.tag then
      bits = bits + 2 ^ (s.depth - 1)
      places[place_at(s.level, s.tag, shares.scope)] = true
    end
  end
  return bits > 0 and text .. char(bits) or text, places
end

-- Notes the tags of a scope and its places in the rounds of its levels, none where its line
-- is empty.
local function save_shares(shares, empty)
  if not shares.had then
    return -- they are as they were
  end
  local text, places = false, {}
  if not empty and #shares > 1 then
    text, places = tags_text(shares)
  end
  for place in pairs(shares.had) do
    if not places[place] then
      comes[place] = false
    end
  end
  for place in pairs(places) do
    if not shares.had[place] then
      comes[place] = true
    end
  end
  shares.had = places
  local scope = shares.scope
  if text ~= held['T' .. scope] then
    note('T' .. scope, text)
  end
end
-- The rule of a path that a task waits for, as its number in it, and when to look at
-- it, nil where it can't tell: one that can't, or the one that alone would admit the
-- task last. Whatever comes free of any other, it can't start before. That need not be
-- the one that asked for the start: a window may only be in the way of the moment that
-- others have put it off to.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return i, nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return last or max(1, binding), at or start
end

-- How many turns a call gives at most, moves of seats included, and how many
-- heads of a line are read at once.
local STEPS, HEADS, ROUNDS = 1000, 16, 64

-- How soon to look again at what can't be woken: a task that is too dear while an API's limit is
-- lower, or a scope that the caller doesn't know; and how soon to look at a suspended rule, which
-- a change of its limit brings up sooner.
local AGAIN, SUSPENDED = 1000000, 3600000000

-- How many scopes of a level to look at for one whose turn it rather is.
local RIVALS = 8

-- What a look knows of lines: the rules that their tasks meet, the sums that they count in, and
-- what their scopes have at each level. It needs what wake.lua begins with.

local lines, released, missing = {}, {}, {}
local out = 0
local known, moved, looks = {}, {}, {} -- by scope, by scope, by rule
local rules, rounds, places = {}, {}, {}

-- Reads rule i once.
local function rule(i)
  if not rules[i] then
    rules[i] = load_rule(i, ARGV[9 + i], 1, '', now)
    rules[i].name, rules[i].unit = rule_name(KEYS[i]), unit_of(ARGV[9 + i])
    if rules[i].stepped and rules[i].p ~= 0 then
      rules[i].till = 0
      algorithms[rules[i].kind].save(rules[i], now)
    end
  end
  return rules[i]
end

-- The rules of a line's scope.
local function rules_of(l)
  if not l.path then
    l.path, l.weights = {}, {}
    for i, weight in path_numbers(l.path_text) do
      l.path[#l.path + 1], l.weights[#l.path + 1] = rule(tonumber(i)), weight
    end
    add_pauses(l.path, l.scope)
  end
  return l.path
end

-- Those that a task meets, each with its cost.
local function path_of(l, ticket)
  return counted(rules_of(l), ticket)
end

-- The units that a line is counted in: requests, and those of its rules.
local function units_of(l)
  if not l.of then
    l.of = { [REQUESTS] = true }
    for i in path_numbers(l.path_text) do
      l.of[unit_of(ARGV[9 + tonumber(i)])] = true
    end
  end
  return l.of
end

-- Counts a task into a line (1) or out of it (-1).
local function count(l, ticket, sign)
  for unit in pairs(units_of(l)) do
    l.units[unit] = (l.units[unit] or 0) + sign * cost_of(ticket, unit)
  end
end

local function miss(scope)
  if not known[scope] then
    known[scope] = true
    missing[#missing + 1] = scope
  end
end

local function first_rules()
  for i = n + 6, #KEYS - 1 do
    local scope = sub(KEYS[i], #provider + 1, -6)
    local path = ARGV[i + 4]
    lines[scope] = { key = KEYS[i], path_text = path, scope = scope, taken = 0, next = 1, units = {}, left = byte(path) == 33 }
  end
end

-- What the last look was before the clock has stepped back: see wake.lua.
local STEPPED = '^'

-- The last look, and whether a task may be first that takes nothing of the rule which its
-- scope has its seat with.
read_at({ '#', '@', MIXED, PAST, STEPPED })
local beat, mixed = number_at('@'), held[MIXED]

-- The names of a line's rules.
local function names_in(l)
  local names = {}
  for i in path_numbers(l.path_text) do
    names[#names + 1] = rule_name(KEYS[tonumber(i)])
  end
  return names
end

-- The sums that a line counts in.
local function sums_of(l)
  local fields = {}
  for unit in pairs(units_of(l)) do
    fields[#fields + 1] = sum_of(l.scope, unit)
  end
  for _, name in ipairs(names_in(l)) do
    fields[#fields + 1], fields[#fields + 2] = 'U' .. name, 'N' .. name
  end
  return fields
end

-- What a line's scope has at each level, with what its turn is to change.
local function slots(l)
  l.shares = l.shares or levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
  read_slots(l.shares, sums_of(l))
  return l.shares
end

-- The same, as far as it must be known of one who has a seat.
local function shares(l, seat)
  if not l.shares then
    l.shares = levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
    shares_of(l.shares, seat and seat.name, seat and seat.stamp, sums_of(l))
  end
  return l.shares
end
-- Tasks of groups that stand still, and those too dear for a lowered limit: nobody starts them, so
-- they leave their lines, and come back to the places that they had. The caller names those whose
-- group goes on, and whether they fit is looked at then.
-- Source: docs/turns.md#queues-that-stand-still
--
-- parked  sorted set: scope, 0, ticket by the place in its line. One whose name is a group alone is the
--         last place of the scope's that was parked of it, whatever its priority: places run ahead
--         of the clock, and others of the group go behind it while those are not through.

-- Kept in one table, since locals are few: the key, and whether there is anybody parked; the groups that
-- stand still, by the name that their tickets begin with, up to and with the first slash, and whether
-- there are any; how many tasks of them a call still parks, and how many that are too dear, one by
-- one; and one ticket of each group that is slow to come.
local parking = { key = KEYS[#KEYS], parks = there >= 6, groups = {}, left = 1000, dear = 200, slow = {} }
there = there % 6
do
  -- When one who was released is slow to come, and how many of those who stand still are read at once.
  local SLOW, MANY_HEADS, known = 250000, 256, {}

  for i = 4 + #KEYS, #ARGV, 3 do
    if ARGV[i] == 's' then
      parking.groups[ARGV[i + 2]], parking.stand = true, true
    elseif parking.parks then
      parking.news = parking.news or ARGV[i] == 'b' or ARGV[i] == 'f'
    end
  end

-- The group of a task: what its name begins with, up to and with the first slash; '' where it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end

  function parking.stands(ticket)
    return parking.stand and parking.groups[group_of(ticket)]
  end

  -- Notes the groups of those who were released and are slow to come.
  function parking.out_since(left, ticket)
    local group = left + SLOW <= now and group_of(ticket) or ''
    if group ~= '' and not known[group] then
      known[group] = true
      parking.slow[#parking.slow + 1] = ticket
    end
  end

  -- Parks tasks of a scope: two for each, its ticket and its score.
  function parking.park(scope, list)
    local entries, last = {}, {}
    for i = 1, #list, 2 do
      local ticket, score = list[i], tonumber(list[i + 1])
      local group = group_of(ticket)
      entries[i], entries[i + 1] = whole(score), scope .. '\0' .. ticket
      last[group] = max(last[group] or 0, score % BAND)
    end
    call('ZADD', parking.key, 'LT', unpack(entries))
    for group, place in pairs(last) do
      call('ZADD', parking.key, 'GT', whole(place), scope .. '\0:' .. group)
    end
    parking.parks, parking.parked = true, true
  end

  -- Parks tasks that stand in a line.
  function parking.take_from(l, list)
    local tickets = {}
    for i = 1, #list, 2 do
      tickets[#tickets + 1] = list[i]
      count(l, list[i], -1)
    end
    parking.park(l.scope, list) -- first: a server that refuses a command loses none
    call('ZREM', l.key, unpack(tickets))
    l.parked = true
  end

  -- Parks those who stand still of the first of a line. True where there were any.
  local function park_some(l)
    local list = {}
    for i = 1, #l.got, 2 do
      if #list / 2 < parking.left and parking.stands(l.got[i]) then
        list[#list + 1], list[#list + 2] = l.got[i], l.got[i + 1]
      end
    end
    if #list == 0 then
      return false
    end
    parking.left = parking.left - #list / 2
    parking.take_from(l, list)
    return true
  end

  -- Reads the first tasks of a line that this call has not taken, without those who stand still.
  function parking.read(l)
    local size = HEADS
    repeat
      l.got, l.next, l.size = call('ZRANGE', l.key, whole(l.taken), whole(l.taken + size - 1), 'WITHSCORES'), 1, size
      size = MANY_HEADS
    until not parking.stand or l.path_text == '-' or not park_some(l)
  end

  -- Whether a rule of a path can never admit its task, not even once it has grown.
  function parking.too_dear(path)
    for _, r in ipairs(path) do
      local grows = r.corrected and r.cost <= r.most
      if not grows and r.cap ~= 0 and r.p ~= 0 and not algorithms[r.kind].fit(r, now) then
        return true
      end
    end
    return false
  end

  -- Takes one out who is parked: returns its score, nil where it is not parked. The last place of a
  -- group goes when the first in line is behind it.
  function parking.take(l, field, ticket)
    local score = tonumber(call('ZSCORE', parking.key, field) or nil)
    if score and ticket == ':' .. group_of(ticket) then
      local first = tonumber(call('ZRANGE', l.key, '0', '0', 'WITHSCORES')[2] or nil)
      if not first or first % BAND > score then
        call('ZREM', parking.key, field)
      end
    elseif score and l.path_text ~= '-' then
      call('ZREM', parking.key, field)
      return score
    end
  end

  -- Gives the slots back of a scope whose line was emptied, in which nobody had a turn.
  function parking.give_slots_back(l, seat)
    shares(l, seat)
    for _, s in ipairs(slots(l)) do
      if s.tag then
        put_off(s, -1)
      end
    end
  end
end
-- Those who are out: what became of them, and what is set aside for them; and those who have
-- ended in line. Source: docs/turns.md#waking

-- When the first of those who are out will have been out for too long, and whether units
-- that were set aside came free of rules that the caller doesn't know.
local overdue, freed_unknown

local function has(path, name)
  for i = 1, #path do
    if path[i].name == name then
      return true
    end
  end
  return false
end

local heed_news, reserve, take_out
do
  -- Lets the rules of a scope be looked at now.
  local function look_at(scope)
    local l = lines[scope]
    for i in path_numbers(l and l.path_text or '') do
      call('ZADD', due, 'XX', 'LT', whole(now), rule_name(KEYS[tonumber(i)]))
    end
  end

  local function parts_of_out(field)
    local zero = string.find(field, '\0', 1, true)
    return sub(field, 1, zero - 1), sub(field, zero + 1)
  end

  local function score_of_out(value)
    return unpack7(value, 8) - SCORES
  end

  -- Puts a task that was out back in its line, and its scope in a round, whichever:
  -- the first look moves it to where it belongs.
  local function back(l, field, value, score)
    local _, ticket = parts_of_out(field)
    local added = call('ZADD', l.key, 'NX', whole(score), ticket)
    call('HDEL', out_key, field) -- last: it is never in neither
    if added == 1 then
      count(l, ticket, 1)
      if l.path_text ~= '-' and #path_of(l, ticket) < #rules_of(l) then
        mixed = '1'
        note(MIXED, mixed)
      end
    end
    read_at({ 'S' .. l.scope })
    local had = held['S' .. l.scope]
    if had then
      local name, rank = parts_of(had)
      if name == NO_RULE then
        call('ZADD', due, 'LT', whole(now), name)
      end
      local band, its = numbers_of(rank)
      local path = l.path_text ~= '-' and mixed and path_of(l, ticket) or {}
      local elsewhere = #path > 0 and not has(path, name) and call('ZRANGE', l.key, '0', '0')[1] == ticket
      if elsewhere then -- the one that was first waits for what this one takes nothing of
        its, name = shares(l, { name = name, stamp = its }), path[1].name
        its = tag_at(its, name)
        call('ZADD', due, 'LT', whole(now), name)
      end
      if elsewhere or floor(score / BAND) + LOWEST < band then
        local seat = seat_of(name, rank_of(score, its), l.scope)
        comes[seat], comes[had] = true, false
        note('S' .. l.scope, seat)
      end
    elseif l.path_text ~= '-' then
      local its, tag = slots(l), value and unpack7(value, 15) or LATEST
      take_slots(its)
      its[1].tag = min(its[1].tag, max(1, tag))
      local name = rule_name(KEYS[tonumber(string.match(l.path_text, '%d+'))])
      local seat = seat_of(name, rank_of(score, its[1].tag), l.scope)
      l.opened, comes[seat] = true, true
      note('S' .. l.scope, seat)
      write_round()
      write_at()
      call('ZADD', due, whole(now), name)
      keep_waiting(0, l.key, round, at, due)
    end
    look_at(l.scope)
  end

  -- Puts one who was parked back in its line, at its place there, unless it is on its way.
  local function unpark(l, field, ticket, released)
    if l and l.path_text ~= '-' and parking.too_dear(path_of(l, ticket)) then
      return -- it stays: in line, it would be before those who can start
    end
    local score = l and parking.take(l, field, ticket)
    if score and not released then
      call('ZADD', l.key, 'XX', 'LT', whole(score), ticket) -- it may have come since, and stand at the end
      back(l, field, nil, score)
    end
  end

  -- What became of tasks that were released.
  function heed_news()
    for i = 4 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l, field = lines[scope], scope .. '\0' .. ticket
      local value = call('HGET', out_key, field)
      if what == 'f' and parking.parks then
        call('ZREM', parking.key, field)
      elseif what == 'b' then
        unpark(l, field, ticket, value)
      end
      if value and what == 'f' then
        call('HDEL', out_key, field)
        look_at(scope)
      elseif value and what == 'a' and l and sub(value, 22) ~= id then -- else this call has heeded it before
        local eighth = call('ZRANGE', l.key, '8', '8', 'WITHSCORES')[2]
        back(l, field, value, tonumber(eighth) or score_of_out(value))
      elseif value and what == 'r' then
        call('HSET', out_key, field, pack(now) .. sub(value, 8, 21) .. RUNNING)
      end
    end
  end

  -- Takes a scope whose line was emptied out of its round, and gives its slots back, in which
  -- nobody had a turn.
  local function unseat(l, had)
    local name, rank = parts_of(had)
    local _, stamp = numbers_of(rank)
    parking.give_slots_back(l, { name = name, stamp = stamp })
    moved[l.scope] = { was = had }
  end

  -- Seats a scope by who is first in its line by now: in a round that it waits in, and by
  -- its priority.
  local function seat_anew(l, had)
    local ticket, score = unpack(call('ZRANGE', l.key, '0', '0', 'WITHSCORES'))
    local name, rank = parts_of(had)
    call('ZADD', due, 'XX', 'LT', whole(now), name)
    if not ticket then
      return unseat(l, had)
    end
    local band, stamp = numbers_of(rank)
    local path = path_of(l, ticket)
    if #path > 0 and not has(path, name) then
      local its = shares(l, { name = name, stamp = stamp })
      name = path[1].name
      stamp = tag_at(its, name)
      call('ZADD', due, 'LT', whole(now), name)
    elseif floor(score / BAND) + LOWEST == band then
      return
    end
    local seat = seat_of(name, rank_of(score, stamp), l.scope)
    comes[seat], comes[had] = true, false
    note('S' .. l.scope, seat)
  end

  -- Takes those out of their lines who have ended there. What waits under rules that the
  -- caller doesn't know stays as it was.
  function take_out()
    for i = 4 + #KEYS, #ARGV, 3 do
      local what, scope, ticket = ARGV[i], ARGV[i + 1], ARGV[i + 2]
      local l = what == 'f' and lines[scope]
      local place = l and call('ZRANK', l.key, ticket)
      if place then
        call('ZREM', l.key, ticket)
        count(l, ticket, -1)
        read_at({ 'S' .. scope })
        local seat = held['S' .. scope]
        if seat and place == 0 and l.path_text ~= '-' then
          seat_anew(l, seat)
        elseif seat and place == 0 then
          call('ZADD', due, 'XX', 'LT', whole(now), (parts_of(seat)))
        end
      end
    end
  end

  -- The numbers of the rules of each level that the caller knows, by the level's path.
  local levels
  local function rules_of_levels()
    levels = {}
    for i = 1, n do
      local level = string.match(rule_name(KEYS[i]), '^[^:]*')
      local its = levels[level] or {}
      its[#its + 1], levels[level] = i, its
    end
  end

  -- The rules above a scope, as far as the caller knows them.
  local function rules_above(scope, ticket)
    if not levels then
      rules_of_levels()
    end
    local some = {}
    for ends in string.gmatch(scope .. '/', '()/') do
      for _, i in ipairs(levels[sub(scope, 1, ends - 1)] or {}) do
        some[#some + 1] = rule(i)
      end
    end
    return counted(some, ticket)
  end

  -- Sets aside what a released task will take: together, where its start is near.
  local function set_aside(path)
    local start = joint_start(path, now)
    for i = 1, #path do
      local algorithm = algorithms[path[i].kind]
      local t = algorithm.fit(path[i], start <= now + lead + spread and start or now)
      if t then
        algorithm.charge(path[i], now, t)
      end
    end
  end

  -- Parks released tasks that stand still: they do not come.
  function parking.park_out()
    local fields = parking.stand and call('HGETALL', out_key) or {}
    for f = 1, #fields, 2 do
      local scope, ticket = parts_of_out(fields[f])
      local whose = sub(fields[f + 1], 22)
      if parking.stands(ticket) and whose ~= RUNNING then -- who runs needs nobody to start it
        if whose ~= STRAIGHT then -- those have no place
          parking.park(scope, { ticket, score_of_out(fields[f + 1]) })
        end
        call('HDEL', out_key, fields[f])
        look_at(scope)
        freed_unknown = freed_unknown or not lines[scope]
      end
    end
  end

  -- Sets aside what released tasks will take. One that has not come in time goes
  -- back to its place; one that runs already is forgotten.
  function reserve()
    local fields = call('HGETALL', out_key)
    for f = 1, #fields, 2 do
      local field, value = fields[f], fields[f + 1]
      local scope, ticket = parts_of_out(field)
      local l, whose, left = lines[scope], sub(value, 22), unpack7(value, 1)
      if left > now or whose == STRAIGHT then -- the clock has stepped back, or nobody has looked before
        left, whose = now, whose == STRAIGHT and RUNNING or whose
        call('HSET', out_key, field, pack(now) .. sub(value, 8, 21) .. whose)
      end
      if not l and whose ~= RUNNING then -- it may have to go back to its line
        miss(scope)
      end
      if left + STALE > now then
        set_aside(l and path_of(l, ticket) or rules_above(scope, ticket))
        overdue = min(overdue or left + STALE, left + STALE)
        parking.out_since(left, ticket)
        out = out + (sub(whose, 1, 10) == sub(id, 1, 10) and 1 or 0)
        if whose == id then
          released[#released + 1], released[#released + 2] = scope, ticket
          most = most - 1
        end
      elseif whose == RUNNING then
        call('HDEL', out_key, field)
        look_at(scope)
        freed_unknown = freed_unknown or not l
      elseif l then
        back(l, field, value, score_of_out(value))
      end
    end
  end
end
-- Seats in their rounds, as this look has moved them: who is first, whose turn it is rather,
-- and what a release, or one that can't be, does to a scope's place. Source:
-- docs/turns.md#lines-rounds-and-seats

-- A seat. Ranks are compared as numbers: the order of texts is the locale's.
local function seated(name, rank, scope, seat)
  local band, place = numbers_of(rank)
  return { name = name, rank = rank, scope = scope, seat = seat, band = band, stamp = place }
end

local function sooner(a, b)
  if a.band ~= b.band then
    return a.band < b.band
  elseif a.stamp ~= b.stamp then
    return a.stamp < b.stamp
  end
  return a.scope < b.scope
end

-- The first seat of a rule's round. Seats that moved in this call are kept here
-- until it ends.
local function front(name)
  local r = rounds[name]
  if not r then
    r = { here = {} }
    rounds[name] = r
  end
  while r.first == nil do
    local seat = seat_after(name, r.after)
    r.first, r.after = false, seat
    if seat then
      local _, rank, scope = parts_of(seat)
      r.first = not moved[scope] and seated(name, rank, scope, seat) or nil
    end
  end
  local best = r.first or nil
  for _, s in pairs(r.here) do
    if not best or sooner(s, best) then
      best = s
    end
  end
  return best
end

local function take_from_round(seat)
  local r = rounds[seat.name]
  if r.first == seat then
    r.first = nil
  else
    r.here[seat.scope] = nil
  end
end

-- Moves a seat: to the round of a rule, or, without one, away. One that this call
-- has nothing more to do with is not seen there.
local function move(seat, name, rank, unseen)
  take_from_round(seat)
  local was = moved[seat.scope]
  local new = name and seated(name, rank, seat.scope, seat_of(name, rank, seat.scope)) or {}
  new.was = was and was.was or seat.seat
  moved[seat.scope] = new
  if name and not unseen then
    rounds[name] = rounds[name] or { here = {} }
    rounds[name].here[seat.scope] = new
  end
  return new
end

-- The first task of a line that this call has not taken: ticket and score.
local function head(l)
  if not l.got or l.next > #l.got and #l.got == 2 * l.size then
    parking.read(l)
  end
  return l.got[l.next], tonumber(l.got[l.next + 1])
end

-- Takes the seats of lines whose tasks were all parked by this call: their rounds may not have come
-- to them, as one that is looked at beside another is parked too.
function parking.close_emptied()
  for scope, l in pairs(lines) do
    local new = moved[scope]
    if l.parked and not (new and not new.name) and not head(l) then
      read_at({ 'S' .. scope })
      local seat = new and new.seat or held['S' .. scope]
      if seat then
        local name, rank = parts_of(seat)
        local _, stamp = numbers_of(rank)
        parking.give_slots_back(l, { name = name, stamp = stamp })
        moved[scope] = { was = new and new.was or seat }
      end
    end
  end
end

-- Heeds a seat that a worker of an earlier version has given or moved back: its slot is
-- where that is. And takes slots of levels that had no rules when the scope sat down.
local function sit_by(seat, its)
  for _, s in ipairs(its) do
    if s.level == level_of(seat.name) and (s.tag or 0) < seat.stamp or its.had and #its == 1 and number_at('F' .. s.node) <= seat.stamp then
      s.tag = seat.stamp
      held['F' .. s.node] = max(number_at('F' .. s.node), seat.stamp)
      put_off(s, 1)
    elseif not s.tag then
      take_slot(s)
    end
  end
end

-- The tags of a scope that has its seat.
local function tags_of(l, seat)
  local its = shares(l, seat)
  if its.had and not l.sat then
    l.sat = true
    sit_by(seat, its)
  end
  return its
end

-- The rank of a scope in the round of a rule.
local function rank_in(l, name, seat)
  return sub(seat.rank, 1, 3) .. pack(tag_at(tags_of(l, seat), name))
end

-- The rule of the path, other than this one, whose round has a seat that is earlier there.
local function earlier(seat, l, path)
  for i = 1, #path do
    local name = path[i].name
    local first = name ~= seat.name and front(name)
    local theirs = first and lines[first.scope]
    local mine = { band = seat.band, stamp = first and tag_at(tags_of(l, seat), name), scope = seat.scope }
    if first and not (theirs and (theirs.path_text == '-' or theirs.left)) and sooner(first, mine) then
      return name
    end
  end
end

local function look_by(name, t)
  looks[name] = min(looks[name] or t, t)
end

-- Releases a line's head. Its scope has had a turn, and takes the next slot.
local function release(seat, l, ticket, score, path, start)
  slots(l)
  local its = tags_of(l, seat)
  for i = 1, #path do
    algorithms[path[i].kind].charge(path[i], now, start)
  end
  l.out = l.out or {}
  l.out[#l.out + 1] = { ticket = ticket, score = score, tag = its[1].tag or seat.stamp }
  l.taken, l.next = l.taken + 1, l.next + 2
  released[#released + 1], released[#released + 2] = l.scope, ticket
  out = out + 1
  if start == now and more > 0 then
    more = more - 1
  else
    most = most - 1
  end
  had_turn(its, path)
  local following, next_score = head(l)
  local name = following and seat.name
  if following then
    take_slots(its)
    local meets = mixed and path_of(l, following) or {}
    if #meets > 0 and not has(meets, name) then -- it takes nothing of this rule
      name = meets[1].name
      look_by(name, now)
    end
  end
  move(seat, name, name and rank_of(next_score, tag_at(its, name)))
end

-- Leaves a line alone for a while whose rules the caller doesn't know. Others may know them.
local function leave(seat, score)
  move(seat, seat.name, rank_of(score, seat.stamp), true)
  look_by(seat.name, now + AGAIN)
end

-- Parks a head that no rule will ever admit while the limits are what they are: its line goes on
-- without it, and it comes back to its place. False where this call has done so often enough.
local function pass_over(seat, l, ticket, score)
  if parking.dear == 0 then
    look_by(seat.name, now)
    return false
  end
  parking.take_from(l, { ticket, score })
  parking.dear, l.next = parking.dear - 1, l.next + 2
  move(seat, seat.name, rank_of(score, seat.stamp))
  return true
end

-- Leaves a head alone that is too dear while an API's limit is lower than its rule's: its line
-- keeps its order, and its scope is out of everybody's way until the next look.
local function step_aside(seat)
  move(seat, NO_RULE, seat.rank, true)
  look_by(NO_RULE, now + AGAIN)
end
-- Whose turn it is among the lines below a level with weights. Source: docs/turns.md#shares

-- The rounds whose turns are being given: the one at the end, for those before it.
local serving = {}

local gives_way
do
  -- Whether a line's first task can start now, or nearly so.
  local function startable(l)
    local ticket = head(l)
    local start, _, sure = joint_start(path_of(l, ticket), now)
    return sure and start <= now + lead + spread
  end

  -- The first places in the round of a level.
  local function places_of(level)
    if not places[level] then
      places[level] = call('ZRANGEBYLEX', round, '(' .. level .. '\0', '(' .. level .. '\1', 'LIMIT', '0', whole(RIVALS))
    end
    return places[level]
  end

  -- The seat of a scope as this call has it, nil where it has none that is to be looked at.
  local function seat_in(scope)
    if moved[scope] then
      return moved[scope].name ~= NO_RULE and moved[scope].name and moved[scope] or nil
    end
    read_at({ 'S' .. scope })
    local had = held['S' .. scope]
    if not had then
      return nil
    end
    local name, rank = parts_of(had)
    rounds[name] = rounds[name] or { here = {} }
    local first = rounds[name].first
    return first and first.scope == scope and first or name ~= NO_RULE and seated(name, rank, scope, had) or nil
  end

  local function share_at(its, level)
    for _, s in ipairs(its) do
      if s.level == level then
        return s
      end
    end
  end

  -- The line that is earliest at a level of those that can start and are earlier there than
  -- this one, if any. False where the caller does not know one that may be.
  local function earliest(seat, l, s)
    local best, tag
    for _, place in ipairs(places_of(s.level)) do
      local scope, stamp = sub(place, #s.level + 12), unpack7(place, #s.level + 5)
      local other = lines[scope]
      if not other and stamp < s.tag then
        miss(scope)
        return false
      elseif other and other.path_text ~= '-' and not other.left then
        local its = other == l and seat or seat_in(scope)
        local theirs = its and share_at(slots(other), s.level)
        local emptied = not its and not moved[scope] and not held['S' .. scope] -- by an earlier version
        if emptied or its and not other.shares.had[place] then
          comes[place] = false
        end
        stamp = theirs and theirs.tag or stamp
        local rivals = other ~= l and other.favoured ~= other.taken
        if rivals and its and its.band == seat.band and stamp < (tag or s.tag) and head(other) and startable(other) then
          best, tag = other, stamp
        end
      end
    end
    return best
  end

  -- Gives the turn to another line of a level, by this one's tags at the levels above: its seat
  -- comes to this round, or, where that is none of its own, to that of its first rule.
  local function give_way(seat, l, other, level)
    other.favoured = other.taken
    local its = seat_in(other.scope)
    local other_shares = tags_of(other, its)
    for _, s in ipairs(l.shares) do
      if s == level then
        break
      end
      local theirs = share_at(other_shares, s.level)
      if theirs then
        s.tag, theirs.tag = max(s.tag, theirs.tag or 0), min(s.tag, theirs.tag or s.tag)
      end
    end
    local path = path_of(other, (head(other)))
    local name = (path[1] or rules_of(other)[1]).name -- its rules may be out of their hours
    for _, r in ipairs(path) do
      name = r.name == seat.name and r.name or name
    end
    move(its, name, rank_in(other, name, its))
    move(seat, seat.name, rank_in(l, seat.name, seat))
    if name ~= seat.name then
      serving[#serving + 1] = name
    end
  end

  -- Whether the turn is rather another line's, of those below one of the scope's levels, which
  -- then has it; nil where one is not known.
  function gives_way(seat, l)
    for _, s in ipairs(tags_of(l, seat)) do
      local other = s.placed and earliest(seat, l, s)
      if other then
        give_way(seat, l, other, s)
        return true
      elseif s.placed and other == false then
        return nil
      end
    end
    return false
  end
end
-- Those that are left alone. Source: docs/turns.md#waking

-- The round of those that are left alone may have more scopes than a caller brings along. So a
-- look begins behind where the last one came to, and goes on past those that are not known.
local begin_aside, pass_unknown, begin_again
do
  -- How many to pass: as many again may take turns. And how soon to look at those.
  local SKIPS, SOON = 32, AGAIN / 4

  function begin_aside()
    read_at({ NO_RULE })
    local r, from = rounds[NO_RULE] or { here = {} }, held[NO_RULE] or nil
    rounds[NO_RULE] = r
    r.from, r.place, r.after, r.passed = from, from, from, 0
  end

  -- Passes a scope that the caller doesn't know, and is to bring along. True while there may be
  -- others.
  function pass_unknown(r, seat)
    miss(seat.scope)
    if r.passed == 0 then
      look_by(NO_RULE, r.met and now + SOON or now)
    end
    r.passed = r.passed + 1
    take_from_round(seat)
    return r.passed < SKIPS
  end

  -- Goes on, behind the last, with the first, unless the look has begun there.
  function begin_again(r)
    local goes_on = r.from and r.passed == 0
    if r.passed == 0 then
      r.from, r.place = nil, nil
    end
    if goes_on then
      r.first = nil
    end
    return goes_on
  end
end
-- One turn in the round of a rule. Source: docs/turns.md#waking

-- Gives one turn in the round of a rule. True while there may be another.
local function turn(name)
  local seat, aside = front(name), name == NO_RULE and rounds[name]
  if not seat then
    return aside and begin_again(aside) or false
  end
  local l = lines[seat.scope]
  if not l and aside then
    return pass_unknown(aside, seat)
  elseif not l then
    miss(seat.scope)
    look_by(name, now)
    return false
  end
  local before = aside and aside.place
  if aside then
    aside.met = true
    aside.place = aside.passed == 0 and aside.first == seat and seat.seat or aside.place
  end
  local ticket, score = head(l)
  if not ticket then
    if l.parked then
      parking.give_slots_back(l, seat)
    end
    move(seat)
    return true
  elseif parking.stands(ticket) and l.path_text ~= '-' then -- more than one call parks
    look_by(name, now)
    return false
  elseif l.path_text == '-' then
    leave(seat, score)
    return true
  end
  if floor(score / BAND) + LOWEST ~= seat.band then
    move(seat, name, rank_of(score, seat.stamp)) -- another task is first in the line by now
    return true
  end
  local path = path_of(l, ticket)
  local other = earlier(seat, l, path)
  if other then
    move(seat, other, rank_in(l, other, seat))
    return true
  end
  local start, binding, sure = joint_start(path, now)
  if sure and start <= now + lead + spread then
    if l.left then -- those behind it have their turns, and its round is due for whoever may release it
      move(seat, name, seat.rank, true)
      rounds[name].left = true
      return true
    end
    local gives = nil
    if most > 0 or start <= now then
      gives = gives_way(seat, l)
    end
    if gives == nil then
      if aside then
        aside.place = before -- the next look begins with it
      end
      look_by(name, now)
      return false
    elseif gives then
      return true
    end
    release(seat, l, ticket, score, path_of(l, ticket), start)
    return true
  end
  local number, free = waits_for(path, start, binding)
  local by = path[number]
  if not free and by.corrected and by.cost <= by.most and not parking.too_dear(path) then
    step_aside(seat)
    return true
  elseif not free and by.cap ~= 0 and by.p ~= 0 then
    return pass_over(seat, l, ticket, score)
  end
  local early = sure and free and free - lead > now and lead or 0
  local look = not free and now + SUSPENDED or max(now + 1, free - early)
  look_by(by.name, by.corrected and min(look, now + TOLD_LOOK) or look)
  if by.name ~= name then
    move(seat, by.name, rank_in(l, by.name, seat))
    return true
  end
  return false
end

-- Takes those seats from a round whose first task takes nothing of its rule: another was
-- first when they came there.
local function sift(name)
  local seats = call('ZRANGEBYLEX', round, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', whole(HEADS))
  for _, seat in ipairs(seats) do
    local _, rank, scope = parts_of(seat)
    local l = not moved[scope] and lines[scope]
    if not moved[scope] and not l then
      miss(scope)
      look_by(name, now)
    end
    local ticket = l and l.path_text ~= '-' and head(l)
    local path = ticket and path_of(l, ticket) or {}
    if #path > 0 and not has(path, name) then
      local its = seated(name, rank, scope, seat)
      move(its, path[1].name, rank_in(l, path[1].name, its))
      look_by(path[1].name, now)
    end
  end
  local r = rounds[name]
  if r and r.first and moved[r.first.scope] then
    r.first = nil
  end
end

local served = {}

-- Lets all rounds be looked at now.
local function look_at_all()
  local names = call('ZRANGEBYSCORE', due, '(' .. whole(now), '+inf')
  for i = 1, #names do
    call('ZADD', due, 'XX', whole(now), names[i])
  end
end

-- Leases that were written before the clock has stepped back would end later by the step, and who has
-- died keep a place for as long. Those that end behind what the clock had come to are set to end a lease from
-- now: no sooner than they should, however often. Those written since end before that, until the clock is
-- nearly there again. Not every call knows of all rules, so the moment is remembered until then.
local function bring_leases_back()
  local had = held[STEPPED]
  local from = beat - now > FAR_AHEAD and beat or had and unpack7(had, 1)
  if not from then
    return
  elseif now + FAR_AHEAD >= from then
    note(STEPPED, false)
    return
  elseif from == beat then
    note(STEPPED, pack(from))
  end
  for i = 1, n do
    local lease = byte(ARGV[9 + i]) == HELD and unpack7(ARGV[9 + i], 9)
    if lease and now + lease + FAR_AHEAD < from then
      local ends = call('ZRANGEBYSCORE', KEYS[i], '(' .. whole(from), '+inf')
      for j = 1, #ends do
        call('ZADD', KEYS[i], 'XX', 'LT', whole(now + lease), ends[j])
      end
    end
  end
end

local steps = 0

-- Gives the turns of a round, until it waits, and those of rounds that it gives way to first.
local function serve_round(first)
  serving[1] = first
  while #serving > 0 do
    local name = serving[#serving]
    steps = steps + 1
    local over = most + more <= 0 or steps > STEPS
    if over then
      look_by(name, now)
    elseif not turn(name) then
      over = true
      if mixed and name ~= NO_RULE then
        sift(name)
      end
    end
    if over then
      serving[#serving] = nil
    end
  end
end

local function serve()
  if ARGV[6] == '1' or freed_unknown or beat > now then -- or the clock has stepped back
    look_at_all()
  end
  local names = call('ZRANGEBYSCORE', due, '-inf', whole(now), 'LIMIT', '0', whole(ROUNDS))
  for _, name in ipairs(names) do
    served[name] = true
    if name ~= NO_RULE then -- there may be those in it that this call looks at no more
      looks[name] = nil
      serve_round(name)
    else
      begin_aside()
      serve_round(name)
      local place = rounds[name].place or false
      if place ~= held[name] then
        note(name, place)
      end
    end
  end
  return names
end

-- What a look has come to, written at its end. Source: docs/turns.md#lines-rounds-and-seats

local save
do
  -- How soon others may look whose turns a round is left to: well within the lead that they have;
  -- and when this caller is to look again at such rounds.
  local OTHERS, own_look = 5000, now + AGAIN / 2

  -- Moves released tasks from their lines to those that are out. They come there before they
  -- go here: a server that refuses a command half-way leaves no task in neither.
  local function save_released()
    for _, l in pairs(lines) do
      local tickets, outs = {}, {}
      for i, o in ipairs(l.out or {}) do
        tickets[i] = o.ticket
        outs[2 * i - 1] = l.scope .. '\0' .. o.ticket
        outs[2 * i] = pack(now) .. pack(o.score + SCORES) .. pack(o.tag) .. id
        count(l, o.ticket, -1)
      end
      if #tickets > 0 then
        call('HSET', out_key, unpack(outs))
        call('ZREM', l.key, unpack(tickets))
      end
    end
  end

  -- Whether a line was emptied.
  local function closed(l)
    return moved[l.scope] and not moved[l.scope].name
  end

  -- Adds up the units and lines that came and went.
  local function save_sums()
    local add, fields = {}, {}
    local function plus(field, k)
      if k ~= 0 then
        add[field] = (add[field] or 0) + k
        fields[#fields + 1] = field
      end
    end
    for _, l in pairs(lines) do
      local opened = (l.opened and 1 or 0) - (closed(l) and 1 or 0)
      if next(l.units) or opened ~= 0 then
        for unit, k in pairs(l.units) do
          plus(sum_of(l.scope, unit), unit ~= '' and k or 0)
        end
        for i in path_numbers(l.path_text) do
          local name = rule_name(KEYS[tonumber(i)])
          plus('U' .. name, l.units[unit_of(ARGV[9 + tonumber(i)])] or 0)
          plus('N' .. name, opened)
        end
      end
    end
    read_at(fields)
    for field, k in pairs(add) do
      note(field, max(0, number_at(field) + k))
    end
  end

  local function save_seats()
    for scope, seat in pairs(moved) do
      if seat.seat ~= seat.was then
        comes[seat.was] = false
        note('S' .. scope, seat.seat or false)
        if seat.seat then
          comes[seat.seat] = true
        end
      end
    end
  end

  -- Notes the tags of all that were looked at, and of lines that were emptied what is to be
  -- remembered.
  local function save_tags()
    for scope, l in pairs(lines) do
      if closed(l) then
        remember(slots(l), names_in(l), true)
        save_shares(l.shares, true)
        note('Q' .. scope, false)
        for unit in pairs(units_of(l)) do
          note(sum_of(scope, unit), false)
        end
      elseif l.shares then
        save_shares(l.shares)
      end
    end
  end

  local function save_looks(names)
    local set, lower, gone = {}, {}, {}
    for name, r in pairs(rounds) do
      if r.left then
        own_look = min(own_look, looks[name] or own_look)
        look_by(name, now + OTHERS)
      end
    end
    for name, look in pairs(looks) do
      local list = served[name] and set or lower
      list[#list + 1], list[#list + 2] = whole(look), name
    end
    for _, name in ipairs(names) do
      if not looks[name] then
        gone[#gone + 1] = name
      end
    end
    if #set > 0 then
      call('ZADD', due, unpack(set))
    end
    if #lower > 0 then
      call('ZADD', due, 'LT', unpack(lower))
    end
    if #gone > 0 then
      call('ZREM', due, unpack(gone))
    end
  end

  -- Forgets nodes whose slots the time has passed. So many nodes or turns after the last time
  -- it looks through twice as many: what is kept is about as much as means anything.
  local FORGET = 32
  local function forget()
    local many = number_at(PAST)
    if many == 0 then
      return
    end
    many = many + #released / 2
    note(PAST, many)
    if many < FORGET then
      return
    end
    write_round() -- nodes that this call has noted, or taken up again, are looked through as they are now
    local most = min(2 * many, MANY)
    local past = call('ZRANGEBYLEX', round, '(' .. PAST .. '\0', '(' .. PAST .. '\1', 'LIMIT', '0', whole(most))
    local fields, left = {}, #past == most
    for _, entry in ipairs(past) do
      local node = sub(entry, 13)
      local level = level_above(node)
      fields[#fields + 1], fields[#fields + 2] = 'F' .. node, 'V' .. level
    end
    read_at(fields)
    for i, entry in ipairs(past) do
      local slot, time = fields[2 * i - 1], fields[2 * i]
      comes[entry] = false
      if held[time] and number_at(slot) > number_at(time) then
        comes[past_at(sub(slot, 2))], left = true, true
      else
        note(slot, false)
      end
    end
    note(PAST, left and 1 or 0)
  end

  -- When the caller is to look again, 0 when nobody waits.
  local function next_look(name, due_at)
    local following = tonumber(due_at or 0)
    if name and rounds[name] and rounds[name].left then
      local later = call('ZRANGEBYSCORE', due, '(' .. whole(following), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
      following = min(tonumber(later or own_look), own_look)
    end
    return following
  end

  -- Writes what the call has come to. Returns when to look again.
  function save(names)
    save_released()
    save_looks(names)
    local next_rule = call('ZRANGE', due, '0', '0', 'WITHSCORES')
    if #next_rule == 0 then
      call('DEL', at, round)
      return 0
    end
    save_sums()
    save_seats()
    save_tags()
    forget()
    note('@', now)
    write_round()
    write_at()
    return next_look(next_rule[1], next_rule[2])
  end
end

-- The scopes that are next, by the rules that are.
local function near_scopes()
  local near, seen = {}, {}
  for _, name in ipairs(call('ZRANGE', due, '0', whole(ARGV[8] - 1))) do
    local seats = call('ZRANGEBYLEX', round, '[' .. name .. '\0', '(' .. name .. '\1', 'LIMIT', '0', '4')
    for _, seat in ipairs(seats) do
      local _, _, scope = parts_of(seat)
      if not seen[scope] then
        seen[scope] = true
        near[#near + 1] = scope
      end
    end
  end
  return near
end

if there % 3 == 0 and not parking.news then
  if parking.parks then
    keep_waiting(0, parking.key)
  end
  return { { now, 0, 0, parking.parks and 1 or 0 }, {}, {}, {}, {} }
end
first_rules()
bring_leases_back()
heed_news()
parking.park_out()
reserve()
take_out()
write_round() -- the rounds are read from here on
local names = serve()
if #pauses.stepped > 0 then
  call('HSET', told, unpack(pauses.stepped))
end
parking.close_emptied()
local following = save(names)
if #released > 0 then
  overdue = overdue or now + STALE
  if call('PTTL', out_key) < 60000 then
    call('PEXPIRE', out_key, '60000')
  end
end
if following > 0 then
  following = min(following, overdue or following)
end
-- The first look of each minute keeps what waits, however soon it follows the one before.
if floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  local last = call('ZRANGE', due, '-1', '-1', 'WITHSCORES')[2]
  keep_waiting(max(0, (last or now) - now), due, round, at)
  for _, l in pairs(beat > 0 and lines or {}) do
    keep_waiting(0, l.key)
  end
end
if parking.parked or parking.parks and floor(now * 1440 / STAY) ~= floor(beat * 1440 / STAY) then
  keep_waiting(0, parking.key)
end
local still = parking.parks and call('EXISTS', parking.key) or 0
return { { now, following, out, still }, released, missing, ARGV[8] ~= '0' and near_scopes() or {}, parking.slow }
