-- take_tasks: move tasks of one asynq queue from their waiting sets to active, and return their messages.
--
-- It does for many tasks what asynq's own dequeue does for one task of pending: the caller runs them.
-- Sent again under the same lease, it returns the same. Tasks are added to active before they leave
-- their set: if the server refuses a command half-way, every task is still in one of them.
--
-- KEYS[1..n]  task       hash of task i, as asynq leaves it; n = #KEYS - 5.
-- KEYS[n+1]   active     list of asynq's: ids of tasks that run.
-- KEYS[n+2]   lease      sorted set of asynq's: the same ids by when asynq takes their run for lost.
-- KEYS[n+3]   scheduled  sorted set of asynq's: ids of tasks that were enqueued for later.
-- KEYS[n+4]   retry      sorted set of asynq's: ids of tasks that were put back for later.
-- KEYS[n+5]   paused     string of asynq's, which exists while the queue is paused.
--
-- ARGV[1]       lease    s since the epoch, when the runs are lost unless asynq renews them, with a fraction that
--                        identifies this call.
-- ARGV[2..n+1]  id       of task i.
--
-- Returns  {one for each task: message or outcome}
--          message  text, for a task that is active now: the caller must run it
--          outcome  integer, as release_tasks has it, for any other task
--
-- Writes   KEYS[1..n] and KEYS[n+1..n+4], for the tasks whose messages it returns.
-- Source   docs/decisions/0023-granted-tasks-go-straight-to-active.md#0023-granted-tasks-go-straight-to-active

local n = #KEYS - 5
local active, lease, expiry = KEYS[n + 1], KEYS[n + 2], tonumber(ARGV[1])
local waiting = { scheduled = KEYS[n + 3], retry = KEYS[n + 4] }
local others = { active = -1, pending = -2, archived = -3, completed = -3, aggregating = -3 }
if redis.call('EXISTS', KEYS[n + 5]) == 1 then
  waiting, others.scheduled, others.retry, others.pending = {}, -5, -5, -5
end

-- taken_before says whether this call, when it was sent before, has taken a task.
local function taken_before(id)
  local score = redis.call('ZSCORE', lease, id)
  return score and tonumber(score) == expiry
end

-- What each task is, and of those that wait, by their state, which they are.
local out, found = {}, { scheduled = {}, retry = {} }
for i = 1, n do
  local fields = redis.call('HMGET', KEYS[i], 'state', 'msg')
  local state, msg = fields[1], fields[2]
  if not (state and msg) then
    out[i] = (state or msg or redis.call('EXISTS', KEYS[i]) == 1) and -4 or 0
  elseif waiting[state] then
    out[i] = -4
    table.insert(found[state], { i = i, id = ARGV[i + 1], msg = msg })
  else
    out[i] = state == 'active' and taken_before(ARGV[i + 1]) and msg or others[state] or -4
  end
end

for state, list in pairs(found) do
  local ids, leases = {}, {}
  for j, task in ipairs(list) do
    ids[j] = task.id
  end
  local scores = ids[1] and redis.call('ZMSCORE', waiting[state], unpack(ids)) or {}
  ids = {}
  for j, task in ipairs(list) do
    if scores[j] and not leases[task.id] then
      out[task.i] = task.msg
      ids[#ids + 1], leases[task.id] = task.id, true
      leases[#leases + 1], leases[#leases + 2] = ARGV[1], task.id
    end
  end
  if ids[1] then
    redis.call('ZADD', lease, unpack(leases))
    redis.call('LPUSH', active, unpack(ids))
    for _, task in ipairs(list) do
      if leases[task.id] then
        redis.call('HSET', KEYS[task.i], 'state', 'active')
      end
    end
    redis.call('ZREM', waiting[state], unpack(ids))
  end
end
return out
