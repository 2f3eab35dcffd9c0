    local cap, per, grain = one, two, three
    if byte(v or '') ~= SLIDING then
      break -- never used
    end
    local _, till, width, total, head, before, tail, count = unpacked('>BI7I7I7I7I7I7I7', v)
    local cell, gone = ceil(now / grain), floor((now - per) / grain)
    if width ~= grain or cost > cap or tail > cell or count == 0 then
      break -- in cells of another grain, or it does not admit the cost now
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
    holds = total + cost
    if holds > cap and tail > gone then
      break
    end
    local log = ''
    if tail <= gone then
      holds, head, before, count = cost, 0, 0, cost
    elseif tail == cell then
      log, count = sub(v, from), count + cost
    else
      log = sub(v, from)
      local steps = tail - before
      if log == '' then
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
      log = log .. char(count)
      before, count = tail, cost
    end
    state = packed('>BI7I7I7I7I7I7I7B', SLIDING, till, grain, holds, head, before, cell, count, 0) .. log
    place = cell * grain
    spare = till - place - per
