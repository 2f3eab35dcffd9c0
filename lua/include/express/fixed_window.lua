    local cap, per, slack = one, two, three
    if byte(v or '') ~= FIXED then
      break
    end
    local _, till, last, count, prior, before, since = unpacked('>BI7I7I7I7I7I7', v)
    local window, rest = now - now % per, per - now % per
    if last < window or last >= window + per or prior >= window or rest <= slack
      or count + cost > cap then
      break
    end
    local notches = 0
    if last > now then
      notches = ceil((last - now) / 250000)
      notches = notches < 255 and notches or 255
    else
      last = now
    end
    count = count + cost
    holds = count
    state = packed('>BI7I7I7I7I7I7B', FIXED, till, last, count, prior, before, since, notches)
    spare = till - now - rest
