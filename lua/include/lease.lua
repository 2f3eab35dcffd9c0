-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000

-- Keeps the key at least as long as the lease that ends last.
local function keep(key, ttl)
  if redis.call('PTTL', key) < ttl then
    redis.call('PEXPIRE', key, whole(ttl))
  end
end
