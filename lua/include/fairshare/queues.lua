-- The queues of a call and their rules: each rule is read once, for all queues that share it. It needs n, base,
-- provider, tasks.lua and tree.lua; rule i is ARGV[base + i].
local queues = { rules = {}, by_scope = {}, numbers = nil }

-- Rule i.
function queues.rule(i)
  local r = queues.rules[i]
  if not r then
    r = load_rule(i, ARGV[base + i], 1, '', now)
    r.name, r.unit = sub(KEYS[i], #provider + 1), unit_of(ARGV[base + i])
    r.dirty = r.stepped and r.p ~= 0
    r.till = r.dirty and 0 or r.till
    queues.rules[i] = r
  end
  return r
end

-- The rule with a name, if the call knows it.
function queues.named(name)
  if not queues.numbers then
    queues.numbers = {}
    for i = 1, n do
      queues.numbers[sub(KEYS[i], #provider + 1)] = i
    end
  end
  local i = queues.numbers[name]
  return i and queues.rule(i)
end

-- Adds a queue, by its key and the numbers of its rules.
function queues.add(key, text)
  local scope = sub(key, #provider + 1, -7)
  local l = { key = key, scope = scope, leaf = scope .. '/', text = text, took = {} }
  l.left, l.unknown = byte(text) == 33, text == '-'
  queues.by_scope[scope] = l
  return l
end

-- Reads the nodes of all queues, and the states of all rules, at once.
function queues.read()
  local ids = { '' }
  for _, l in pairs(queues.by_scope) do
    for _, id in ipairs(tree.chain(l.leaf)) do
      ids[#ids + 1] = id
    end
  end
  tree.read(ids)
  for i = 1, n, 500 do
    for j, state in ipairs(call('MGET', unpack(KEYS, i, min(n, i + 499)))) do
      stored.known[KEYS[i + j - 1]] = state
    end
  end
end

-- The rules of a queue's scope, with pauses after them, and its weights by level.
function queues.path(l)
  if not l.path then
    l.path, l.weights = {}, {}
    for i, weight in path_numbers(l.text) do
      local r = queues.rule(tonumber(i))
      l.path[#l.path + 1] = r
      if weight ~= '' then
        l.weights[level_of(r.name)] = tonumber(weight)
      end
    end
    add_pauses(l.path, l.scope)
  end
  return l.path
end

-- Puts a queue in the tree by its first task. Returns its signature.
function queues.stand(l, ticket, score)
  local _, sig
  if ticket then
    _, sig = counted(queues.path(l), ticket)
  end
  tree.stand(l.leaf, sig, sig and band_of(score))
  return sig
end

-- Puts a queue in the tree again by its present first task, which may start sooner than the one before.
function queues.stand_anew(l)
  local first = call('ZRANGE', l.key, '0', '0', 'WITHSCORES')
  local ticket, score = first[1], tonumber(first[2])
  local sig = queues.stand(l, ticket, score)
  if sig then
    tree.hurry(l.leaf, sig, band_of(score), ticket)
  end
end

-- The most that a task takes of any rule, by level. Tasks of a queue that cost the same take the same units.
function queues.units_by_level(l, path, ticket)
  local costs = costs_of(ticket)
  if l.last_costs ~= costs then
    l.last_costs, l.units = costs, {}
    for _, r in ipairs(path) do
      r.level = r.level or level_of(r.name)
      l.units[r.level] = max(l.units[r.level] or 1, r.cost)
    end
  end
  return l.units
end

-- Writes the rules that this call has charged or refunded.
function queues.save()
  for _, r in pairs(queues.rules) do
    if r.dirty and r.kind ~= 'C' then
      algorithms[r.kind].save(r, now)
    end
  end
end
