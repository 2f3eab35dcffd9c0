-- put_back: move a task from active to the set in which it waits.
--
-- asynq archives a task that fails on its last attempt, whatever the error is. If the error says that the task was only limited, this
-- script is sent instead of asynq's archive. It does what asynq's own retry does when no failure is counted. It also puts back a task that
-- was taken to change it. Sent again, it changes nothing and answers NOT FOUND, as asynq's scripts do. The task is added to its set before
-- it leaves active: if the server refuses a command half-way, the task is still in one of them.
--
-- KEYS[1]  task    hash of the task, as asynq leaves it.
-- KEYS[2]  active  list of asynq's: ids of tasks that run.
-- KEYS[3]  lease   sorted set of asynq's: the same ids by when asynq takes their run for lost.
-- KEYS[4]  waits   sorted set of asynq's, retry or scheduled: ids of tasks, by the time at which asynq brings them.
-- ARGV[1]  id      of the task.
-- ARGV[2]  msg     the task's message, with its last error.
-- ARGV[3]  at      s since the epoch, when asynq brings the task back.
-- ARGV[4]  state   retry or scheduled.
-- Returns  status OK, or the error NOT FOUND if the task is not active
-- Writes   KEYS[1..4], unless the task is not active.
-- Source   docs/decisions/0026-limited-tasks-are-not-archived.md#0026-limited-tasks-are-not-archived

if redis.call('HGET', KEYS[1], 'state') ~= 'active' or not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  return redis.error_reply('NOT FOUND')
end
redis.call('ZADD', KEYS[4], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[1], 'msg', ARGV[2], 'state', ARGV[4])
redis.call('LREM', KEYS[2], '0', ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.status_reply('OK')
