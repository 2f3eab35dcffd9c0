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
