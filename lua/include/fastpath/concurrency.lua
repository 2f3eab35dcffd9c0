    local cap, lease = one, two
    local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
    local held = call('ZCOUNT', key, from, to)
    if held >= cap then
      break
    end
    local ends = now + lease
    local last = held > 0 and tonumber(call('ZREVRANGEBYSCORE', key, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
    place = 0
    remaining, reset = cap - held - 1, (ends > last and ends or last) - now
    state, spare = format('%.0f', ends), LEAST
