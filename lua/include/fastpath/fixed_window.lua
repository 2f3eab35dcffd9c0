    local cap, grain, slack = one, three, four
    if byte(v or '') ~= FIXED then
      break -- never used
    end
    local _, till, width, total, head, before, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    local rest = grain - now % grain
    if width ~= grain or tail * grain ~= now + rest or rest <= slack or count + cost > cap then
      break -- its last window is not the current one, or does not admit the cost now
    end
    holds, place = count + cost, now + rest
    state = packed('>BI7I7I7I7I7I7I7B', FIXED, till, grain, total + cost, head, before, tail, holds, 0) .. sub(v, 52)
    spare = till - place
