-- Which attempts of a batch nothing prevents: free[i], for the attempt whose id begins at byte i
-- of calls; free is nil if nothing prevents any of them. It needs calls, there, upstream, meta, flight and parked, and
-- reads each of those once.
do
  local provider, reported, parks, flies = sub(upstream, 1, -10), there % 2 == 1, there % 4 >= 2, there >= 4
  local asked, levels, attempts, at = { P = {}, R = {}, n = {}, task = {} }, {}, {}, 3

  -- The levels of a path, from the provider's own.
  local function levels_of(path)
    local ids = {}
    for ends in string.gmatch(path .. '/', '()/') do
      ids[#ids + 1] = sub(path, 1, ends - 1)
    end
    levels[path] = ids
    return ids
  end

  -- Reads the fields of a key that are a prefix and each of the names, into names.
  local function fetch(key, begins, names)
    local list, fields = {}, {}
    for name in pairs(names) do
      list[#list + 1], fields[#fields + 1] = name, begins .. name
    end
    for i = 1, #list, 1000 do
      local values = call('HMGET', key, unpack(fields, i, i + 999 < #list and i + 999 or #list))
      for j = 1, #values do
        names[list[i + j - 1]] = values[j]
      end
    end
  end

  -- Whether the API has reported anything about a level or rule of this batch. Reports about others do not matter, and
  -- most batches need no more than this check.
  local function is_reported()
    for i = 6, #KEYS do
      asked.R[sub(KEYS[i], #provider + 1)] = false
    end
    local i = 3
    while i <= #calls do
      local n, length, k, x, a, t = byte(calls, i, i + 5)
      i = i + 10 + 4 * n + length
      local path = sub(calls, i, i + k * 256 + x - 1)
      if not levels[path] then
        for _, level in ipairs(levels_of(path)) do
          asked.P[level] = false
        end
      end
      i = i + k * 256 + x + a * 256 + t
    end
    fetch(upstream, 'P', asked.P)
    fetch(upstream, 'R', asked.R)
    for _, its in ipairs({ asked.P, asked.R }) do
      for _, v in pairs(its) do
        if v then
          return true
        end
      end
    end
    return false
  end

  reported = reported and is_reported()
  if reported or byte(calls, 2) == 1 then
    free = {}
  end
  while free and at <= #calls do
    local n, length, k, x, a, t = byte(calls, at, at + 5)
    local path_at = at + 10 + 4 * n + length
    local ticket_at, size = path_at + k * 256 + x, a * 256 + t
    local path = sub(calls, path_at, ticket_at - 1)
    local one = { at = path_at - length, levels = levels[path] or levels_of(path), keys = {} }
    one.task = size > 0 and path .. '\0' .. sub(calls, ticket_at, ticket_at + size - 1)
    if one.task then
      asked.task[one.task] = false
      for _, level in ipairs(one.levels) do
        asked.n[level] = false
      end
    end
    for i = 1, reported and n or 0 do
      k, x = byte(calls, at + 6 + 4 * i, at + 7 + 4 * i)
      one.keys[i] = sub(KEYS[k * 256 + x], #provider + 1)
    end
    attempts[#attempts + 1], at = one, ticket_at + size
  end
  fetch(meta, 'n', asked.n)
  if flies then
    fetch(flight, '', asked.task)
  end
  for _, one in ipairs(attempts) do
    local stands = one.task and (asked.task[one.task] or parks and call('ZSCORE', parked, one.task))
    for _, level in ipairs(one.levels) do
      local waits = one.task and asked.n[level]
      stands = stands or asked.P[level] or waits and string.find(waits, '\n', 1, true)
    end
    for _, key in ipairs(one.keys) do
      stands = stands or asked.R[key]
    end
    free[one.at] = not stands
  end
end
