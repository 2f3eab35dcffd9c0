-- park_tasks: move tasks of one asynq queue from pending to scheduled.
--
-- Sent again, or for a task that has been taken from pending meanwhile, it changes nothing. A task
-- is put into scheduled before it leaves pending: a server that refuses a command half-way leaves
-- no task in neither.
--
-- KEYS[1..n]  task       hash of task i, as asynq leaves it; n = #KEYS - 2.
-- KEYS[n+1]   pending    list of asynq's: ids of tasks that may run; workers take from its right end.
-- KEYS[n+2]   scheduled  sorted set of asynq's: ids of tasks, by the time at which asynq puts them into pending.
--
-- ARGV[1]       until  integer s since the epoch, when asynq brings them back.
-- ARGV[2..n+1]  id     of task i.
--
-- Returns  {one for each task: outcome}
--          outcome  1 parked, 0 not in pending any more, or not as asynq leaves a task, and left so
--
-- Writes   KEYS[1..n], KEYS[n+1] and KEYS[n+2], for the tasks whose outcome is 1.
-- Source   docs/decisions/0016-a-backlog-is-planned-where-it-stands.md#0016-a-backlog-is-planned-where-it-stands

local n = #KEYS - 2
local pending, scheduled = KEYS[n + 1], KEYS[n + 2]

local function park(task, id)
  local fields = redis.call('HMGET', task, 'state', 'msg')
  if fields[1] ~= 'pending' or not fields[2] then
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
