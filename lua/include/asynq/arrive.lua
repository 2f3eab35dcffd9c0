-- The text that goes after a script of asynq's that enqueues a task, which is a function `enqueue` here. The task is
-- enqueued by its carrier, which notes that in its own hash: sent again, by a client that got no reply or after a crash,
-- it changes nothing and returns 1, also if the task has run and is gone by then. See worker/internal/asynqx/arrivals.go.
--
-- The last of KEYS is the hash of the carrier, as asynq leaves it. It gets a field of Headway's, and goes with the carrier.
local carrier, FIELD = KEYS[#KEYS], 'headway_arrived'
if redis.call('HEXISTS', carrier, FIELD) == 1 then
  return 1
end
local out = enqueue()
if out == 1 and redis.call('EXISTS', carrier) == 1 then
  redis.call('HSET', carrier, FIELD, '1')
end
return out
