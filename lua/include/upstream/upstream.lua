-- What an API has reported about the scopes of a provider. It needs call, now and upstream, and
-- reported: whether there are any reports. Source: docs/vendor.md#pauses
--
-- upstream  hash: P<level> the pause of a level and of all below it: see include/upstream/pause.lua. A level is the
--        path of a scope after the provider's name. R<rule> the correction of a rule: see
--        include/upstream/correction.lua. #<level> how many of both there are below a name of the
--        second or third level; @ how far report_upstream has scanned them for what is over.
--
-- A pause is one more rule of a path, after the others: it admits nothing before it ends, and has a node of its own,
-- under a name that no rule can have. A start is charged nothing, unless it is a probe. A pause that
-- has ended stays until it is swept, since tasks may have waited for it.

-- #include upstream/pause

algorithms.P = {
  -- While a probe is on its way the end may be later, or sooner.
  fit = function(r, t)
    return max(t, r.ends), r.trial > 0 and r.ends > max(t, r.trial)
  end,
  charge = function(r, _, start)
    if guess.tries(r, start) then
      r.ends, r.changed = start + guess.PROBE, true
    end
    return 0
  end,
  save = function(r)
    if r.changed then
      call('HSET', upstream, 'P' .. r.level, guess.text(r.ends, r.since, r.length, r.trial))
    end
  end,
}

-- While there are reports, waiting tasks are checked this soon: a correction may end, and will grow
-- back, before its rule admits more by itself.
local UPSTREAM_LOOK = 1000000

-- #include upstream/correction

-- pauses are by level, false for none. stepped has what a step of the clock has changed, as fields and texts by turns;
-- a script that may write writes it, or else each read would find a pause as new as the first did.
local pauses, stepped = {}, {}

local function save_stepped()
  if #stepped > 0 then
    call('HSET', upstream, unpack(stepped))
  end
end

-- The present value of a field of upstream, if any.
local function upstream_field(field)
  local v, is_new = corrections.by_now(field, call('HGET', upstream, field))
  if is_new then
    stepped[#stepped + 1], stepped[#stepped + 2] = field, v
  end
  return v
end

-- Adds the pauses of a scope and of all levels above it to the rules of its path.
local function add_pauses(path, scope)
  for ends in string.gmatch(reported and scope .. '/' or '', '()/') do
    local level = sub(scope, 1, ends - 1)
    if pauses[level] == nil then
      local v = upstream_field('P' .. level)
      local r = v and guess.read(v)
      if r then
        r.kind, r.level, r.name, r.unit, r.cost = 'P', level, level .. ':!stop', '', 1
      end
      pauses[level] = r
    end
    path[#path + 1] = pauses[level] or nil
  end
end

-- The pauses of a path that the grant of a start has put off, as its probe.
local function probed(path, start)
  local some = {}
  for _, r in ipairs(path) do
    if r.kind == 'P' and r.trial > 0 and r.ends == start + guess.PROBE then
      some[#some + 1] = r
    end
  end
  return some
end

-- A bucket whose rate is corrected counts in parts that are FINER times as fine, as far as its numbers
-- allow, so that only p changes from read to read: its level is rewritten when the first
-- correction comes and when the last one goes, and no unit is lost or gained between. There is
-- room for later changes of its rate; a rate near MOST_RATE grows no further.
local FINER, MOST_RATE, MOST_LEVEL = 1000, 33554432, 4503599627370495

-- `part` millionths of n, rounded down: exact below 10^13 of them.
local function part_of(n, part)
  local rest = n % WHOLE
  return (n - rest) / WHOLE * part + floor(rest * part / WHOLE)
end

-- The limit that counts: a part of the rule's limit, or the API's own, 0 for none. Refusals lower the API's own too,
-- if it is the larger. Never more than `most`.
local function counts(limit, own, part, most)
  if own == 0 then
    return min(most, part_of(limit, part))
  end
  own = min(own, most)
  return min(own, part_of(max(limit, own), min(part, WHOLE)))
end

if reported then
  corrected = function(key, rule, kind, a, b, c, d)
    local v = (kind == 'T' or kind == 'S') and a > 0 and upstream_field('R' .. sub(key, #upstream - 8))
    local r = v and corrections.read(v)
    if not r or r.ends <= now then
      return a, b
    end
    local most = most_of(rule)
    local part = corrections.part_at(r, most)
    if kind ~= 'T' then
      -- An own limit belongs to its window: the policy may have given the rule another since.
      local own = r.per == (c == 0 and b - d / 2 or b > 0 and b - d or c) and r.limit or 0
      return max(1, counts(a, own, part, part_of(a, most))), b, true
    end
    local top = a * most / WHOLE
    local finer = max(1, floor(min(FINER, MOST_RATE / top, MOST_LEVEL / (2 * b * c), MOST_LEVEL / (top * max(d, 1)))))
    local p, q, own, burst = a * finer, b * finer, 0, nil
    if r.limit > 0 then
      own, burst = max(1, floor(q * r.limit / r.per)), r.burst > 0 and min(c, r.burst) or nil
    end
    local rate = counts(p, own, part, min(part_of(p, most), MOST_RATE, floor(MOST_LEVEL / max(d, 1))))
    return max(1, rate), q, true, p, burst
  end
end
