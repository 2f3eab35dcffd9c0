    local b, c, d, e, f, g, h = byte(rule, 2, 8)
    local cap = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(rule, 9, 15)
    local lease = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
    local held = call('ZCOUNT', key, from, to)
    if held >= cap then
      break
    end
    local ends = now + lease
    local last = held > 0 and tonumber(call('ZREVRANGEBYSCORE', key, to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2]) or 0
    place, stamp = 0, pack(0)
    remaining, reset = cap - held - 1, (ends > last and ends or last) - now
    state, spare = format('%.0f', ends), LEAST
