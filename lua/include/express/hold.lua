        call('ZREMRANGEBYSCORE', KEYS[i], '-inf', format('%.0f', now))
        call('ZADD', KEYS[i], states[i], member)
        local ttl = ceil((states[i] - now) / 1000) + 1000
        if call('PTTL', KEYS[i]) < ttl then
          call('PEXPIRE', KEYS[i], format('%.0f', ttl))
        end
