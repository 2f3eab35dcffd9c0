-- keep_leases: renew the leases of runs, but only of runs that still have the lease under which they were taken.
--
-- asynq's heartbeat renews by the task. A heartbeat that comes late, or while the end of its run is sent again, would overwrite the
-- lease of the process that runs the task by then, and the end would pass its fence: see fence.lua.
--
-- KEYS[1]    lease  sorted set of asynq's: ids of tasks that run, by when asynq takes their run for lost.
-- ARGV[1..]  runs   two for each task: its lease, s since the epoch, with the fraction that identifies it, or whole if that is unknown; and its id.
-- Returns  {kept}, how many were renewed
-- Writes   KEYS[1] when kept > 0.
-- Source   docs/asynq.md#the-dead-syncer-and-the-retrying-client

-- Fractions no farther apart than this are the same: a score of this size is exact to half of it.
local SAME, kept = 0.0000004, 0
for i = 1, #ARGV, 2 do
  local lease, id = ARGV[i], ARGV[i + 1]
  local was = redis.call('ZSCORE', KEYS[1], id)
  local has, own = was and tonumber(was) % 1, tonumber(lease) % 1
  if was and own <= SAME then lease = lease .. (string.match(was, '%.%d+') or '') end -- whichever run's it is, the fraction stays
  if was and (own <= SAME or has <= SAME or math.abs(has - own) <= SAME) then
    redis.call('ZADD', KEYS[1], 'XX', lease, id)
    kept = kept + 1
  end
end
return { kept }
