-- repair: make the tree of a provider anew from its leaves, after a part of it was damaged.
--
-- Only the leaves are ground truth. The first call, "begin", deletes what is of another type or cannot be read, and what the tree
-- shares. Then "drop" deletes what the tree has of some scopes, and when that is done for all, "enter" enters their leaves again.
--
-- KEYS, ARGV[1] are in include/base.lua, the keys in include/tree.lua and include/flight.lua.
-- ARGV[2]     verb    "begin", "drop" or "enter".
-- ARGV[3..]   scope   some scopes of the provider; none to begin.
-- Returns  integer, how many values were dropped since they were damaged
-- Writes   what it changes.
-- Source   docs/turns.md#what-is-damaged

-- #include base

local dropped, TYPES = 0, { blocked = 'zset', recheck = 'zset', ready = 'zset', left = 'zset', flights = 'zset', flight = 'hash',
  queues = 'hash', rules = 'hash', costs = 'hash', keeps = 'hash', units = 'hash', api = 'hash', sequence = 'string' }

-- Deletes a key of another type.
local function check(name, kind)
  local its = call('TYPE', P .. name).ok
  if its ~= kind and its ~= 'none' then dropped = dropped + call('DEL', P .. name) end
end
for name, kind in pairs(ARGV[2] == 'begin' and TYPES or {}) do check(name, kind) end

-- #include rules
-- #include flight
-- #include tree

-- Deletes the fields of a hash that a function fails at.
local function sift(key, sound)
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    if not pcall(sound, all[i], all[i + 1]) then dropped = dropped + call('HDEL', key, all[i]) end
  end
end

local verbs = {}
function verbs.begin()
  call('DEL', blocked, recheck, keeps, P .. 'ready', P .. 'left', P .. 'units', flights)
  if not tonumber(call('GET', P .. 'sequence') or 0) then call('DEL', P .. 'sequence') end
  local function read_all(p) for i = 1, p and p.many or 0 do pool.part(p, i) end end
  sift(rules_key, function(_, text) read_all(rules.read(text).pool) end)
  sift(flight, function(waiter, value)
    local g = read_grant(value)
    call('ZADD', flights, whole(g.granted), assert(g.scope and match(waiter, '^[^:]*:') and waiter))
  end)
  call('EXPIRE', flights, STAYS)
end

function verbs.drop(scope)
  for q in pairs(seen) do
    check(sub(leaf_key(q, scope), #P + 1), 'zset')
    local at = scope
    while at do
      call('DEL', P .. 'ready' .. set_name(q, at), P .. 'left' .. set_name(q, at))
      at = parent(at)
    end
  end
end

function verbs.enter(scope)
  for q in pairs(seen) do
    local last = tonumber(call('ZREVRANGE', leaf_key(q, scope), '0', '0', 'WITHSCORES')[2])
    if last then
      tree.count(scope, call('ZCARD', leaf_key(q, scope)))
      tree.enter(q, scope, leaf_node(scope))
      last = last % 4294967296 -- what joins later goes behind it
      if last > tonumber(call('GET', P .. 'sequence') or 0) then call('SET', P .. 'sequence', whole(last), 'EX', STAYS) end
    end
  end
end

for i = ARGV[2] == 'begin' and 2 or 3, #ARGV do verbs[ARGV[2]](ARGV[i]) end
tree.save()
return dropped
