    local v = call('GET', key)
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= TOKEN or sub(v, 23, 29) ~= sub(rule, 9, 15) then
      break -- never used, or its unit had other parts
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(rule, 2, 8)
    local p = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(rule, 9, 15)
    local q = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(rule, 16, 22)
    local cap = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(rule, 23, 29)
    local slack = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 9, 15)
    local last = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local level = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h - (now - last) * p
    if p == 0 or cost > cap or last - now > FAR_AHEAD or level + slack * p + (cost - cap) * q > 0 then
      break
    end
    if level < 0 then
      level = 0
    end
    if last >= now then
      place = last + 1
      stamp = pack(place)
    end
    local known
    if level < q then
      known = stamp .. NEVER
    else
      b, c, d, e, f, g, h = byte(v, 37, 43)
      local low = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
      known = level < low and sub(v, 30, 36) .. pack(level) or sub(v, 30)
    end
    level = level + cost * q
    local x = level - (place - now) * p
    if x < 0 then
      x, level = 0, (place - now) * p
    end
    state = sub(v, 1, 8) .. stamp .. pack(x) .. sub(v, 23, 29) .. known
    remaining = floor((cap * q - level - slack * p) / q)
    if remaining < 0 then
      remaining = 0
    end
    reset = ceil(level / p + slack)
    spare = till - now - reset
