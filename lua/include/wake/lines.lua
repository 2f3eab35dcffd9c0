-- What a look knows of lines: the rules that their tasks meet, the sums that they count in, and
-- what their scopes have at each level. It needs what wake.lua begins with.

local lines, released, missing = {}, {}, {}
local out = 0
local known, moved, looks = {}, {}, {} -- by scope, by scope, by rule
local rules, rounds, places = {}, {}, {}

-- Reads rule i once.
local function rule(i)
  if not rules[i] then
    rules[i] = load_rule(i, ARGV[9 + i], 1, '', now)
    rules[i].name, rules[i].unit = rule_name(KEYS[i]), unit_of(ARGV[9 + i])
    if rules[i].stepped and rules[i].p ~= 0 then
      rules[i].till = 0
      algorithms[rules[i].kind].save(rules[i], now)
    end
  end
  return rules[i]
end

-- The rules of a line's scope.
local function rules_of(l)
  if not l.path then
    l.path, l.weights = {}, {}
    for i, weight in path_numbers(l.path_text) do
      l.path[#l.path + 1], l.weights[#l.path + 1] = rule(tonumber(i)), weight
    end
    add_pauses(l.path, l.scope)
  end
  return l.path
end

-- Those that a task meets, each with its cost.
local function path_of(l, ticket)
  return counted(rules_of(l), ticket)
end

-- The units that a line is counted in: requests, and those of its rules.
local function units_of(l)
  if not l.of then
    l.of = { [REQUESTS] = true }
    for i in path_numbers(l.path_text) do
      l.of[unit_of(ARGV[9 + tonumber(i)])] = true
    end
  end
  return l.of
end

-- Counts a task into a line (1) or out of it (-1).
local function count(l, ticket, sign)
  for unit in pairs(units_of(l)) do
    l.units[unit] = (l.units[unit] or 0) + sign * cost_of(ticket, unit)
  end
end

local function miss(scope)
  if not known[scope] then
    known[scope] = true
    missing[#missing + 1] = scope
  end
end

local function first_rules()
  for i = n + 6, #KEYS - 1 do
    local scope = sub(KEYS[i], #provider + 1, -6)
    local path = ARGV[i + 4]
    lines[scope] = { key = KEYS[i], path_text = path, scope = scope, taken = 0, next = 1, units = {}, left = byte(path) == 33 }
  end
end

-- What the last look was before the clock has stepped back: see wake.lua.
local STEPPED = '^'

-- The last look, and whether a task may be first that takes nothing of the rule which its
-- scope has its seat with.
read_at({ '#', '@', MIXED, PAST, STEPPED })
local beat, mixed = number_at('@'), held[MIXED]

-- The names of a line's rules.
local function names_in(l)
  local names = {}
  for i in path_numbers(l.path_text) do
    names[#names + 1] = rule_name(KEYS[tonumber(i)])
  end
  return names
end

-- The sums that a line counts in.
local function sums_of(l)
  local fields = {}
  for unit in pairs(units_of(l)) do
    fields[#fields + 1] = sum_of(l.scope, unit)
  end
  for _, name in ipairs(names_in(l)) do
    fields[#fields + 1], fields[#fields + 2] = 'U' .. name, 'N' .. name
  end
  return fields
end

-- What a line's scope has at each level, with what its turn is to change.
local function slots(l)
  l.shares = l.shares or levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
  read_slots(l.shares, sums_of(l))
  return l.shares
end

-- The same, as far as it must be known of one who has a seat.
local function shares(l, seat)
  if not l.shares then
    l.shares = levels_of(l.scope, names_in(l), rules_of(l) and l.weights)
    shares_of(l.shares, seat and seat.name, seat and seat.stamp, sums_of(l))
  end
  return l.shares
end
