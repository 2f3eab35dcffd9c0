    local cap, slack, layout, opens, length = one, four, FIXED, 0, three
    if three == 0 then
      layout, opens, length = OPENED, two, two - four / 2
    end
    if byte(v or '') ~= layout then
      break -- never used
    end
    local _, till, width, total, head, before, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    place = three == 0 and tail or tail * length
    local rest = place + opens - now
    if width ~= length or rest > two + three or rest <= slack or count + cost > cap then
      break -- its last window is not the current one, or does not admit the cost now
    elseif total > count and (three == 0 and head or head * three) + two + three <= now then
      break -- a window before it is over, and to be dropped
    end
    holds = count + cost
    state = packed('>BI7I7I7I7I7I7I7B', layout, till, width, total + cost, head, before, tail, holds, 0) .. sub(v, 52)
    spare = till - now - rest
