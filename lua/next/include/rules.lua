-- The rules of a scope, and one decision under all of them.
-- Source: docs/algorithms.md#one-decision
--
-- The rules of a scope are one text, which the caller compiles. Scopes of one kind have the same text, which is read once:
--   version  number: the newer of two texts counts
--   policy   number: texts of the same policy are equally new
--   until    number: when the text ceases to apply, since a period or the hours of a rule end; EXACT for never
--   weights  a byte, how many names the scope has, and for each its weight in millionths
--   rules    for each: its kind, a letter; bytes: the level of its node, as a number of names; the level that it blocks, deeper
--            where only a part below its node takes it; the lengths of its name and of its unit; then the name, the unit ("" for
--            requests, "*" for a rule that counts each task), and its numbers
--     T token-bucket       p cap slack...   see include/token_bucket.lua: p, q, cap, slack
--     S sliding-window     cap, per, grain, slack; fixed-window where per is 0, on use where grain is 0: include/windows.lua
--     K calendar           cap, a, b0, b1, slack, rollover, spread: include/calendar.lua
--     C concurrency        cap, lease: include/concurrency.lua
--
-- What an API has reported replaces that for a time. It is in the hash `api`, which exists while there is any:
--   R<node>:<rule>  until, the kind, and the numbers that count until then
--   P<node>         a pause: ends, since, length, trial; see include/pause.lua
local algorithms = {}
-- #include token_bucket
-- #include windows
-- #include calendar
-- #include concurrency

local NUMBERS = { T = '>I7I7I7I7', S = '>I7I7I7I7', K = '>I7I7I7I7I7I7I7', C = '>I7I7' }
local BYTES = { T = 28, S = 28, K = 49, C = 14 }

local texts, loaded, of_scope, made = {}, {}, {}, {}
local changed = {} -- rules to be written, each once
local api = P .. 'api'
local reported = call('EXISTS', api) == 1

-- The first n names of a scope: node('/acme/refunds', 1) is '/acme'.
local function node(scope, n)
  local at = 1
  for _ = 1, n do
    at = string.find(scope, '/', at + 1, true) or #scope + 1
  end
  return n == 0 and '' or sub(scope, 1, at - 1)
end

-- The algorithm of a kind, made when the first rule of it is met: most calls meet one or two.
local function algorithm(kind)
  local its = made[kind]
  if not its then
    its = algorithms[kind]()
    made[kind] = its
  end
  return its
end

-- #include pause

local function read(text)
  local its = { weights = {}, rules = {} }
  local names
  its.version, its.policy, its.ends, names = unpacked('>I7I7I7B', text)
  for i = 1, names do
    its.weights[i] = unpacked('>I7', text, 16 + 7 * i) / 1000000
  end
  local at = 23 + 7 * names
  while at <= #text do
    local kind, level, blocks, name, unit = byte(text, at, at + 4)
    kind = char(kind)
    local numbers = at + 5 + name + unit
    its.rules[#its.rules + 1] = { kind = kind, level = level, blocks = blocks, name = sub(text, at + 5, at + 4 + name),
      unit = sub(text, at + 5 + name, numbers - 1), numbers = sub(text, numbers, numbers + BYTES[kind] - 1) }
    at = numbers + BYTES[kind]
  end
  return its
end

-- The state of a rule at a scope, read once a call.
local function rule(of, scope)
  local at = node(scope, of.level)
  local key = P .. 'r:' .. at .. ':' .. of.name
  local r = loaded[key]
  if not r then
    local numbers = of.numbers
    local other = reported and call('HGET', api, 'R' .. at .. ':' .. of.name)
    if other and unpacked('>I7', other) > now and sub(other, 8, 8) == of.kind then
      numbers = sub(other, 9)
    end
    r = { unpacked(NUMBERS[of.kind], numbers) }
    r.key, r.kind, r.unit, r.name, r.node, r.blocks = key, of.kind, of.unit, of.name, at, node(scope, of.blocks)
    r.its = algorithm(of.kind)
    r.its.load(r, of.kind ~= 'C' and call('GET', key))
    loaded[key] = r
  end
  return r
end

-- The rules of a scope by a text. The pauses of its nodes follow the rules: each is one more that admits nothing before it ends.
local function policy(scope, text)
  local its = of_scope[scope]
  if its then
    return its
  end
  local of = texts[text] or read(text)
  texts[text] = of
  its = { version = of.version, policy = of.policy, ends = of.ends, weights = of.weights, many = #of.rules }
  for i, one in ipairs(of.rules) do
    its[i] = rule(one, scope)
  end
  if reported then
    add_pauses(its, scope, #of.weights)
  end
  of_scope[scope] = its
  return its
end

-- How many units a task takes under a rule: cost is a number, or by unit, "requests=1,tokens=1500,". 0 is none.
local function units(r, cost)
  if r.kind == 'P' or r.unit == '*' and type(cost) ~= 'number' then
    return 1
  elseif type(cost) == 'number' then
    return cost
  end
  local name = r.unit == '' and 'requests' or r.unit
  return tonumber(match(',' .. cost, ',' .. name:gsub('%p', '%%%0') .. '=(%d+),') or r.unit == '' and 1 or 0)
end

-- The first moment from t on at which all rules admit a cost, and whether that is sure; nil for never, then the rule that says
-- so. A guess ends the search: then the moment is a lower bound.
local function joint(its, cost, t, id)
  local many, agree, i, sure, by = #its, 0, 0, true, 0
  for _ = 1, 50 * many do
    i = i % many + 1
    local r = its[i]
    local c = units(r, cost)
    if c > 0 then
      local at, guess = r.its.fit(r, t, c, id)
      if not at then
        return nil, i
      end
      sure = sure and not guess
      if at > t then
        t, agree, by = at, 0, i
      end
    end
    agree = agree + 1
    if agree == many then
      return t, by, sure and t < its.ends
    end
  end
  return t, by, many == 0 and t < its.ends
end

-- The rule that alone would admit a cost last, and when; nil for never. Units that come free of others start nothing sooner.
local function binding(its, cost, id)
  local last, by, sure = now, nil, true
  for i, r in ipairs(its) do
    local c = units(r, cost)
    local at, guess = now, nil
    if c > 0 then
      at, guess = r.its.fit(r, now, c, id)
    end
    if not at then
      return nil, i
    elseif at > last then
      last, by, sure = at, i, not guess
    end
  end
  return last, by, sure
end

-- Charges all rules at a start, and the pauses of which it is a probe. Returns the places of the units, one for each rule, 0 for
-- none.
local function charge(its, start, cost, id)
  local places = {}
  for i, r in ipairs(its) do
    local c = units(r, cost)
    local place = c > 0 and r.its.charge(r, start, c, id)
    if place then
      changed[r] = true
    end
    if i <= its.many then
      places[i] = place or 0
    end
  end
  return places
end

-- Gives back what was charged at places for a start, or only the leases of it. If it was a probe, the next start is one.
local function refund(its, places, start, cost, id, leases_only)
  for i, r in ipairs(its) do
    local c = units(r, cost)
    if r.kind == 'C' or r.kind == 'P' or c > 0 and not leases_only and places[i] and places[i] > 0 then
      r.its.refund(r, r.kind == 'P' and start or places[i], c, id)
      changed[r] = true
    end
  end
end

local function save()
  for r in pairs(changed) do
    local state, lasts = r.its.save(r)
    if state then
      call('SET', r.key, state, 'PX', outlast(lasts))
    end
  end
end
