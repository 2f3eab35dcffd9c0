    local cap, grain, slack = one, three, four
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= FIXED or sub(v, 9, 15) ~= unit then
      break -- never used, or of another length
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local total = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 37, 43)
    local tail = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 44, 50)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local rest = grain - now % grain
    if tail * grain ~= now + rest or rest <= slack or count + cost > cap then
      break -- its last window is not at hand, or does not admit the cost now
    end
    count, place = count + cost, now + rest
    holds, stamp = pack(count), pack(place)
    state = sub(v, 1, 15) .. pack(total + cost) .. sub(v, 23, 43) .. holds .. '\0' .. sub(v, 52)
    spare = till - place
