        call('ZREMRANGEBYSCORE', KEYS[i], '-inf', format('%.0f', now))
        if call('ZADD', KEYS[i], states[i], member) == 0 then
          local from, to = '(' .. format('%.0f', now), format('%.0f', now + LONGEST_LEASE + FAR_AHEAD)
          out[3 * i] = call('ZREVRANGEBYSCORE', KEYS[i], to, from, 'WITHSCORES', 'LIMIT', '0', '1')[2] - now
        end
        local ttl = ceil((states[i] - now) / 1000) + 1000
        if call('PTTL', KEYS[i]) < ttl then
          call('PEXPIRE', KEYS[i], format('%.0f', ttl))
        end
