-- Has the waiting tasks of some levels checked now: units of their rules have come free, or the rules have
-- changed. It needs sub and whole; names are those of the rules. Returns whether any tasks wait there.
-- Source: docs/turns.md#the-tree
local function freed(schedule, meta, names, now)
  if #names == 0 or redis.call('EXISTS', schedule) == 0 then
    return false
  end
  local fields = {}
  for i = 1, #names do
    fields[i] = 'n' .. string.match(names[i], '^[^:]*')
  end
  local nodes, any = redis.call('HMGET', meta, unpack(fields)), false
  for i = 1, #fields do
    for sig in string.gmatch(nodes[i] or '', '\n([^ ]*)') do -- the record of a node: see tree.lua
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), sub(fields[i], 2) .. '\0' .. sig)
      any = true
    end
  end
  return any
end

-- The names of rules 1 to n; `length` is the length of the provider's prefix of their keys.
local function names_of_rules(n, length)
  local names = {}
  for i = 1, n do
    names[i] = sub(KEYS[i], length + 1)
  end
  return names
end
