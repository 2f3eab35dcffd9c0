-- Breakers: which part of the calls of a node fails, and what follows. Source: docs/breaker.md
--
-- While a breaker is open, it is a pause of its node that ends with probes (include/pause.lua), and what it counted is gone. Before,
--   b:<node>  a string, for as long as a call counts: numbers of seven bytes, the newest slot; the moment before which calls were sent
--             whose failures do not count; then for each process its number, and its calls and failures in each slot, newest first
--
-- The words of report about breakers, each of a level or, where that is said, of another name:
--   calls   calls since the last report of a process, and how many of them failed; the number of the process; how many µs ago the
--           last of those that failed was sent; 1 for a breaker that only counts. Then in the place of a rule's numbers the part
--           that has to fail in percent, of how many calls, in how many µs, how many probes, and the wait in µs. The breaker opens if
--           so large a part of the calls failed, and of those of two processes each, if there are two.
--   probed  a probe has ended: 1 if it failed, the longest wait in µs, and in the place of a rule "L" and the lease under which it was
--           granted. A failure opens the breaker again, for twice as long, and a success closes it. One that was not on its way, or comes later, changes nothing.
--   ramp    a rule: the part of it that counts after its breaker has closed, for how many µs, and how long ago that was, 0 if it has
--           closed by this call. Its numbers.
--   trip    opens it by hand: how many probes, and the wait in µs. close: closes it.
local SLOTS, PROCESSES, LONGEST = 6, 16, 600000000

-- What was counted at a node, in slots of a length, with the sums of each process; processes without calls are left out.
local function tally_of(at, length, latest_mark)
  local v, slot = call('GET', P .. 'b:' .. at) or '', floor(now / length)
  local list, size = { slot = slot, mark = 0 }, 7 + 14 * SLOTS
  if #v == 0 then return list end
  local newest, mark = unpacked('>I7I7', v)
  if mark <= latest_mark then list.mark = mark end -- else the clock has stepped back, and so has the slot
  local passed = newest > slot and 0 or min(SLOTS, slot - newest)
  for i = 15, #v, size do
    local p = { id = unpacked('>I7', v, i), calls = 0, failures = 0 }
    for k = 1, SLOTS do
      local calls, failures = 0, 0
      if k > passed then calls, failures = unpacked('>I7I7', v, i + 7 + 14 * (k - passed - 1)) end
      p[2 * k - 1], p[2 * k], p.calls, p.failures = calls, failures, p.calls + calls, p.failures + failures
    end
    if p.calls > 0 then list[#list + 1] = p end
  end
  return list
end

local function put_tally(at, list, lasts)
  local text = packed('>I7I7', list.slot, list.mark)
  for _, p in ipairs(list) do text = text .. packed('>I7' .. string.rep('I7', 2 * SLOTS), p.id, unpack(p, 1, 2 * SLOTS)) end
  call('SET', P .. 'b:' .. at, text, 'PX', outlast(lasts))
end

-- The process of a list; beyond PROCESSES the last one stands for all others.
local function process_of(list, id)
  for _, p in ipairs(list) do
    if p.id == id then return p end
  end
  if #list == PROCESSES then return list[PROCESSES] end
  local p = { id = id, calls = 0, failures = 0 }
  for k = 1, 2 * SLOTS do p[k] = 0 end
  list[#list + 1] = p
  return p
end

local function trip(at, probes, wait, calls, failures)
  if not room_for('B', at) then return 0, 0 end
  call('DEL', P .. 'b:' .. at)
  put_pause('B', at, { ends = now + wait, since = now, length = wait, probes = probes, calls = calls, failures = failures, out = {} })
  look(at) -- tasks may wait for a probe of before
  return 1, now + wait
end

function verbs.calls(at, calls, failures, id, age, shadow, _, numbers, wait)
  local part, of, length, probes = unpacked('>I7I7I7I7', numbers)
  local b = pause_of('B', at)
  wait = unpacked('>I7', wait)
  if b.probes > 0 and now < pauses.all_go('B', b) then return 0, b.ends end
  local list = tally_of(at, ceil(length / SLOTS), now + (shadow == 1 and wait or 0))
  if now - age < list.mark then calls, failures = calls - failures, 0 end
  local p, all, failed, failing = process_of(list, id), 0, 0, 0
  p[1], p[2], p.calls, p.failures = p[1] + calls, p[2] + failures, p.calls + calls, p.failures + failures
  for _, each in ipairs(list) do
    all, failed = all + each.calls, failed + each.failures
    if each.failures > 0 and 100 * each.failures >= part * each.calls then failing = failing + 1 end
  end
  local opens = failures > 0 and all >= of and 100 * failed >= part * all and failing >= min(2, #list)
  if opens and shadow == 0 then return trip(at, probes, wait, all, failed) end
  if opens then list = { slot = list.slot, mark = now + wait } end
  if all > 0 then put_tally(at, list, max(length, list.mark - now)) end
  return opens and 1 or 0, opens and now + wait or 0
end

local closed = {} -- the levels whose breakers this call has closed
function verbs.close(at)
  if call('HDEL', key, 'B' .. at) == 0 then return 0, 0 end
  put_tally(at, { slot = 0, mark = now }, LONGEST) -- what was sent before may yet fail
  look(at)
  closed[at] = true
  return 1, 0
end

verbs.trip = function(at, probes, wait) return trip(at, probes, wait, 0, 0) end

function verbs.probed(at, failed, longest, _, _, _, _, first, rest)
  local b = pause_of('B', at)
  if algorithm('P', 'rare').refund(b, 0, 1, first .. rest) == 0 then return 0, 0 end
  if b.ends <= now and failed == 0 then return verbs.close(at) end
  local opens = b.ends <= now
  if opens then
    b.length = min(longest, 2 * b.length)
    b.ends = now + b.length
  end
  put_pause('B', at, b)
  look(at)
  return opens and 1 or 0, b.ends
end

function verbs.ramp(name, part, us, age, _, _, kind, numbers, own)
  local c = correction_of(name, numbers, own)
  local goes_on = age > 0 and now - c.cut >= age and call('HEXISTS', key, 'R' .. name) == 1 -- else it was refused since, or reset
  if not goes_on and not (age == 0 and closed[match(name, '^[^:]*')]) then return 0, 0 end
  c.part, c.at, c.grows = part, now, max(1, ceil((WHOLE - part) * 1000000 / max(1, us)))
  return age == 0 and 1 or 0, put_correction(name, kind, c, true)
end
