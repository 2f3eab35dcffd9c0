-- Has the waiting tasks of some levels looked at now: something of their rules has become free, or has been
-- changed. It needs sub, byte, char and whole; names are those of the rules.
-- Source: docs/turns.md#the-tree
local function freed(schedule, meta, names, now)
  if #names == 0 or redis.call('EXISTS', schedule) == 0 then
    return
  elseif sub(schedule, -4) == '!due' then
    for i = 1, #names do
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), names[i])
    end
    return
  end
  local fields = {}
  for i = 1, #names do
    fields[i] = 'n' .. string.match(names[i], '^[^:]*')
  end
  local nodes = redis.call('HMGET', meta, unpack(fields))
  for i = 1, #fields do
    local v, at = nodes[i] or '', 36 -- the record of a node: see tree.lua
    while at <= #v do
      local sig = sub(v, at + 1, at + byte(v, at))
      at = at + 1 + #sig
      redis.call('ZADD', schedule, 'XX', 'LT', whole(now), sub(fields[i], 2) .. '\0' .. sig)
      at = at + 11 + byte(v, at + 10)
    end
  end
end

-- The names of rules 1 to n, whose provider's keys begin with so many bytes.
local function names_of_rules(n, length)
  local names = {}
  for i = 1, n do
    names[i] = sub(KEYS[i], length + 1)
  end
  return names
end
