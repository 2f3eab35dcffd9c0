-- report_upstream: record what an API has reported about its limits, for all tasks of a scope.
--
-- Each word is one signal. Sent again, a word changes nothing more, except for the time that has
-- passed since.
--
-- KEYS[1]     upstream  hash, what is recorded. See include/upstream/upstream.lua.
-- KEYS[2]     schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[3]     meta      hash of nodes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2..]   words   seven for each word, a verb, a name and five numbers, 0 for each that it does not need. The
--             name of a rule is its key after the provider, and parts are in millionths of its limit:
--             pause   a level; no start there for the first number of µs.
--             rest    a level, paused with exponential backoff, for a pause of unknown length: base in µs,
--                     max in µs, jitter in millionths, and how many µs ago the call was sent, 0 for now. The pause
--                     doubles each time that it was in vain. A call that was sent before it changes nothing.
--             open    a scope, of which a call was not refused: how many µs ago it was sent, 0 for now. The trials
--                     of the scope and of the levels above it are over, unless the call was sent before them.
--             back    a scope: the start of a grant in µs since the epoch that was taken back. If it was a probe,
--                     the next start is one.
--             lift    a level, whose pause is over.
--             cut     a rule: the part in millionths that is left of it, unless a cut was less than the second
--                     number of µs ago or a pause before it in the call was already in force; the part by which
--                     it grows in a second; the least part that is left, and the largest part that it may have.
--             adopt   a rule: the API's own limit, 0 for none or an unusable one; its window in µs, which
--                     includes a bucket's pad; for how many µs it is valid; and the most that a bucket holds, 0
--                     for what the rule says.
--             rise    a rule, whose calls succeed: the largest part that it may have, the part by which it grows
--                     in a second, and for how many more µs it may be above the whole.
--             free    a rule, whose correction ends.
--             look    a rule, which admits more than was known.
--
-- Returns  {now, then three for each word: changed, ends, noted}
--          now      integer µs, the clock of this call
--          changed  1 when it was not known before
--          ends     integer µs since the epoch, until when it is in force; 0 if nothing is
--          noted    how many bytes of the name are the level or rule that it is recorded for; -1
--                   if there is no room for it
--
-- Writes   KEYS[1..2], the second if tasks wait for them.
-- Source   docs/vendor.md#pauses

-- #include core/clock
-- #include core/pack
-- #include core/numbers
-- #include core/lease
-- #include upstream/correction
-- #include upstream/pause
-- #include fairshare/freed

local call = redis.call
local upstream, schedule, meta = KEYS[1], KEYS[2], KEYS[3]

-- What is over is kept for KEPT, since the tasks that waited for it are still to be checked. A guess is kept
-- longer: see include/upstream/pause.lua.
local KEPT = 3000000

-- Below one name of the second level at most BELOW_SECOND are kept, and BELOW_THIRD of those below one of the third:
-- the API's replies to a tenant's calls can create that many, at whichever of the two levels tenants are.
-- Names of the third level have room for twice as many, so that no tenant there takes the room of others.
local BELOW_SECOND, BELOW_THIRD = 20000, 2000

-- A call that records something new scans about FEW fields for what is over; a call that finds no room scans MANY.
local FEW, MANY = 50, 500

-- wrote: a field was written. swept: the hash was scanned for room. stood: a pause was already in force, so a
-- refused call had been sent before the pause, and cuts nothing.
local wrote, swept, stood = false, false, false

-- How long a pause is kept after it has ended.
local function kept(length)
  return length > 0 and guess.remembered(length) or KEPT
end

-- The names of the second and of the third level above a level or a rule.
local function above(name)
  return string.match(name, '^(/[^/:]*)/'), string.match(name, '^(/[^/:]*/[^/:]*)/')
end

-- How many fields are kept below a name.
local function below(scope)
  return tonumber(call('HGET', upstream, '#' .. scope) or 0) or 0
end

-- Adds to the counts of the names above a level or a rule.
local function count(name, more)
  for _, scope in ipairs({ above(name) }) do
    local n = below(scope) + more
    if n > 0 then
      call('HSET', upstream, '#' .. scope, whole(n))
    else
      call('HDEL', upstream, '#' .. scope)
    end
  end
end

local function put(begins, name, value)
  if call('HSET', upstream, begins .. name, value) == 1 then
    count(name, 1)
  end
  wrote = true
end

local function forget(field)
  if call('HDEL', upstream, field) == 1 then
    count(sub(field, 2), -1)
  end
end

-- The value of a field, corrected if the clock has stepped back since it was written.
local function by_now(field, v)
  local stepped
  v, stepped = corrections.by_now(field, v)
  if stepped then
    call('HSET', upstream, field, v)
  end
  return v
end

-- Until when a field is kept. Below a scope without room, a rest is kept no longer than any other pause.
local function kept_until(field, v, scope)
  if byte(field) == 82 then -- "R"
    return unpack7(v, 1)
  end
  local no_room = scope and sub(field, 2, #scope + 2) == scope .. '/'
  return unpack7(v, 1) + kept(no_room and 0 or unpack7(v, 15))
end

-- Scans some fields, from where the last call has ended, and deletes those that are over. If those are all fields, the
-- key lives as long as what is left; else as long as was set before. A scan over several calls may miss
-- fields that are written meanwhile, or all that move at a failover: the next scan finds those.
local function sweep(some, scope)
  local cursor = string.match(call('HGET', upstream, '@') or '', '^%d+$') or '0'
  local found, last = call('HSCAN', upstream, cursor, 'COUNT', some), now
  for i = 1, #found[2], 2 do
    local field = found[2][i]
    if byte(field) == 80 or byte(field) == 82 then -- "P", "R"
      local ends = kept_until(field, by_now(field, found[2][i + 1]), scope)
      if ends <= now then
        forget(field)
      end
      last = max(last, ends)
    end
  end
  if found[1] ~= '0' then
    if call('EXISTS', upstream) == 1 then
      call('HSET', upstream, '@', found[1])
    end
  elseif cursor ~= '0' then
    call('HDEL', upstream, '@')
  else
    call('PEXPIRE', upstream, outlast(last - now))
  end
end

-- The innermost name above a level, or a rule, that must take its place, if there is no room for one more even after
-- a scan; nil if there is room.
local function crowding(begins, name)
  local second, third = above(name)
  local function full()
    if third then
      return (below(third) >= BELOW_THIRD or below(second) >= BELOW_SECOND) and third or nil
    end
    return below(second) >= 2 * BELOW_SECOND and second or nil
  end
  local scope = second and not call('HGET', upstream, begins .. name) and full()
  if scope and not swept then
    swept = true
    sweep(MANY, scope)
    scope = full()
  end
  return scope
end

-- The verbs that record nothing new.
local PLAIN = { lift = true, look = true, open = true, back = true }

-- The name that a word is recorded for. Without room for a pause of its own, it is the name above that has no room, so
-- that no call is sent that the API would refuse. Without room a correction is dropped: the rule's own limit counts.
local function noted_of(verb, name)
  if verb == 'pause' or verb == 'rest' then
    local scope = crowding('P', name)
    return scope and crowding('P', scope) or scope or name
  end
  return (PLAIN[verb] or not crowding('R', name)) and name
end

local function pause_of(level)
  return guess.read(by_now('P' .. level, call('HGET', upstream, 'P' .. level)))
end

-- Whether a call that was sent `age` µs ago was on its way before the guess was over: no start comes in the second
-- half of it.
local function from_before(p, age)
  return p.trial > 0 and now - age < p.trial - p.length / 2
end

-- Has the tasks that wait for a rule checked now: they may have been put off for longer than is
-- necessary from now on.
local function look(name)
  freed(schedule, meta, { name }, now)
  return 1, 0
end

-- Each verb returns whether it changed anything, and until when the change is valid.
local verbs = { look = look }

function verbs.pause(level, us, length)
  local p = pause_of(level)
  local over = guess.over(p)
  stood = stood or over > now
  if over >= now + us then
    return 0, over
  end
  put('P', level, guess.text(now + us, over > now and p.since or now, length, length > 0 and now + us or 0))
  if p.ends > now + us then -- tasks wait for the probe
    look(level .. ':!stop')
  end
  return 1, now + us
end

-- During a rest all signals come from the same calls, and so do those that come later from calls that were sent
-- before. If a level has rested and is refused again soon afterwards, it rests for longer, unless the refusals of
-- other levels are recorded there.
function verbs.rest(level, first, most, part, age, _, own)
  local p = pause_of(level)
  local over = guess.over(p)
  if over > now or from_before(p, age) then
    stood = true
    return 0, over
  end
  local again = p.length > 0 and level == own and now - over <= kept(p.length)
  local length = min(again and 2 * p.length or first, most)
  return verbs.pause(level, length + floor(length * part / 1000000), length)
end

function verbs.lift(level)
  local p = pause_of(level)
  if p.ends <= now and p.trial == 0 then
    return 0, 0
  end
  put('P', level, guess.text(now, p.since, 0, 0))
  return look(level .. ':!stop')
end

-- Puts the ends of trials, of a scope and of the levels above it, off to now. Each is over if `done`.
local function end_probes(scope, done, is)
  local changed = 0
  for ends in string.gmatch(scope .. '/', '()/') do
    local level = sub(scope, 1, ends - 1)
    local p = pause_of(level)
    if p.trial > 0 and is(p) then
      put('P', level, guess.text(max(now, p.trial), p.since, p.length, done and 0 or p.trial))
      look(level .. ':!stop')
      changed = 1
    end
  end
  return changed, 0
end

function verbs.open(scope, age)
  return end_probes(scope, true, function(p)
    return p.trial <= now and not from_before(p, age)
  end)
end

function verbs.back(scope, start)
  return end_probes(scope, false, function(p)
    return p.ends == start + guess.PROBE
  end)
end

local function correction(name)
  return corrections.read(by_now('R' .. name, call('HGET', upstream, 'R' .. name)))
end

local function save(name, r)
  r.ends = max(r.limit > 0 and r.till or 0, r.raised, r.since + ceil(max(0, WHOLE - r.part) * 1000000 / r.grows))
  put('R', name, corrections.text(r))
  return r.ends
end

function verbs.cut(name, left, apart, grows, least, most)
  local r = correction(name)
  if stood or now - r.cut < apart then
    return 0, r.ends
  end
  r.part = max(least, floor(corrections.part_at(r, most) * left / WHOLE))
  r.since, r.grows, r.cut = now, max(1, grows), now
  return 1, save(name, r)
end

-- The part that has grown while calls succeeded keeps growing from where it is.
function verbs.rise(name, most, grows, us)
  local r = correction(name)
  local fresh = r.raised <= now
  r.part, r.since, r.grows, r.raised = corrections.part_at(r, most), now, max(1, grows), now + us
  if fresh then
    look(name)
  end
  return fresh and 1 or 0, save(name, r)
end

function verbs.adopt(name, limit, per, us, burst)
  local r = correction(name)
  if r.limit == 0 and limit == 0 then
    return 0, max(now, r.ends)
  end
  local known = r.limit == limit and r.per == per and r.burst == burst
  r.limit, r.per, r.burst, r.till = limit, per, burst, limit > 0 and now + us or now
  if not known then -- it may be more than the rule's limit
    look(name)
  end
  return known and 0 or 1, max(now, save(name, r))
end

function verbs.free(name)
  if correction(name).ends <= now then
    return 0, 0
  end
  forget('R' .. name)
  wrote = true
  return look(name)
end

local out = { now }
for i = 2, #ARGV, 7 do
  local verb, name, numbers = ARGV[i], ARGV[i + 1], {}
  for j = 1, 5 do
    numbers[j] = tonumber(ARGV[i + 1 + j])
  end
  numbers[6] = name
  local changed, ends, its = 0, 0, noted_of(verb, name)
  if its then
    changed, ends = verbs[verb](its, unpack(numbers))
  end
  out[#out + 1], out[#out + 2], out[#out + 3] = changed, ends, its and #its or -1
  if ends > 0 then
    keep(upstream, 2 * (ends - now) + guess.RESTED)
  end
end

if wrote then
  sweep(FEW)
end
return out
