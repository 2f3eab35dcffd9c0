    local p, q, cap, slack = one, two, three, four
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= TOKEN or sub(v, 23, 29) ~= unit then
      break -- never used, or its unit had other parts
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 9, 15)
    local last = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local level = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h - (now - last) * p
    if p == 0 or cost > cap or last - now >= 250000 or level + slack * p + (cost - cap) * q > 0 then
      break
    end
    if level < 0 then
      level = 0
    end
    if last >= now then
      place = last + 1
      stamp = pack(place)
    end
    local since, low, notches = stamp, NEVER, last >= now and '\1' or '\0'
    if level >= q then
      b, c, d, e, f, g, h = byte(v, 37, 43)
      local least = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
      since, low = sub(v, 30, 36), level < least and pack(level) or sub(v, 37, 43)
    end
    level = level + cost * q
    local x = level - (place - now) * p
    if x < 0 then
      x, level = 0, (place - now) * p
    end
    holds = pack(x)
    state = sub(v, 1, 8) .. stamp .. holds .. unit .. since .. low .. notches
    spare = till - now - level / p - slack
