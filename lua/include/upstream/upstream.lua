-- What an API has told of the scopes of a provider. It needs call, now and upstream, and
-- where reported says that there is anything. Source: docs/vendor.md#pauses
--
-- upstream  hash: P<level> the pause of a level and of all below it: when it ends, when it
--        began, and how long it was where the API did not say. A level is the path of a
--        scope after the provider's name. R<rule> the correction of a rule: see
--        include/upstream/correction.lua. #<level> how many of both there are below a name of the
--        second or third level; @ how far report_upstream has looked through them for what is over.
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
local UPSTREAM_LOOK = 1000000

-- #include upstream/correction

-- By level, false for none; and what a step of the clock has changed, as fields and texts by turns,
-- which whoever may write does: else each look would find a pause as new as the first one did.
local pauses, stepped = {}, {}

local function save_stepped()
  if #stepped > 0 then
    call('HSET', upstream, unpack(stepped))
  end
end

-- What a field of upstream holds by now, if anything.
local function upstream_field(field)
  local v, is_new = corrections.by_now(field, call('HGET', upstream, field))
  if is_new then
    stepped[#stepped + 1], stepped[#stepped + 2] = field, v
  end
  return v
end

-- Adds the pauses of a scope and of all above it to the rules of its path.
local function add_pauses(path, scope)
  for ends in string.gmatch(reported and scope .. '/' or '', '()/') do
    local level = sub(scope, 1, ends - 1)
    if pauses[level] == nil then
      local v = upstream_field('P' .. level)
      pauses[level] = v and { kind = 'P', name = level .. ':!stop', ends = unpack7(v, 1), unit = '', cost = 1 }
    end
    path[#path + 1] = pauses[level] or nil
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
      -- A limit is one of its window: the policy may have given the rule another since.
      local own = r.per == (b > 0 and b - d or c) and r.limit or 0
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
