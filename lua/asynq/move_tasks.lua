-- move_tasks: move tasks of one asynq queue to active, to pending, or out of pending for a while.
--
-- Sent again, or for a task that has moved on, it changes nothing, and returns the same for what it has taken or deferred. A task is
-- added to its new set before it leaves the old one: if the server refuses a command half-way, it is still in one of them.
--
-- KEYS[1]  prefix  of the queue's keys, as asynq leaves them, such as "asynq:{default}:". KEYS[2] is as in include/base.lua.
-- ARGV[1]  verb    "take" tasks that wait: the caller runs them, as after asynq's own dequeue. "hold" takes them from a paused queue, too.
--                  "release" tasks that wait, or that the caller has taken and does not run: the first one will be taken first, and
--                  before what is in pending. "defer" tasks that are in pending.
-- ARGV[2]  score   s since the epoch, with a fraction that identifies the call. To take: the end of the lease. To release: the lease
--                  under which the caller took them, "" if it did not. To defer: when asynq brings them back.
-- ARGV[3]  since   integer ns since the epoch, the caller's clock as in asynq: since when released tasks are pending.
-- ARGV[4..] ids    of the tasks.
-- Returns  {one for each task: message or outcome}
--          message  text, of a task that was taken
--          outcome  1 moved, 0 no such task, -1 active already, -2 pending already, -3 in another of asynq's states, -4 not as asynq
--                   leaves a task, -5 the queue is paused. Such a task stays where it is.
-- Writes   the keys of the tasks that it moves.
-- Source   docs/decisions/0014-a-script-over-asynqs-keys.md#0014-a-script-over-asynqs-keys

local call, P, verb, score, own = redis.call, KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[2])
local takes, paused = verb == 'take' or verb == 'hold', verb ~= 'hold' and call('EXISTS', P .. 'paused') == 1
local others = { active = -1, pending = -2, archived = -3, completed = -3, aggregating = -3 }
local out, found, moves = {}, { scheduled = {}, retry = {}, lease = {} }, {}

-- Whether a task is in a set by this call, sent before, or by the call whose lease this is.
local function is_own(set, id)
  local its = own and call('ZSCORE', P .. set, id)
  return its and tonumber(its) == own
end

-- The set that a task is to leave, and its message; or nil and what it is.
local function set_of(id)
  local fields = call('HMGET', P .. 't:' .. id, 'state', 'msg')
  local state, msg = fields[1], fields[2]
  if not (state and msg) then return nil, (state or msg or call('EXISTS', P .. 't:' .. id) == 1) and -4 or 0 end
  if verb == 'defer' then
    if state == 'pending' then return state, msg end
    return nil, state == 'scheduled' and is_own(state, id) and 1 or 0
  end
  if state == 'active' and is_own('lease', id) then return not takes and 'lease' or nil, msg end
  local waits = state == 'scheduled' or state == 'retry'
  if paused and (waits or state == 'pending') then return nil, -5 end
  return waits and state or nil, waits and msg or others[state] or -4
end

local function defer(id)
  call('ZADD', P .. 'scheduled', score, id)
  if call('LREM', P .. 'pending', '-1', id) == 0 then
    call('ZREM', P .. 'scheduled', id)
    return 0
  end
  call('HSET', P .. 't:' .. id, 'state', 'scheduled')
  call('HDEL', P .. 't:' .. id, 'pending_since')
  return 1
end

for i = 4, #ARGV do
  local set, what = set_of(ARGV[i])
  if set == 'pending' then
    out[i - 3] = defer(ARGV[i])
  else
    out[i - 3] = set and -4 or what
    if set then table.insert(found[set], { id = ARGV[i], i = i - 3, set = set, message = what }) end
  end
end

-- Those that are in the sets that their states name, each once.
for set, list in pairs(found) do
  local ids = {}
  for i, task in ipairs(list) do ids[i] = task.id end
  local scores, met = ids[1] and call('ZMSCORE', P .. set, unpack(ids)) or {}, {}
  for i, task in ipairs(list) do
    if scores[i] and not met[task.id] then
      moves[task.i], met[task.id], out[task.i] = task, true, takes and task.message or 1
    end
  end
end

local ids, leases, leave = {}, {}, { scheduled = {}, retry = {}, lease = {} }
for i = #ARGV - 3, 1, -1 do
  local task = moves[i]
  if task then
    ids[#ids + 1], leases[#leases + 1], leases[#leases + 2] = task.id, score, task.id
    table.insert(leave[task.set], task.id)
  end
end
if ids[1] then
  if takes then call('ZADD', P .. 'lease', unpack(leases)) end
  call(takes and 'LPUSH' or 'RPUSH', P .. (takes and 'active' or 'pending'), unpack(ids))
  for _, id in ipairs(ids) do
    if takes then
      call('HSET', P .. 't:' .. id, 'state', 'active')
    else
      call('HSET', P .. 't:' .. id, 'state', 'pending', 'pending_since', ARGV[3])
    end
  end
  for _, id in ipairs(leave.lease) do call('LREM', P .. 'active', '1', id) end
  for set, its in pairs(leave) do
    if its[1] then call('ZREM', P .. set, unpack(its)) end
  end
end
return out
