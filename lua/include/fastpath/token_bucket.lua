    local p, q, cap, slack = one, two, three, four
    if byte(v or '') ~= TOKEN then
      break -- never used
    end
    local _, till, last, x, parts, since, low = unpacked('>BI7I7I7I7I7I7', v)
    local level = x - (now - last) * p
    if parts ~= q or p == 0 or cost > cap or last - now >= 250000 or level + slack * p + (cost - cap) * q > 0 then
      break -- its unit had other parts, or it does not admit the cost now
    end
    if level < 0 then
      level = 0
    end
    local notches = 0
    if last >= now then
      place, notches = last + 1, 1
    end
    if level < q then
      since, low = place, UNTOUCHED
    elseif level < low then
      low = level
    end
    level = level + cost * q
    holds = level - (place - now) * p
    if holds < 0 then
      holds, level = 0, (place - now) * p
    end
    state = packed('>BI7I7I7I7I7I7B', TOKEN, till, place, holds, q, since, low, notches)
    spare = till - now - level / p - slack
