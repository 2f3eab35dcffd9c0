-- A pool: a task below its node is admitted by the rules of its path and those of one member. Source: docs/pools.md
--
-- It ends the text of a scope's rules, as it is for all scopes below its node:
--   head     "M"; bytes: the level of its node, how many members and tiers it has, and 1 if a tenant keeps to its member; a number: how
--            many µs a task may wait for that, or else for each before the next, while another has room; numbers of three bytes: where offsets and names begin
--   tiers    for each, the highest first: a byte, how many places it has, a prime or 1; and of each place the number of a member, 0 for none
--   offsets  numbers of three bytes: where the part of each member begins
--   names    a newline, and each name with a newline: the path of the member's node after "/@"
--   parts    for each: the length of its name in two bytes; the name; its shape; and its rules as in a text, at the levels of its node
-- All is made when a pool is met, and a part is read when its member is looked at.
local pool
local returned = 0 -- how often units came back in this call

local function pools()
  if pool then return pool end
  pool = {}
  local sections = {}

  function pool.read(section)
    local p = sections[section] or { text = section, members = {}, nodes = {}, tiers = 19 }
    p.level, p.many, p.tiered, p.affine, p.waits, p.offsets, p.names = unpacked('>BBBBI7I3I3', section, 2)
    p.affine, sections[section] = p.affine == 1, p
    return p
  end

  -- The part of a member.
  function pool.part(p, i)
    local m = p.members[i]
    if not m then
      local at, last = unpacked('>I3', p.text, p.offsets + 3 * i - 3), #p.text
      if i < p.many then last = unpacked('>I3', p.text, p.offsets + 3 * i) - 1 end
      local named = at + 2 + unpacked('>I2', p.text, at)
      m = { number = i, name = sub(p.text, at + 2, named - 1), shape = unpacked('>I7', p.text, named), rules = {} }
      m.names = p.level + 1 + select(2, string.gsub(m.name, '/', ''))
      read_rules(m.rules, p.text, named + 7, last, m.names)
      p.members[i] = m
    end
    return m
  end

  -- The rules of a member and the pauses of its nodes, a list as rules.of returns.
  local function member(its, i)
    local m = its.members[i]
    if not m then
      local of = pool.part(its.pool, i)
      local at = its.node .. '/%40' .. of.name
      m = { of = of, ends = EXACT, many = #of.rules, costs = {}, low = {} }
      for k = 1, m.many do m[k] = rules.state(of.rules[k], at) end
      for level = its.pool.level + 1, reported and of.names or 0 do
        for _, r in ipairs(rules.pauses(node(at, level))) do m[#m + 1], m.tries = r, m.tries or r.probes > 0 and r.ends > now end
      end
      its.members[i] = m
    end
    return m
  end

  -- The rules of a path and of a member, and the pauses of both.
  local function joined(its, m)
    local j = its.joined[m.of.number]
    if not j then
      j = { shape = floor(its.shape / 2) + m.of.shape, ends = its.ends, weights = its.weights, many = its.many + m.many, costs = {}, member = m }
      for i = 1, its.many do j[i] = its[i] end
      for i = 1, m.many do j[its.many + i] = m[i] end
      for i = its.many + 1, #its do j[#j + 1] = its[i] end
      for i = m.many + 1, #m do j[#j + 1] = m[i] end
      its.joined[m.of.number] = j
    end
    return j
  end

  -- #for decide, dispatch
  -- When a member alone would admit a cost from t on, or sooner, EXACT for never: it is remembered under the cost's text until the
  -- member is charged.
  local function low(m, cost, key, t)
    if m.from ~= t or m.returned ~= returned then m.from, m.returned, m.low = t, returned, {} end
    local at = m.low[key] or rules.joint(m, rules.costs(m, cost), t) or EXACT
    m.low[key] = at
    return at
  end

  local picks = 0

  -- Where the choice begins, and its step: two numbers below 1, which differ from choice to choice, or from tenant to tenant.
  local function point(its)
    if its.pool.affine then
      local hash = redis.sha1hex(match(its.scope, '^/([^/]*)', #its.node + 1) or '')
      return tonumber(sub(hash, 1, 7), 16) / 268435456, tonumber(sub(hash, 8, 14), 16) / 268435456
    end
    picks = picks + 1
    local x = (now % 1000003 + picks) * 0.6180339887498949
    return x % 1, x * 997 % 1
  end

  -- The first member of the order with which a start is the soonest; a sure start goes before a guess. With the first of all, or with each
  -- where no tenant has its own, it may be so much later: the task keeps to that, but for a pause that a call has to try. `keeps` is when others would admit it.
  function pool.choose(its, cost, t, patience)
    local s, by = rules.joint(its, rules.costs(its, cost), t)
    local text, key, members, at, x, y = its.pool.text, '' .. cost, its.members, its.pool.tiers, point(its)
    local out, start, last, sure = nil, nil, by, false
    for _ = 1, its.pool.tiered do
      local n = byte(text, at)
      local place, step = floor(x * n), 1 + floor(y * (n - 1))
      for _ = 1, n do
        local i = byte(text, at + 1 + place)
        local m = i > 0 and (members[i] or member(its, i))
        place = (place + step) % n
        if m and not (out and low(m, cost, key, t) >= (sure and start or EXACT)) then
          local j, latest = joined(its, m), s and s + (not its.pool.affine and (m.tries and 0 or its.pool.waits) or out and 0 or patience)
          local first, rule, certain = nil, by, nil
          if s then first, rule, certain = rules.joint(j, rules.costs(j, cost), t) end
          if not out or first and (certain and not sure or certain == sure and first < (start or EXACT)) then
            out, start, last, sure = j, first, rule, certain or false
          end
          its.keeps = sure and start <= latest and start > s and s
          if not s or sure and start <= latest then return j, rules.costs(j, cost), start, last, sure end
        end
      end
      at = at + 1 + n
    end
    return out, rules.costs(out, cost), start, last, sure
  end
  -- #end

  -- #for ack, decide, settle
  function pool.granted(its, name)
    local names = sub(its.pool.text, its.pool.names, unpacked('>I3', its.pool.text, its.pool.offsets) - 1)
    local at = string.find(names, '\n' .. name .. '\n', 1, true)
    return at and joined(its, member(its, select(2, string.gsub(sub(names, 1, at), '\n', '')))) or its
  end
  -- #end

  -- #for dispatch
  -- The moment from t on at which the first member alone would admit a cost, nil for never; whether that is sure: such a moment is
  -- looked at so much ahead; whether it may be otherwise some day; and until when at the latest.
  function pool.first(its, cost, t, ahead)
    local first, sure, soonest, may, counts = nil, true, EXACT, false, EXACT
    for i = 1, its.pool.many do
      local m = member(its, i)
      local at, _, certain = rules.joint(m, rules.costs(m, cost), t)
      if at and not certain then
        local guess, _, admits = rules.joint(m, rules.costs(m, cost), now)
        if not admits then at = guess end -- what is full is full now; else its period ends before t
      end
      local look = at and (certain and at - ahead or at) or EXACT
      if look < soonest then first, sure, soonest = at, certain, look end
      for _, r in ipairs(m) do
        may, counts = may or r.cap == 0 or r.p == 0 or r.counts, min(counts, r.counts or EXACT)
      end
    end
    return first, sure, may, counts
  end
  -- #end

  -- #for inspect, join
  -- How long a cost waits for members, in µs, while others wait before it, an estimate: exact where members have rates, and where all
  -- wait for one moment; nil if no clock tells.
  function pool.wait(its, t, others, cost)
    local rate = 0
    for i = 1, its.pool.many do
      local m = member(its, i)
      local at, costs = t, rules.costs(m, cost)
      for k, r in ipairs(m) do
        local after = costs[k] == 0 and t or algorithm(r.of.kind, 'rare').after(r, t, floor(others / its.pool.many) * costs[k], costs[k])
        at = after and at and max(at, after)
      end
      if at then rate = rate + 1 / max(at - t, 1) end
    end
    return rate > 0 and its.pool.many / rate or nil
  end
  -- #end

  return pool
end
