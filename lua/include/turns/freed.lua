-- Lets the rounds of rules 1 to n be looked at now, where tasks wait for them:
-- something of them has become free.
local function freed(due, n, now)
  if redis.call('EXISTS', due) == 1 then
    for i = 1, n do
      redis.call('ZADD', due, 'XX', 'LT', whole(now), sub(KEYS[i], #due - 3))
    end
  end
end
