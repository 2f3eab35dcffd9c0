-- Which place a scope has among others, by what they and it have had. It needs call, at,
-- pack and the numbers. Source: docs/turns.md#shares
--
-- Each level of a path that has rules has a virtual time. The names right below it, its
-- nodes, have slots in that time, each node one after another: a slot is SLOT / weight
-- long for each unit. A scope in line holds a slot of its node at each level, and the
-- beginning of that is its tag there: the stamp of its seat while that is with a rule of
-- the level. All are kept in `at`:
--   V<level>  the virtual time: the highest tag that had its turn
--   F<node>   where the node's next slot begins
--   T<scope>  the tags of a scope in line, seven bytes for each level from the provider
--             down, zero where there are no rules
-- The next slots of nodes whose lines were emptied have places in `round`, until the time
-- has passed them: level, ", 0, three zeros, slot, node. Of all scopes that ever waited
-- they would be as many as those.
-- Where a level below the first has weights, each of its scopes in line has a place in the
-- round of the level too, whatever rule it waits for: level, 0, three zeros, tag, scope.
local SLOT, LATEST = 100000, 9007199254740991

local times, slots = {}, {} -- by level, by node; as they will be
local rewritten = {} -- numbers of `at`, by their fields

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

-- The name below a level on the way to a scope: "/a" of "/a/x", and "/a/x/" where the
-- scope is the level itself.
local function node_of(scope, level)
  local path = scope .. '/'
  return sub(path, 1, (string.find(path, '/', #level + 2, true) or #path + 1) - 1)
end

-- What a path has of each level that has rules, the provider's first. Where a level has no
-- time yet it begins with the highest stamp that anybody has.
local function shares_of(scope, names, weights)
  local shares, fields = {}, { 'T' .. scope, '#' }
  for i = 1, #names do
    local level = level_of(names[i])
    if #shares == 0 or shares[#shares].level ~= level then
      local _, depth = string.gsub(level, '/', '')
      local s = { level = level, node = node_of(scope, level), depth = depth, weight = tonumber(weights[i]) or 0 }
      s.placed, s.weight = s.weight > 0 and #shares > 0, s.weight > 0 and s.weight or 1
      shares[#shares + 1] = s
      fields[#fields + 1], fields[#fields + 2] = 'V' .. level, 'F' .. s.node
    end
  end
  local had = call('HMGET', at, unpack(fields))
  local tags = had[1] or ''
  for i, s in ipairs(shares) do
    times[s.level] = times[s.level] or tonumber(had[2 * i + 1] or max(1, had[2] or 1))
    slots[s.node] = slots[s.node] or tonumber(had[2 * i + 2] or 0)
    local tag = #tags >= 7 * s.depth + 7 and unpack7(tags, 7 * s.depth + 1) or 0
    s.tag = tag > 0 and tag or nil
    s.had = s.placed and s.tag
  end
  return shares
end

local function place_at(s, scope)
  return s.level .. '\0\0\0\0' .. pack(s.tag) .. scope
end

-- Writes a scope's places in the rounds of its levels, none where its line is empty.
local function save_places(shares, scope, empty)
  for _, s in ipairs(shares) do
    if s.placed and s.tag and not empty then
      call('ZADD', round, '0', place_at(s, scope))
    end
    if s.had and (s.had ~= s.tag or empty) then
      call('ZREM', round, place_at({ level = s.level, tag = s.had }, scope))
    end
    s.had = s.placed and not empty and s.tag
  end
end

-- Puts a node's next slot off by so many units.
local function put_off(s, units)
  slots[s.node] = min(LATEST, slots[s.node] + max(1, floor(SLOT * units / s.weight + 0.5)))
  rewritten['F' .. s.node] = slots[s.node]
end

-- Takes the next slot of the node. The virtual time is the earliest: nobody saves up.
local function take_slot(s)
  s.tag = max(times[s.level], slots[s.node])
  slots[s.node] = s.tag
  rewritten['V' .. s.level] = times[s.level]
  put_off(s, 1)
end

local function take_slots(shares)
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
  for _, s in ipairs(shares) do
    times[s.level] = max(times[s.level], s.tag or 0)
    rewritten['V' .. s.level] = times[s.level]
    local units = units_at(s.level, path)
    if units > 1 then
      put_off(s, units - 1)
    end
  end
end

local PAST = '"'

local function past_at(level, slot, node)
  return level .. PAST .. '\0\0\0\0' .. pack(slot) .. node
end

-- Notes slots that are to be forgotten.
local function remember(shares)
  for _, s in ipairs(shares) do
    if slots[s.node] > times[s.level] then
      call('ZADD', round, '0', past_at(s.level, slots[s.node], s.node))
      keep_waiting(0, round)
    end
  end
end

-- What T<scope> says of them.
local function tags_text(shares)
  local text, depth = '', 0
  for _, s in ipairs(shares) do
    text = text .. string.rep(pack(0), s.depth - depth) .. pack(s.tag or 0)
    depth = s.depth + 1
  end
  return text
end

-- The fields that were rewritten and their values, for HSET, and the highest stamp.
local function rewritten_fields(top)
  local set = {}
  for field, value in pairs(rewritten) do
    set[#set + 1], set[#set + 2] = field, whole(value)
    top = max(top, value)
  end
  set[#set + 1], set[#set + 2] = '#', whole(top)
  return set
end
