-- defer_tasks: move tasks of one asynq queue from pending to scheduled.
--
-- Sent again, it changes nothing and returns the same, as long as the tasks are where it put them. It does not
-- touch a task that has been taken from pending in the meantime. A task is added to scheduled before it
-- leaves pending: if the server refuses a command half-way, the task is still in one of them.
--
-- KEYS[1..n]  task       hash of task i, as asynq leaves it; n = #KEYS - 2.
-- KEYS[n+1]   pending    list of asynq's: ids of tasks that may run; workers take from its right end.
-- KEYS[n+2]   scheduled  sorted set of asynq's: ids of tasks, by the time at which asynq puts them into pending.
--
-- ARGV[1]       until  s since the epoch, when asynq brings the tasks back, with a fraction that identifies this call.
-- ARGV[2..n+1]  id     of task i.
--
-- Returns  {one for each task: outcome}
--          outcome  1 deferred by this call, 0 not in pending, or not as asynq leaves a task, and left so
--
-- Writes   KEYS[1..n], KEYS[n+1] and KEYS[n+2], for the tasks whose outcome is 1.
-- Source   docs/decisions/0016-a-backlog-is-planned-where-it-stands.md#0016-a-backlog-is-planned-where-it-stands

local n = #KEYS - 2
local pending, scheduled = KEYS[n + 1], KEYS[n + 2]

local function park(task, id)
  local fields = redis.call('HMGET', task, 'state', 'msg')
  if fields[1] == 'scheduled' then
    local at = redis.call('ZSCORE', scheduled, id)
    return at and tonumber(at) == tonumber(ARGV[1]) and 1 or 0
  elseif fields[1] ~= 'pending' or not fields[2] then
    return 0
  end
  redis.call('ZADD', scheduled, ARGV[1], id)
  if redis.call('LREM', pending, '-1', id) == 0 then
    redis.call('ZREM', scheduled, id)
    return 0
  end
  redis.call('HSET', task, 'state', 'scheduled')
  redis.call('HDEL', task, 'pending_since')
  return 1
end

local out = {}
for i = 1, n do
  out[i] = park(KEYS[i], ARGV[i + 1])
end
return out
