-- The rules of a scope, and one decision under all of them.
-- Source: docs/algorithms.md#one-decision
--
-- The rules of a scope are one text, which the caller compiles. Scopes of one kind have the same text, which is read once:
--   version  number: the newer of two texts counts
--   policy   number: a digest of the rules. Texts of the same policy are equally new.
--   shape    number: a digest of which rules these are, whatever their numbers. Grants are given back under rules of their shape.
--   from, until  numbers: when the text applies, since a period or the hours of a rule begin and end; 0 and EXACT for always
--   weights  a byte, how many names the scope has, and for each its weight in millionths
--   rules    for each: its kind, a letter; bytes: the level of its node, as a number of names, the length of its name, in two, and of
--            its unit; then the name, the unit ("" for requests, "*" for a rule that counts each task), and its numbers, as the
--            algorithm loads them. All scopes below a node meet its rules.
--     T token-bucket       p, q, cap, slack: include/token_bucket.lua
--     S sliding-window     cap, per, grain, slack; fixed-window where per is 0, on use where grain is 0: include/windows.lua
--     K calendar           cap, a, b0, b1, slack, rollover, spread: include/calendar.lua
--     C concurrency        cap, lease: include/concurrency.lua
--   pool     of a scope below one: include/pool.lua
--
-- What an API has reported replaces that for a time. It is in the hash `api`, which exists while there is any:
--   R<node>:<rule>  until, the kind, and the numbers that count until then; the last numbers are those of the rule to which that
--                   applies: a rule with other numbers by now is as the policy has it
--   P<node>         a pause by an API, or by a guess; B<node>: one by a breaker: see include/pause.lua
--
-- An algorithm is made when the first rule of its kind is met, and its rare part when that is needed: to make functions is most of
-- what a short call costs. Each has
--   load(of, key, numbers, v)  the state of a rule; stepped if the clock has stepped back since: it is written anew, by a denial, too
--   fit(r, t, c, id)     the first moment from t on at which it admits c units, and true if it may be later; nil for never
--   charge(r, start, c, id)  takes c units at a start, in r only; returns their place
--   save(r)              the text to write; or it writes by itself
--   show(r)              the units left, and µs until it is as if unused
-- and rarely
--   adjust(r, was)       after a change of the limit, or a step of the clock
--   refund(r, place, c, id)  gives units back, exactly or too few; returns how many
--   stays(r, place, t)   whether a charge is at the same place for a later start
--   room(r)              how many units may be charged as a debt: a rule holds twice its capacity at most
--   after(r, t, others, c)   when others and then c units are admitted, an estimate; nil if no clock tells
local rules, algorithms, rare, made = {}, {}, {}, {}
local function algorithm(kind, how)
  local name = how and how .. kind or kind
  made[name] = made[name] or (how and rare or algorithms)[kind]()
  return made[name]
end

-- To set a TTL costs as much as a write. So it is set to end LONGER after the state means nothing any more, and kept while it ends at
-- least LEAST and at most MOST after that, in ms. A state says when its key expires; this returns that, and notes a new TTL.
local function expires(r, lasts)
  local LONGER, LEAST, MOST = 40000, 1000, 58000
  local ends = ceil((now + lasts) / 1000)
  local spare = r.till - ends
  if spare < LEAST or spare > MOST then
    r.till = ends + LONGER
    r.ttl = r.till - floor(now / 1000)
  end
  return r.till
end

-- #include token_bucket
-- #include windows
-- #include calendar
-- #include concurrency
-- #include pause

local texts, loaded, of_scope = {}, {}, {}
local changed = {} -- rules to be written

local function dirty(r) if not r.dirty then r.dirty, changed[#changed + 1] = true, r end end

local reported = call('EXISTS', P .. 'api') == 1

-- The first n names of a scope: node('/acme/refunds', 1) is '/acme'.
local function node(scope, n)
  local at = 0
  for _ = 0, n do at = string.find(scope, '/', at + 1, true) or #scope + 1 end
  return sub(scope, 1, at - 1)
end

-- Reads the rules from a place of a text up to another one, or to a pool. Returns where that is, and whether all are plain.
local function read_rules(list, text, at, last, names)
  local plain = true
  while at <= last do
    local kind, level, high, name, unit = byte(text, at, at + 4)
    if kind == 77 then break end
    local letter, from = char(kind), at + 5
    name = 256 * high + name
    local numbers = from + name + unit
    at = numbers + (kind == 75 and 49 or kind == 67 and 14 or 28)
    plain = plain and (kind == 84 or kind == 83)
    list[#list + 1] = { kind = letter, level = level, names = names, name = sub(text, from, from + name - 1),
      unit = sub(text, from + name, numbers - 1), numbers = sub(text, numbers, at - 1), its = algorithm(letter) }
  end
  return assert(at <= last + 1 and at), plain -- else it is damaged
end

-- #include pool

function rules.read(text)
  local its, names, at = { weights = {}, rules = {} }, nil, nil
  its.shape, its.from, its.ends, names = unpacked('>I7I7I7B', text, 15)
  for i = 1, names do its.weights[i] = unpacked('>I7', text, 30 + 7 * i) / 1000000 end
  at, its.plain = read_rules(its.rules, text, 37 + 7 * names, #text, names)
  if at <= #text then its.pool, its.plain = pools().read(sub(text, at)), false end
  return its
end

-- The state of a rule at a scope, read once a call.
function rules.state(of, scope)
  local at = of.level == 0 and '' or of.level == of.names and scope or node(scope, of.level)
  local key = P .. 'r:' .. at .. ':' .. of.name
  local r = loaded[key]
  if not r then
    local numbers, till = of.numbers, nil
    local other = reported and call('HGET', P .. 'api', 'R' .. at .. ':' .. of.name)
    if other and unpacked('>I7', other) > now and sub(other, 8, 8) == of.kind and sub(other, -28) == numbers then
      numbers, till = sub(other, 9), unpacked('>I7', other)
    end
    r = of.its.load(of, key, numbers, of.kind ~= 'C' and call('GET', key))
    r.its, r.node = of.its, at
    if till then r.counts = till end -- until when these numbers count
    if r.stepped then dirty(r) end
    loaded[key] = r
  end
  return r
end

-- The pauses of a node.
function rules.pauses(at)
  if not loaded[at] then
    local list = {}
    for i, v in ipairs(call('HMGET', P .. 'api', 'P' .. at, 'B' .. at)) do
      local r = v and algorithm('P').load({ kind = 'P', unit = '*' }, (i == 1 and 'P' or 'B') .. at, v)
      if r then r.its, r.node, list[#list + 1] = algorithm('P'), at, r end
      if r and r.stepped then dirty(r) end
    end
    loaded[at] = list
  end
  return loaded[at]
end

-- The rules of a scope by a text, and after them the pauses of its nodes: each is one more that admits nothing before it ends.
function rules.of(scope, text)
  if of_scope[scope] then return of_scope[scope] end
  texts[text] = texts[text] or rules.read(text)
  local of = texts[text]
  local its = { shape = of.shape, ends = of.ends, outdated = now < of.from or now >= of.ends, weights = of.weights, many = 0, costs = {} }
  of_scope[scope] = its
  if its.outdated then return its end -- and load no rule by its numbers: others may share it
  its.many = #of.rules
  for i = 1, its.many do its[i] = rules.state(of.rules[i], scope) end
  if of.pool then
    its.pool, its.scope, its.node, its.joined = of.pool, scope, node(scope, of.pool.level), {}
    its.members = of.pool.nodes[its.node] or {}
    of.pool.nodes[its.node] = its.members
  end
  if reported then
    for level = 0, #of.weights do
      for _, r in ipairs(rules.pauses(node(scope, level))) do its[#its + 1] = r end
    end
  end
  return its
end

-- How many units of a kind a cost has: it is a number, or by unit, "requests=1,tokens=1500,". 0 is none.
local function units_of(cost, unit)
  local n = tonumber(cost)
  local name = not n and string.gsub(unit == '' and 'requests' or unit, '%p', '%%%0')
  return n or tonumber(match(',' .. cost, ',' .. name .. '=(%d+),') or unit == '' and 1 or 0)
end

-- How many units a task takes under each rule. Tasks of a scope that cost the same share them. They are kept by text: miniredis
-- makes a list up to an index that is a number.
function rules.costs(its, cost)
  local key = '' .. cost
  local list = its.costs[key] or {}
  its.costs[key] = list
  for i = #list + 1, #its do
    local of = its[i].of
    list[i] = (of.kind == 'P' or of.unit == '*' and type(cost) ~= 'number') and 1 or units_of(cost, of.unit)
  end
  return list
end

-- The first moment from t on at which all rules admit a cost, the rule that asks for it, and whether it is sure; nil for never, and
-- the rule that says so. If it is not sure, it is a lower bound, and the rule is one that guesses.
function rules.joint(its, costs, t, id)
  local many, agree, i, sure, by = #its, 0, 0, true, 0
  for _ = 1, 50 * many do
    i = i % many + 1
    if costs[i] > 0 then
      local at, guess = its[i].its.fit(its[i], t, costs[i], id)
      if not at then return nil, i end
      if guess then sure, by = false, i end
      if at > t then t, agree, by = at, 0, sure and i or by end
    end
    agree = agree + 1
    if agree == many then return t, by, sure and t < its.ends end
  end
  return t, by, many == 0 and t < its.ends
end

-- The same under the rules of a path and, if it has a pool, of a member: of the one with whom they admit it soonest. Returns the list
-- of these rules and the cost under each before what joint returns; `patience` is that of pool.choose.
function rules.choose(its, cost, t, id, patience)
  if its.pool then return pool.choose(its, cost, t, patience or 0) end
  local costs = rules.costs(its, cost)
  return its, costs, rules.joint(its, costs, t, id)
end

-- When the rule that alone would admit a cost last admits it, the rule, and whether that is sure; nil for never. Units that come
-- free of others start nothing sooner.
function rules.binding(its, costs, from, id)
  local last, by, sure = from, nil, true
  for i, r in ipairs(its) do
    local at, guess = from, nil
    if costs[i] > 0 then at, guess = r.its.fit(r, from, costs[i], id) end
    if not at then return nil, i end
    if at > last then last, by, sure = at, i, not guess end
  end
  return last, by, sure
end

-- Charges all rules at a start, and the pauses of which it is a probe. Returns the places of the units, one for each rule, 0 for
-- none, in a list that the next call uses again. The run may begin later by the leeway, which buckets and sliding windows count. The
-- others count the start: in their period, the run must begin.
local places = {}
function rules.charge(its, start, costs, id, leeway)
  for i, r in ipairs(its) do
    local later = (r.of.kind == 'T' or (r.per or 0) > 0) and leeway or 0
    local place = costs[i] > 0 and r.its.charge(r, start + later, costs[i], id)
    if place then dirty(r) end
    places[i] = place or 0
  end
  if its.member then its.member.low = {} end
  return places
end

-- Whether what was charged last is a probe.
function rules.is_probe(its)
  for i = its.many + 1, #its do
    if places[i] > 0 then return true end
  end
  return false
end

-- #for ack, decide, settle
-- The rules under which a grant was charged: those of its path, and of its member if it has one and that is still there.
function rules.granted(its, g) return its.pool and pool.granted(its, g.member) or its end

-- Gives back what was charged at places for a start, or only the leases of it. If it was a probe, the next start is one.
function rules.refund(its, at, start, costs, id, leases_only)
  returned = returned + 1
  for i, r in ipairs(its) do
    local kind = r.of.kind
    if kind == 'C' or kind == 'P' or costs[i] > 0 and not leases_only and (at[i] or 0) > 0 then
      algorithm(kind, 'rare').refund(r, kind == 'P' and start or at[i], costs[i], id)
      dirty(r)
    end
  end
end
-- #end

-- Has a node that is blocked looked at now: units came free below it, or a limit has changed. What is of a member is of its pool too.
-- Returns 1 if it was blocked.
function rules.due(at)
  local above = string.find(at, '/%40', 1, true)
  return max(call('ZADD', P .. 'blocked', 'XX', 'LT', 'CH', '0', at), above and rules.due(sub(at, 1, above - 1)) or 0)
end

-- #for settle
-- Moves units to a later start: a run began late, and counts when it began, whatever has come back of its units by then.
function rules.move_later(its, at, start, costs)
  for i = 1, its.many do
    local r = its[i]
    if costs[i] > 0 and r.of.kind ~= 'C' and (at[i] or 0) > 0 then
      local rarely = algorithm(r.of.kind, 'rare')
      if not (rarely.stays and rarely.stays(r, at[i], start)) then
        rarely.refund(r, at[i], costs[i])
        at[i] = r.its.charge(r, start, costs[i])
        dirty(r)
      end
    end
  end
  return at
end
-- #end

function rules.save()
  for _, r in ipairs(changed) do
    local state = r.its.save(r)
    if state and r.ttl then
      call('SET', r.key, state, 'PX', whole(r.ttl))
    elseif state and #state == r.size then
      call('SETRANGE', r.key, '0', state) -- half of what SET costs
    elseif state then -- else it writes by itself
      call('SET', r.key, state, 'KEEPTTL')
    end
  end
end
