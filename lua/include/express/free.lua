-- Which attempts of a batch nothing stands in the way of: free[i], for the one whose id begins at byte i
-- of calls. It needs calls, there, told, meta, flight and parked, and reads each of those once.
free = {}
do
  local provider, heeds, asked = sub(told, 1, -6), there % 2 == 1, { P = {}, R = {}, n = {}, task = {} }
  local levels = {}

  -- The levels of a path, from the provider's own.
  local function levels_of(path)
    local ids = {}
    for ends in string.gmatch(path .. '/', '()/') do
      ids[#ids + 1] = sub(path, 1, ends - 1)
    end
    levels[path] = ids
    return ids
  end

  -- What a key holds under names that begin so.
  local function fetch(key, begins, names)
    local list, fields = {}, {}
    for name in pairs(names) do
      list[#list + 1], fields[#fields + 1] = name, begins .. name
    end
    for i = 1, #list, 1000 do
      local last = i + 999 < #list and i + 999 or #list
      local values = call('HMGET', key, unpack(fields, i, last))
      for j = 1, #values do
        names[list[i + j - 1]] = values[j]
      end
    end
  end

  local attempts, at = {}, 3
  while at <= #calls do
    local n, length, k, x, a, t = byte(calls, at, at + 5)
    local path_at, ticket_at = at + 10 + 4 * n + length, at + 10 + 4 * n + length + k * 256 + x
    local path, ticket = sub(calls, path_at, ticket_at - 1), a * 256 + t
    local one = { at = path_at - length, path = path, keys = {} }
    for _, level in ipairs(levels[path] or levels_of(path)) do
      asked.P[level] = false
      if ticket > 0 then
        asked.n[level] = false
      end
    end
    for i = 1, heeds and n or 0 do
      k, x = byte(calls, at + 6 + 4 * i, at + 7 + 4 * i)
      one.keys[i] = sub(KEYS[k * 256 + x], #provider + 1)
      asked.R[one.keys[i]] = false
    end
    if ticket > 0 then
      one.task = path .. '\0' .. sub(calls, ticket_at, ticket_at + ticket - 1)
      asked.task[one.task] = false
    end
    attempts[#attempts + 1], at = one, ticket_at + ticket
  end
  if heeds then
    fetch(told, 'P', asked.P)
    fetch(told, 'R', asked.R)
  end
  fetch(meta, 'n', asked.n)
  if there >= 4 then
    fetch(flight, '', asked.task)
  end
  for _, one in ipairs(attempts) do
    local task = one.task
    local stands = task and (asked.task[task] or there % 4 >= 2 and call('ZSCORE', parked, task))
    for _, level in ipairs(levels[one.path]) do
      local waits = task and asked.n[level]
      stands = stands or asked.P[level] or waits and string.find(waits, '\n', 1, true)
    end
    for _, key in ipairs(one.keys) do
      stands = stands or asked.R[key]
    end
    free[one.at] = not stands
  end
end
