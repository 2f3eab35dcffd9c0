    local cap, per, grain = one, two, three
    local kind, b, c, d, e, f, g, h = byte(v or '', 1, 8)
    if kind ~= SLIDING or sub(v, 9, 15) ~= unit then
      break -- never used, or in cells of another grain
    end
    local till = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 16, 22)
    local total = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 23, 29)
    local head = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 37, 43)
    local tail = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    b, c, d, e, f, g, h = byte(v, 44, 50)
    local count = (((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
    local cell, gone = ceil(now / grain), floor((now - per) / grain)
    if cost > cap or tail > cell or count == 0 then
      break
    end
    local from, size = 52, #v
    while head <= gone and from <= size do
      local units, digit, n = 0, 1, byte(v, from)
      while n >= 128 do
        units, digit, from = units + (n - 128) * digit, digit * 128, from + 1
        n = byte(v, from)
      end
      total, from = total - units - n * digit, from + 1
      if from > size then
        head = 0
        break
      end
      digit, n = 1, byte(v, from)
      while n >= 128 do
        head, digit, from = head + (n - 128) * digit, digit * 128, from + 1
        n = byte(v, from)
      end
      head, from = head + n * digit, from + 1
    end
    total = total + cost
    if total > cap and tail > gone then
      break
    end
    local log = sub(v, from)
    if tail <= gone then
      total, log = cost, pack(0)
    end
    holds = pack(total)
    if tail <= gone then
      state = sub(v, 1, 15) .. holds .. log .. log .. pack(cell) .. pack(cost) .. '\0'
    elseif cell == tail then
      state = sub(v, 1, 15) .. holds .. pack(head) .. sub(v, 30, 43) .. pack(count + cost) .. '\0' .. log
    else
      b, c, d, e, f, g, h = byte(v, 30, 36)
      local first, steps = log == '', tail - ((((((b * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h)
      if first then
        head = tail
      else
        while steps >= 128 do
          local n = steps % 128
          log, steps = log .. char(128 + n), (steps - n) / 128
        end
        log = log .. char(steps)
      end
      while count >= 128 do
        local n = count % 128
        log, count = log .. char(128 + n), (count - n) / 128
      end
      state = sub(v, 1, 15) .. holds .. pack(head) .. sub(v, 37, 43) .. pack(cell) .. pack(cost) .. '\0'
        .. log .. char(count)
    end
    place = cell * grain
    stamp = pack(place)
    spare = till - place - per
