-- tell: note what an API has told of its limits, for all who spend from a scope.
--
-- Each word says one thing. Sent again it says nothing more, but for the time that has
-- passed meanwhile.
--
-- KEYS[1]     told    hash, what is known. See include/told.lua.
-- KEYS[2]     due     sorted set of rules and pauses by the time to look at who waits for them. See
--                     include/turns/lines.lua.
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
--
-- Returns  {now, then two for each word: changed, ends}
--          now      integer µs, the clock of this call
--          changed  1 when it was not known before
--          ends     integer µs since the epoch, until when it holds; 0 for nothing
--
-- Writes   KEYS[1..2].
-- Source   docs/vendor.md#pauses

-- #include clock
-- #include pack
-- #include numbers
-- #include lease
-- #include correction

local call = redis.call
local told, due = KEYS[1], KEYS[2]

-- What is over stays for so long, since those who waited for it are yet to be looked at; a
-- rest for longer, since by it the next one is told to be in vain.
local KEPT, RESTED = 3000000, 60000000

-- So many are looked through each time; of more, when there are twice as many.
local FEW = 100

-- Below one name of the second level at most so many are kept, which an API can bring about by its answers
-- to that tenant's calls: what is told of further levels counts for the whole of the name, or not at
-- all. Then what is over is looked for, no sooner than after so many µs.
local MOST, SEEK = 1000, 1000000

local forgets, more = false, 0

-- Whether a pause stood already: what is refused then had been on its way, and cuts nothing.
local stood = false

-- How long a pause is kept that has ended.
local function kept(length)
  return length > 0 and max(length, RESTED) or KEPT
end

-- The name of the second level that a level, or a rule, is further below; nil for others.
local function above(name)
  return string.match(name, '^(/[^/:]*)/')
end

-- Forgets what has long been over, and what is left lives as long as it holds.
local function sweep()
  local fields, last, gone, left, below = call('HGETALL', told), 0, {}, 0, {}
  for i = 1, #fields, 2 do
    local field, name = fields[i], above(sub(fields[i], 2))
    if byte(field) == 35 then -- "#", a count
      gone[#gone + 1] = field ~= '#' and field or nil
    else
      local v = fields[i + 1]
      local ends = unpack7(v, 1) + (sub(field, 1, 1) == 'P' and kept(unpack7(v, 15)) or 0)
      if ends <= now then
        gone[#gone + 1] = field
      else
        last, left = max(last, ends), left + 1
        if name then
          below[name] = (below[name] or 0) + 1
        end
      end
    end
  end
  for i = 1, #gone, 500 do
    call('HDEL', told, unpack(gone, i, min(#gone, i + 499)))
  end
  if left == 0 then
    call('DEL', told)
    return
  end
  for name, count in pairs(below) do
    call('HSET', told, '#' .. name, whole(count))
  end
  call('HSET', told, '#', whole(left))
  call('PEXPIRE', told, outlast(last - now))
end

-- Whether there is room for what is told of a level or a rule.
local function has_room(field, of)
  local name = above(of)
  if not name then
    return true
  end
  local had = call('HMGET', told, field, '#' .. name, '#@')
  local count = tonumber(had[2] or 0)
  if not had[1] and count >= MOST and math.abs(now - tonumber(had[3] or 0)) > SEEK then
    sweep()
    count = tonumber(call('HGET', told, '#' .. name) or 0)
    if count >= MOST then
      call('HSET', told, '#@', whole(now)) -- which the next sweep forgets
    end
  end
  return had[1] and true or count < MOST
end

local function put(field, of, value)
  if call('HSET', told, field, value) == 1 then
    local name = above(of)
    if name then
      call('HSET', told, '#' .. name, whole(tonumber(call('HGET', told, '#' .. name) or 0) + 1))
    end
    more = more + 1
  end
end

-- The level at which a pause is noted: where there is no room for its own the one above, so that no
-- call goes out that the API would refuse.
local function level_for(level)
  return has_room('P' .. level, level) and level or above(level)
end

-- A pause as it stands, nil for none.
local function pause_of(level)
  local v = call('HGET', told, 'P' .. level)
  return v and (corrections.brought_back(v, 8, 1, 8)) or nil
end

local function pause(level, us)
  level = level_for(level)
  local v = pause_of(level)
  local ends = v and unpack7(v, 1) or 0
  stood = stood or ends > now
  if ends >= now + us then
    return 0, ends
  end
  local since = ends > now and unpack7(v, 8) or now
  put('P' .. level, level, pack(now + us) .. pack(since) .. pack(0))
  return 1, now + us
end

-- While it rests all that is told is of the same calls. Who has rested and is refused again
-- soon after that rests for longer.
local function rest(level, first, most, part)
  level = level_for(level)
  local v = pause_of(level)
  local ends, length = v and unpack7(v, 1) or 0, v and unpack7(v, 15) or 0
  stood = stood or ends > now
  if stood then
    return 0, ends
  end
  local again = length > 0 and now - ends <= kept(length)
  length = again and min(2 * length, most) or min(first, most)
  local us = length + floor(length * part / 1000000)
  put('P' .. level, level, pack(now + us) .. pack(now) .. pack(length))
  return 1, now + us
end

-- Lets a round be looked at now: those who wait may have been put off for longer than they
-- need to be from now on.
local function look(name)
  call('ZADD', due, 'XX', 'LT', whole(now), name)
end

local function lift(level)
  local v = pause_of(level)
  local over = not v or unpack7(v, 1) <= now
  if not over then
    call('HSET', told, 'P' .. level, pack(now) .. sub(v, 8, 14) .. pack(0))
    look(level .. ':!stop')
    forgets = true
  end
  return over and 0 or 1, 0
end

local function correction(name)
  local v = call('HGET', told, 'R' .. name)
  return v and (corrections.read(v)) or { since = 0, part = WHOLE, grows = 1, limit = 0, per = 0, till = 0, ends = 0, raised = 0, cut = 0 }
end

local function save(name, r)
  r.ends = max(r.limit > 0 and r.till or 0, r.raised, r.since + ceil(max(0, WHOLE - r.part) * 1000000 / r.grows))
  put('R' .. name, name, pack(r.ends) .. pack(r.since) .. pack(r.part) .. pack(r.grows)
    .. pack(r.limit) .. pack(r.per) .. pack(r.till) .. pack(r.raised) .. pack(r.cut))
  return r.ends
end

local function cut(name, left, apart, grows, least, most)
  local r = correction(name)
  if stood or now - r.cut < apart then
    return 0, r.ends
  end
  local part = max(least, floor(corrections.part_at(r, most) * left / WHOLE))
  r.since, r.part, r.grows, r.cut = now, part, max(1, grows), now
  return 1, save(name, r)
end

-- What has grown for as long as calls went through goes on from where it is.
local function rise(name, most, grows, us)
  local r = correction(name)
  local fresh = r.raised <= now
  r.part, r.since, r.grows, r.raised = corrections.part_at(r, most), now, max(1, grows), now + us
  if fresh then
    look(name)
  end
  return fresh and 1 or 0, save(name, r)
end

local function adopt(name, limit, per, us)
  local r = correction(name)
  local had = r.limit
  if had == 0 and limit == 0 then
    return 0, max(now, r.ends)
  end
  local known = had == limit and r.per == per
  r.limit, r.per, r.till = limit, per, limit > 0 and now + us or now
  if not known then -- it may be more than the rule's
    look(name)
  end
  forgets = forgets or had > 0 and (limit == 0 or limit > had)
  return known and 0 or 1, max(now, save(name, r))
end

local function free(name)
  if correction(name).ends <= now then
    return 0, 0
  end
  call('HDEL', told, 'R' .. name)
  look(name)
  forgets = true
  return 1, 0
end

-- A correction that there is no room for is none: the rule's own limit counts.
local function corrects(verb)
  return function(name, ...)
    if not has_room('R' .. name, name) then
      return 0, 0
    end
    return verb(name, ...)
  end
end

local verbs = { pause = pause, rest = rest, lift = lift, cut = corrects(cut), adopt = corrects(adopt), rise = corrects(rise), free = free }

local out, changes = { now }, false
for i = 2, #ARGV, 7 do
  local changed, ends = verbs[ARGV[i]](ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]),
    tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]))
  out[#out + 1], out[#out + 2] = changed, ends
  changes = changes or changed == 1
  if ends > 0 then
    keep(told, 2 * (ends - now) + RESTED)
  end
end
local size = tonumber(call('HGET', told, '#') or 0) + more

-- How often so many double.
local function doublings(n)
  local doubled = 0
  while n > FEW do
    n, doubled = n / 2, doubled + 1
  end
  return doubled
end

if changes and (forgets or size <= FEW or doublings(size) > doublings(size - more)) then
  sweep()
elseif more > 0 then
  call('HSET', told, '#', whole(size))
end
return out
