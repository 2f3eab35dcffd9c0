-- take_pending: move tasks of one asynq queue from pending to active, and return their messages.
--
-- It does for many tasks what asynq's own dequeue does for one: the caller runs them. Sent again under the same lease, it
-- returns the tasks that it has taken before, if it has taken any: a reply that is lost leaves no task active that
-- nobody runs.
--
-- KEYS[1]  pending  list of asynq's: ids of tasks that may run; workers take from its right end.
-- KEYS[2]  paused   string of asynq's, which exists while the queue is paused.
-- KEYS[3]  active   list of asynq's: ids of tasks that run.
-- KEYS[4]  lease    sorted set of asynq's: the same ids by when asynq takes their run for lost.
--
-- ARGV[1]  lease    s since the epoch, when the runs are lost unless asynq renews them, with a fraction that
--                   identifies this call.
-- ARGV[2]  most     how many tasks to take.
-- ARGV[3]  prefix   of the keys of the queue's tasks, as asynq leaves them; an id follows.
--
-- Returns  {one for each task: message}
--
-- Writes   KEYS[1], KEYS[3], KEYS[4] and the hashes of the tasks that it takes.
-- Source   docs/decisions/0023-granted-tasks-go-straight-to-active.md#0023-granted-tasks-go-straight-to-active

local format, out = string.format, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], ARGV[1], ARGV[1])) do
  out[#out + 1] = redis.call('HGET', format('%s%s', ARGV[3], id), 'msg') or nil
end
if out[1] or redis.call('EXISTS', KEYS[2]) == 1 then
  return out
end
for _ = 1, tonumber(ARGV[2]) do
  local id = redis.call('RPOPLPUSH', KEYS[1], KEYS[3])
  if not id then
    break
  end
  local task = format('%s%s', ARGV[3], id)
  redis.call('ZADD', KEYS[4], ARGV[1], id)
  redis.call('HSET', task, 'state', 'active')
  redis.call('HDEL', task, 'pending_since')
  out[#out + 1] = redis.call('HGET', task, 'msg') or nil
end
return out
