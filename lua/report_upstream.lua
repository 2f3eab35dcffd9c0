-- report_upstream: note what an API has told of its limits, for all who spend from a scope.
--
-- Each word says one thing. Sent again it says nothing more, but for the time that has
-- passed meanwhile.
--
-- KEYS[1]     upstream  hash, what is known. See include/upstream/upstream.lua.
-- KEYS[2]     schedule  sorted set of blocked nodes. See include/fairshare/tree.lua, here and for the next.
-- KEYS[3]     meta      hash of nodes.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2..]   words   seven for each word, a verb, a name and five numbers, 0 where it needs none. A
--             rule's name is that of its key after the provider, and parts are in millionths of its limit:
--             pause   a level: nothing starts there for so many µs.
--             rest    a level, which is paused while nobody knows for how long: for so many µs the first
--                     time, twice as long each time that it was in vain, at most so many, and so many
--                     millionths of that more.
--             lift    a level, whose pause is over.
--             cut     a rule, of which so many millionths are left, unless it was cut less than so many µs ago
--                     or a pause before it in the call stood already; by which part it grows in a second; the
--                     least part that is left, and the most that there may be.
--             adopt   a rule: the API's own limit, 0 for none or one that says nothing; its window in µs, in
--                     which a bucket's pad is, and for how many µs it holds.
--             rise    a rule, whose calls go through: the most that there may be of it, by which part it grows
--                     in a second, and for how many µs more than the whole of it may count.
--             free    a rule, of which nothing is corrected any more.
--             look    a rule, that admits more than it was known to.
--
-- Returns  {now, then three for each word: changed, ends, noted}
--          now      integer µs, the clock of this call
--          changed  1 when it was not known before
--          ends     integer µs since the epoch, until when it holds; 0 for nothing
--          noted    how much of the name, in bytes, is that of the level or rule that it is noted of; -1
--                   where there is no room for it
--
-- Writes   KEYS[1..2], the second where tasks wait for them.
-- Source   docs/vendor.md#pauses

-- #include core/clock
-- #include core/pack
-- #include core/numbers
-- #include core/lease
-- #include upstream/correction
-- #include fairshare/freed

local call = redis.call
local upstream, schedule, meta = KEYS[1], KEYS[2], KEYS[3]

-- What is over stays for so long, since those who waited for it are yet to be looked at; a
-- rest for longer, since by it the next one is told to be in vain.
local KEPT, RESTED = 3000000, 60000000

-- Below one name of the second level at most so many are kept, and so many of them below one of the third:
-- an API can bring about as many by its answers to a tenant's calls, at whichever of the two tenants are.
-- For names of the third level there is room for twice as many, so that no tenant there takes that of others.
local BELOW_SECOND, BELOW_THIRD = 20000, 2000

-- Who tells what is new looks through about so many for what is over; who finds no room through more.
local FEW, MANY = 50, 500

-- Whether anything was written, and whether it was looked for room. Whether a pause stood already: what is refused
-- then had been on its way, and cuts nothing.
local wrote, swept, stood = false, false, false

-- How long a pause is kept that has ended.
local function kept(length)
  return length > 0 and max(length, RESTED) or KEPT
end

-- The names of the second and of the third level that a level, or a rule, is further below.
local function above(name)
  return string.match(name, '^(/[^/:]*)/'), string.match(name, '^(/[^/:]*/[^/:]*)/')
end

-- How many are kept below a name.
local function below(scope)
  return tonumber(call('HGET', upstream, '#' .. scope) or 0) or 0
end

-- Counts so many more below the names above a level or a rule.
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

-- What a field holds, by the clock as it has stepped since.
local function by_now(field, v)
  local stepped
  v, stepped = corrections.by_now(field, v)
  if stepped then
    call('HSET', upstream, field, v)
  end
  return v
end

-- Until when a field is kept; where there is no room below a scope, a rest no longer than any pause.
local function kept_until(field, v, scope)
  if byte(field) == 82 then -- "R"
    return unpack7(v, 1)
  end
  local no_room = scope and sub(field, 2, #scope + 2) == scope .. '/'
  return unpack7(v, 1) + kept(no_room and 0 or unpack7(v, 15))
end

-- Looks through so many fields, from where the last call has ended, and forgets what is over. Where that
-- is all of them the key lives as long as what is left; else as long as it was told to. A round of several calls
-- may miss what is told meanwhile, or all that a failover puts elsewhere: the next one finds that.
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

-- The innermost name above a level, or a rule, that is to stand for it since there is no room for one more, and what
-- is over has made none; nil where there is.
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

-- What a word is noted of. Where there is no room for a pause of its own, that which has none, so that no call goes out
-- that the API would refuse. A correction that there is no room for is none: the rule's own limit counts.
local function noted_of(verb, name)
  if verb == 'pause' or verb == 'rest' then
    local scope = crowding('P', name)
    return scope and crowding('P', scope) or scope or name
  end
  return (verb == 'lift' or verb == 'look' or not crowding('R', name)) and name
end

-- When a pause ends, when it began, and how long it was where the API did not say; 0 for none.
local function pause_of(level)
  local v = by_now('P' .. level, call('HGET', upstream, 'P' .. level))
  if v then
    return unpack7(v, 1), unpack7(v, 8), unpack7(v, 15)
  end
  return 0, 0, 0
end

-- Lets those of a rule be looked at now: they may have been put off for longer than they
-- need to be from now on.
local function look(name)
  freed(schedule, meta, { name }, now)
  return 1, 0
end

-- Each verb returns whether it changed anything, and until when that holds.
local verbs = { look = look }

function verbs.pause(level, us, length)
  local ends, since = pause_of(level)
  stood = stood or ends > now
  if ends >= now + us then
    return 0, ends
  end
  put('P', level, pack(now + us) .. pack(ends > now and since or now) .. pack(length))
  return 1, now + us
end

-- While it rests all that is told is of the same calls. Who has rested and is refused again
-- soon after that rests for longer; not so where others' refusals are noted at the same level.
function verbs.rest(level, first, most, part, _, _, own)
  local ends, _, length = pause_of(level)
  if ends > now then
    stood = true
    return 0, ends
  end
  local again = length > 0 and level == own and now - ends <= kept(length)
  length = min(again and 2 * length or first, most)
  return verbs.pause(level, length + floor(length * part / 1000000), length)
end

function verbs.lift(level)
  local ends, since = pause_of(level)
  if ends <= now then
    return 0, 0
  end
  put('P', level, pack(now) .. pack(since) .. pack(0))
  return look(level .. ':!stop')
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

-- What has grown for as long as calls went through goes on from where it is.
function verbs.rise(name, most, grows, us)
  local r = correction(name)
  local fresh = r.raised <= now
  r.part, r.since, r.grows, r.raised = corrections.part_at(r, most), now, max(1, grows), now + us
  if fresh then
    look(name)
  end
  return fresh and 1 or 0, save(name, r)
end

function verbs.adopt(name, limit, per, us)
  local r = correction(name)
  if r.limit == 0 and limit == 0 then
    return 0, max(now, r.ends)
  end
  local known = r.limit == limit and r.per == per
  r.limit, r.per, r.till = limit, per, limit > 0 and now + us or now
  if not known then -- it may be more than the rule's
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
    keep(upstream, 2 * (ends - now) + RESTED)
  end
end

if wrote then
  sweep(FEW)
end
return out
