-- release_tasks: move tasks of one asynq queue from their waiting sets to the front of pending.
--
-- The first task that moves is taken first, and before whatever is in pending. Sent again, or for a
-- task that has moved on, it changes nothing. Ids are pushed before they leave their set: if the server
-- refuses a command half-way, every task is still in one of them. It also puts back tasks that its
-- caller has taken, by take_tasks or asynq's own dequeue, and does not run.
--
-- KEYS[1..n]  task       hash of task i, as asynq leaves it; n = #KEYS - 6.
-- KEYS[n+1]   pending    list of asynq's: ids of tasks that may run; workers take from its right end.
-- KEYS[n+2]   scheduled  sorted set of asynq's: ids of tasks that were enqueued for later.
-- KEYS[n+3]   retry      sorted set of asynq's: ids of tasks that were put back for later.
-- KEYS[n+4]   paused     string of asynq's, which exists while the queue is paused.
-- KEYS[n+5]   active     list of asynq's: ids of tasks that run.
-- KEYS[n+6]   lease      sorted set of asynq's: the same ids by when asynq takes their run for lost.
--
-- ARGV[1]       since    integer ns since the epoch, the caller's clock as in asynq: waiting from now on.
-- ARGV[2]       taken    the lease under which the caller has taken the tasks, as take_tasks has it; "" if it
--                        has not.
-- ARGV[3..n+2]  id       of task i.
--
-- Returns  {one for each task: outcome}
--          outcome  1 moved, 0 no such task, -1 active already, -2 pending already, -3 in another of
--                   asynq's states and left there, -4 not as asynq leaves a task, and left so,
--                   -5 the queue is paused, so that the task stays where it waits, or in pending
--
-- Writes   KEYS[1..n+3], KEYS[n+5] and KEYS[n+6], for the tasks whose outcome is 1.
-- Source   docs/decisions/0014-a-script-over-asynqs-keys.md#0014-a-script-over-asynqs-keys

local n = #KEYS - 6
local pending, active, lease, taken = KEYS[n + 1], KEYS[n + 5], KEYS[n + 6], tonumber(ARGV[2])
local waiting = { scheduled = KEYS[n + 2], retry = KEYS[n + 3] }
local others = { active = -1, pending = -2, archived = -3, completed = -3, aggregating = -3 }
if redis.call('EXISTS', KEYS[n + 4]) == 1 then
  waiting, others.scheduled, others.retry, others.pending = {}, -5, -5, -5
end

-- is_taken says whether the caller has taken a task that is active.
local function is_taken(id)
  local score = taken and redis.call('ZSCORE', lease, id)
  return score and tonumber(score) == taken
end

-- set_of returns the set that a task waits in, or the outcome of one that waits in none.
local function set_of(task, id)
  local fields = redis.call('HMGET', task, 'state', 'msg')
  local state, msg = fields[1], fields[2]
  if state == 'active' and msg and is_taken(id) then
    return lease
  elseif state and msg then
    return waiting[state], others[state] or -4
  end
  return nil, (state or msg or redis.call('EXISTS', task) == 1) and -4 or 0
end

local out, sets, ids = {}, {}, {}
for i = 1, n do
  sets[i], out[i] = set_of(KEYS[i], ARGV[i + 2])
  if sets[i] then
    ids[#ids + 1] = ARGV[i + 2]
  end
end

-- push puts ids into pending in one command, the last of them at its left: each
-- call of itself sets one before the others.
local function push(i, ...)
  if i <= #ids then
    return push(i + 1, ids[i], ...)
  end
  return redis.call('RPUSH', pending, ...)
end
if #ids > 0 then
  push(1)
end

for i = 1, n do
  if not sets[i] then
    -- its outcome is known
  elseif redis.call('ZREM', sets[i], ARGV[i + 2]) == 1 then
    if sets[i] == lease then
      redis.call('LREM', active, '1', ARGV[i + 2])
    end
    redis.call('HSET', KEYS[i], 'state', 'pending', 'pending_since', ARGV[1])
    out[i] = 1
  else
    redis.call('LREM', pending, '-1', ARGV[i + 2])
  end
end
return out
