    local cap, per, slack = one, two, three
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= FIXED then
      break
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 9, 15)
    local last = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 23, 29)
    local prior = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local window, rest = now - now % per, per - now % per
    if last < window or last >= window + per or prior >= window or rest <= slack
      or count + cost > cap then
      break
    end
    count = count + cost
    local latest, notches = stamp, '\0'
    if last > now then
      local ahead = ceil((last - now) / 250000)
      latest, notches = sub(v, 9, 15), char(ahead < 255 and ahead or 255)
    end
    holds = pack(count)
    state = sub(v, 1, 8) .. latest .. holds .. sub(v, 23, 43) .. notches
    spare = till - now - rest
