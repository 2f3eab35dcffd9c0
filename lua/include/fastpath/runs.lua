    local ends = {}
    for i = 1, #set, 2 do
      ends[i], ends[i + 1] = format('%.0f', set[i]), set[i + 1]
    end
    call('ZREMRANGEBYSCORE', KEYS[key], '-inf', format('%.0f', now))
    call('ZADD', KEYS[key], unpack(ends))
    local ttl = ceil((set.last - now) / 1000) + 1000
    if call('PTTL', KEYS[key]) < ttl then
      call('PEXPIRE', KEYS[key], format('%.0f', ttl))
    end
