-- take_pending: move tasks of one asynq queue from pending to active, and return their messages.
--
-- It does for many tasks what asynq's own dequeue does for one: the caller runs them. Sent again under the same lease, it returns the
-- tasks that it has taken before, if it has taken any: a reply that is lost leaves no task active that nobody runs.
--
-- KEYS[1]  prefix  of the queue's keys, as in move_tasks.lua.
-- ARGV[1]  lease   s since the epoch, when the runs are lost unless asynq renews them, with a fraction that identifies this call.
-- ARGV[2]  most    how many tasks to take.
-- Returns  {one for each task: message}
-- Writes   the keys of the tasks that it takes.
-- Source   docs/decisions/0023-granted-tasks-go-straight-to-active.md#0023-granted-tasks-go-straight-to-active

local call, P, out = redis.call, KEYS[1], {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'lease', ARGV[1], ARGV[1])) do
  out[#out + 1] = call('HGET', P .. 't:' .. id, 'msg') or nil
end
if out[1] or call('EXISTS', P .. 'paused') == 1 then return out end
for _ = 1, tonumber(ARGV[2]) do
  local id = call('RPOPLPUSH', P .. 'pending', P .. 'active')
  if not id then break end
  call('ZADD', P .. 'lease', ARGV[1], id)
  call('HSET', P .. 't:' .. id, 'state', 'active')
  call('HDEL', P .. 't:' .. id, 'pending_since')
  out[#out + 1] = call('HGET', P .. 't:' .. id, 'msg') or nil
end
return out
