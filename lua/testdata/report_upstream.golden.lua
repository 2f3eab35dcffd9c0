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
--                     max in µs, and jitter in millionths. The pause doubles each time that it was in
--                     vain.
--             lift    a level, whose pause is over.
--             cut     a rule: the part in millionths that is left of it, unless a cut was less than the second
--                     number of µs ago or a pause before it in the call was already in force; the part by which
--                     it grows in a second; the least part that is left, and the largest part that it may have.
--             adopt   a rule: the API's own limit, 0 for none or an unusable one; its window in µs, which
--                     includes a bucket's pad; and for how many µs it is valid.
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

-- The one clock of a call: Redis's own, in whole microseconds since the epoch.
-- A test may pass a number instead; production passes "".
local now = ARGV[1]
if now ~= '' then
  now = tonumber(now)
else
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- No charge is ever made more than a minute ahead.
local FAR_AHEAD = 60000000
-- Whole numbers below 2^53 as seven big-endian bytes: one by plain arithmetic, where "%" is an instruction and
-- math.floor a call, and several at once by Redis's struct library. '>BI7' is a byte and a number. On a
-- server without that library, such as miniredis, they are packed here.
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

local struct = rawget(_G, 'struct') or {
  pack = function(format, ...)
    local i, numbers = 0, { ... }
    return (string.gsub(sub(format, 2), '[BI]7?', function(kind)
      i = i + 1
      return kind == 'B' and char(numbers[i]) or pack(numbers[i])
    end))
  end,
  unpack = function(format, text)
    local out, at = {}, 1
    for kind in string.gmatch(format, '[BI]') do
      local n, last = 0, kind == 'B' and at or at + 6
      for i = at, last do
        n = n * 256 + byte(text, i)
      end
      out[#out + 1], at = n, last + 1
    end
    return unpack(out)
  end,
}
local packed, unpacked = struct.pack, struct.unpack
-- Conversion of numbers to and from Redis.
local max, min = math.max, math.min

local function unpack7(v, i)
  local a, b, c, d, e, f, g = byte(v, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- Whole numbers are converted to text by these formats alone, which keep every digit. %d takes a third of the time of
-- %.0f, but loses digits if the server's long has 32 bits.
local WHOLE, WHOLES = '%d', '%d %d %d %d %d'
if string.format(WHOLE, 4503599627370497) ~= '4503599627370497' then
  WHOLE, WHOLES = '%.0f', '%.0f %.0f %.0f %.0f %.0f'
end
local function whole(n)
  return string.format(WHOLE, n)
end

-- The TTL, in ms, of a key that means nothing any more us µs from now: a second more.
local function outlast(us)
  return whole(ceil(us / 1000) + 1000)
end
-- Keeps a key at least until it means nothing any more, us µs from now.
local function keep(key, us)
  local ttl = outlast(us)
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
-- The correction of a rule by an API: a part of the rule's limit, which is cut when calls are refused
-- and grows with time, and a limit of the API's own. It needs now.
-- Source: docs/vendor.md#corrections
--
-- Nine numbers: when all of it is over; a moment, the part at that moment, in millionths, and by how
-- much it grows in a second; a limit, 0 for none, its window in µs, and until when it is valid; until
-- when the part may be above the whole, since calls succeed; when it was cut.
local WHOLE = 1000000

-- One table, since a chunk has few locals.
local corrections = {}

-- The present value of a pause (P) or a correction (R) of upstream. If the clock has stepped back behind the
-- moment at which it was written, its times step back too, or else it would last longer by the step. The
-- second result reports that.
function corrections.by_now(field, v)
  local back = v and unpack7(v, 8) - now or 0
  if back <= 1000000 then
    return v, false
  end
  for _, at in ipairs(byte(field) == 80 and { 1, 8 } or { 1, 8, 43, 50, 57 }) do
    v = sub(v, 1, at - 1) .. pack(max(0, unpack7(v, at) - back)) .. sub(v, at + 7)
  end
  return v, true
end

local NUMBERS = { 'ends', 'since', 'part', 'grows', 'limit', 'per', 'till', 'raised', 'cut' }

-- Parses a correction from its text. Without a text, nothing is corrected.
function corrections.read(v)
  local r = { ends = 0, since = 0, part = WHOLE, grows = 1, limit = 0, per = 0, till = 0, raised = 0, cut = 0 }
  for i, name in ipairs(v and NUMBERS or {}) do
    r[name] = unpack7(v, 7 * i - 6)
  end
  if r.till <= now then
    r.limit = 0
  end
  return r
end

function corrections.text(r)
  local out = {}
  for i, name in ipairs(NUMBERS) do
    out[i] = pack(r[name])
  end
  return table.concat(out)
end

-- The present part, at most `most`. While the API's own limit counts, it is at most the whole: after that
-- it grows on from there.
function corrections.part_at(r, most)
  most = r.raised > now and max(WHOLE, most) or WHOLE
  local part, since = r.part, r.since
  if r.till > since then
    part, since = min(WHOLE, part + floor(max(0, min(now, r.till) - since) * r.grows / 1000000)), r.till
  end
  return min(most, part + floor(max(0, now - since) * r.grows / 1000000))
end
-- Has the waiting tasks of some levels checked now: units of their rules have come free, or the rules have
-- changed. It needs sub and whole; names are those of the rules. Returns whether any tasks wait there.
-- Source: docs/turns.md#the-tree
local function freed(schedule, meta, names, now)
  if #names == 0 or redis.call('EXISTS', schedule) == 0 then
    return false
  end
  local fields = {}
  for i = 1, #names do
    fields[i] = 'n' .. string.match(names[i], '^[^:]*')
  end
  local nodes, any = redis.call('HMGET', meta, unpack(fields)), false
  for i = 1, #fields do
    for sig in string.gmatch(nodes[i] or '', '\n([^ ]*)') do -- the record of a node: see tree.lua
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), sub(fields[i], 2) .. '\0' .. sig)
      any = true
    end
  end
  return any
end

-- The names of rules 1 to n; `length` is the length of the provider's prefix of their keys.
local function names_of_rules(n, length)
  local names = {}
  for i = 1, n do
    names[i] = sub(KEYS[i], length + 1)
  end
  return names
end

local call = redis.call
local upstream, schedule, meta = KEYS[1], KEYS[2], KEYS[3]

-- What is over is kept for KEPT, since the tasks that waited for it are still to be checked. A rest is kept
-- longer, for RESTED: it shows that the next one is in vain.
local KEPT, RESTED = 3000000, 60000000

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
  return length > 0 and max(length, RESTED) or KEPT
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

-- The name that a word is recorded for. Without room for a pause of its own, it is the name above that has no room, so
-- that no call is sent that the API would refuse. Without room a correction is dropped: the rule's own limit counts.
local function noted_of(verb, name)
  if verb == 'pause' or verb == 'rest' then
    local scope = crowding('P', name)
    return scope and crowding('P', scope) or scope or name
  end
  return (verb == 'lift' or verb == 'look' or not crowding('R', name)) and name
end

-- When a pause ends, when it began, and its length if the API did not give one; 0 for none.
local function pause_of(level)
  local v = by_now('P' .. level, call('HGET', upstream, 'P' .. level))
  if v then
    return unpack7(v, 1), unpack7(v, 8), unpack7(v, 15)
  end
  return 0, 0, 0
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
  local ends, since = pause_of(level)
  stood = stood or ends > now
  if ends >= now + us then
    return 0, ends
  end
  put('P', level, pack(now + us) .. pack(ends > now and since or now) .. pack(length))
  return 1, now + us
end

-- During a rest all signals come from the same calls. If a level has rested and is refused again soon
-- afterwards, it rests for longer, unless the refusals of other levels are recorded there.
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

function verbs.adopt(name, limit, per, us)
  local r = correction(name)
  if r.limit == 0 and limit == 0 then
    return 0, max(now, r.ends)
  end
  local known = r.limit == limit and r.per == per
  r.limit, r.per, r.till = limit, per, limit > 0 and now + us or now
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
    keep(upstream, 2 * (ends - now) + RESTED)
  end
end

if wrote then
  sweep(FEW)
end
return out
