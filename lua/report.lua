-- report: record what an API has reported about its limits, for all tasks of a scope.
--
-- Each word is one signal. Sent again, a word changes nothing more, except for the time that has passed since.
--
-- KEYS, ARGV[1] are in include/base.lua, the hash `api` in include/rules.lua.
-- ARGV[2..]   words   eight for each: a verb, a name, five numbers, 0 for each that it does not need, and the kind and numbers of a
--             rule as in its text, and after them its own by the policy, "" if it does not need them. A level is the path of a
--             node, and a rule "node:name". Parts are in millionths.
--             pause   a level; no start there for the first number of µs.
--             rest    a level, paused with exponential backoff, for a pause of unknown length: base in µs, max in µs, jitter in
--                     millionths, and how many µs ago the call was sent, 0 for now. The pause doubles each time that it was in vain.
--                     A call that was sent before it changes nothing.
--             open    a scope, of which a call was not refused: how many µs ago it was sent, 0 for now. The trials of the scope and
--                     of the levels above it are over, unless the call was sent before them.
--             cut     a rule: the part that is left of it, unless a cut was less than the second number of µs ago or a pause before
--                     it in the call was already in force; the part by which it grows in a second, with the words about it; the least
--                     part that is left, and the largest part that it may have. Its numbers, the whole.
--             rise    a rule, whose calls succeed: the largest part that it may have, the part by which it grows in a second, and for
--                     how many more µs it may be above the whole. Its numbers, the whole.
--             adopt   a rule: its numbers by the API's own limit, and for how many µs they are valid, 0 for none.
--             lift    a level, whose pause is over; free: a rule, whose own numbers count again.
--             The words about breakers are in include/breaker.lua.
-- Returns  {now, waits, then three for each word: changed, ends, noted}
--          now      integer µs, the clock of this call; waits: 1 if tasks wait for something that has changed, else 0
--          changed  1 when it was not known before; ends: integer µs since the epoch, until when it is in force, 0 if nothing is
--          noted    how many bytes of the name are the level or rule that it is recorded for; -1 if there is no room for it
-- Writes   the hash api, and when to look at blocked nodes.
-- Source   docs/vendor.md#pauses

-- #include base
-- #include rules

-- At most MOST fields are kept: the API's replies to tenants' calls create them. SWEPT are looked at in each call for what is over.
local MOST, SWEPT, WHOLE = 20000, '50', 1000000

local key, waits, latest, stood = P .. 'api', 0, 0, false -- stood: a pause was in force, so a refused call had been sent before it
local function look(at) waits = max(waits, rules.due(at)) end

local function put(field, ends, value)
  latest = max(latest, ends)
  call('HSET', key, field, value)
end

-- The field for a name, or of the node above, if there is no room: so no call is sent that the API would refuse.
local function room_for(letter, name)
  if call('HEXISTS', key, letter .. name) == 1 or call('HLEN', key) < MOST then return name end
  return letter == 'P' and match(name, '^(/[^/]+)/') or nil
end

-- A pause of a letter and a level, P by an API or a guess, B by a breaker; one that is over if there is none.
local function pause_of(letter, level)
  local v = call('HGET', key, letter .. level)
  return v and algorithm('P').load(nil, letter, v) or { ends = 0, since = now, length = 0, probes = 0, calls = 0, failures = 0, out = {} }
end

local function put_pause(letter, level, p) put(letter .. level, pauses.all_go(letter, p), pauses.text(p)) end

-- Whether a call that was sent `age` µs ago was on its way before the guess was over: no start comes in the second half of it.
local function from_before(p, age) return p.probes > 0 and now - age < p.ends - p.length / 2 end
local verbs = {}

local function pause(level, us, length)
  local p = pause_of('P', level)
  stood = stood or p.ends > now
  if p.ends >= now + us then return 0, p.ends end
  if #p.out > 0 then look(level) end -- tasks wait for the probe
  p.ends, p.since, p.length, p.probes, p.out = now + us, p.ends > now and p.since or now, length, length > 0 and 1 or 0, {}
  put_pause('P', level, p)
  return 1, p.ends
end

function verbs.pause(level, us) return pause(level, us, 0) end

-- If a level has rested and is refused again soon afterwards, it rests for longer.
function verbs.rest(level, base, most, jitter, age)
  local p = pause_of('P', level)
  if p.ends > now or from_before(p, age) then
    stood = true
    return 0, p.ends
  end
  local again = p.length > 0 and now <= pauses.all_go('P', p)
  local length = min(again and 2 * p.length or base, most)
  return pause(level, length + floor(length * jitter / WHOLE), length)
end

function verbs.open(scope, age)
  local changed_any, at = 0, scope
  while at do
    local p = pause_of('P', at)
    if p.probes > 0 and p.ends <= now and not from_before(p, age) then
      p.ends, p.probes, p.out = now, 0, {}
      put_pause('P', at, p)
      look(at)
      changed_any = 1
    end
    at = at ~= '' and match(at, '^(.*)/[^/]*$') or nil
  end
  return changed_any, 0
end

-- A correction: until when it counts, the kind and the numbers that count, and then its whole numbers and until when those are the
-- API's own; the part of them, when that was set, and how much it grows in a second; when it was cut; until when it may be above the whole;
-- and the rule's numbers by the policy.
local function correction_of(name, numbers, own_numbers)
  local v = call('HGET', key, 'R' .. name)
  local c = { whole = numbers, till = 0, part = WHOLE, at = now, grows = WHOLE, cut = 0, raised = 0, of = own_numbers }
  if not v or unpacked('>I7', v) <= now or sub(v, -28) ~= own_numbers then return c end
  local own = sub(v, 37, 64)
  c.till, c.part, c.at, c.grows, c.cut, c.raised = unpacked('>I7I7I7I7I7I7', v, 65)
  if c.till > now then c.whole = own end
  return c
end

-- The present part, with what it has grown: no further than the API's own limit.
local function part_of(c, most)
  return min(c.till <= now and c.raised > now and max(WHOLE, most) or WHOLE, c.part + floor(max(0, now - c.at) * c.grows / 1000000))
end

local function put_correction(name, kind, c, ramps)
  local a, b, d, e = unpacked('>I7I7I7I7', c.whole)
  if c.part ~= WHOLE then a = max(1, floor(a * c.part / WHOLE)) end
  if ramps and kind == 84 then d = max(1, floor(d * c.part / WHOLE)) end -- a full bucket would admit its whole burst at once
  local ends = max(c.till, c.part >= WHOLE and c.raised or c.at + ceil((WHOLE - c.part) * 1000000 / c.grows))
  if ends <= now then
    call('HDEL', key, 'R' .. name)
  else
    put('R' .. name, ends, packed('>I7B', ends, kind) .. packed('>I7I7I7I7', a, b, d, e) .. c.whole
      .. packed('>I7I7I7I7I7I7', c.till, c.part, c.at, c.grows, c.cut, c.raised) .. c.of)
  end
  look(match(name, '^[^:]*'))
  return ends
end

function verbs.cut(name, left, apart, grows, least, most, kind, numbers, own)
  local c = correction_of(name, numbers, own)
  if stood or now - c.cut < apart then return 0, 0 end
  c.part = max(least, floor(part_of(c, most) * left / WHOLE))
  c.at, c.grows, c.cut = now, max(1, grows), now
  return 1, put_correction(name, kind, c)
end

function verbs.rise(name, most, grows, us, _, _, kind, numbers, own)
  local c = correction_of(name, numbers, own)
  local fresh = c.raised <= now and us > 0
  c.raised = max(c.raised, now + us)
  c.part = part_of(c, most)
  c.at, c.grows = now, max(1, grows)
  return fresh and 1 or 0, put_correction(name, kind, c)
end

function verbs.adopt(name, us, _, _, _, _, kind, numbers, own)
  local c = correction_of(name, numbers, own)
  local known = c.till > now and c.whole == numbers and us > 0
  if us == 0 and c.till <= now then return 0, 0 end
  c.whole, c.till = numbers, us > 0 and now + us or 0
  if us > 0 then c.part = min(c.part, WHOLE) end
  return known and 0 or 1, put_correction(name, kind, c)
end

local function forget(letter)
  return function(name)
    local had = call('HDEL', key, letter .. name)
    if had == 1 then look(match(name, '^[^:]*')) end
    return had, 0
  end
end
verbs.lift, verbs.free = forget('P'), forget('R')

-- #include breaker

-- Some fields are looked at in each call that writes, or that finds no room, and what is over is deleted.
local function sweep()
  local found = call('HSCAN', key, call('HGET', key, '@') or '0', 'COUNT', SWEPT)
  for i = 1, #found[2], 2 do
    local field, v = found[2][i], found[2][i + 1]
    local letter, ends = sub(field, 1, 1), now
    if letter == 'R' then ends = unpacked('>I7', v) elseif letter ~= '@' then ends = pauses.all_go(letter, pause_of(letter, sub(field, 2))) end
    if ends < now then call('HDEL', key, field) end
  end
  call('HSET', key, '@', found[1])
end

local full = call('HLEN', key) >= MOST
if full then sweep() end

local LETTER = { pause = 'P', rest = 'P', cut = 'R', rise = 'R', adopt = 'R', ramp = 'R', trip = 'B' }
local out = { now, 0 }
for i = 2, #ARGV, 8 do
  local verb, name, numbers, rule_text = ARGV[i], ARGV[i + 1], {}, ARGV[i + 7]
  for j = 1, 5 do numbers[j] = tonumber(ARGV[i + 1 + j]) end
  numbers[6], numbers[7], numbers[8] = byte(rule_text) or 0, sub(rule_text, 2, 29), sub(rule_text, 30)
  local noted, changed_it, ends = name, 0, 0
  if LETTER[verb] then noted = room_for(LETTER[verb], name) end
  if noted then changed_it, ends = verbs[verb](noted, unpack(numbers)) end
  out[#out + 1], out[#out + 2], out[#out + 3] = changed_it, ends, noted and #noted or -1
end

if call('HLEN', key) == 1 and call('HEXISTS', key, '@') == 1 then call('DEL', key) end -- while it is there, decisions read it
if latest > now then
  if not full then sweep() end
  if call('PTTL', key) < (latest - now) / 1000 then call('PEXPIRE', key, outlast(latest - now)) end
end
out[2] = waits
return out
