-- What goes before a script of asynq's that ends the run of a task: it looks whether the run still has the lease under
-- which its process took the task, or else answers FENCED and changes nothing. See worker/fences.go.
--
-- ARGV[1] is the id of the task. Behind asynq's own arguments come two more: which of KEYS is asynq's sorted set of leases,
-- and the digits of the fraction of a second that the lease has for its own. One of whole seconds is bare asynq's, and let
-- through. Numbers of this size are 0.24 millionths apart.
do
  local score = redis.call('ZSCORE', KEYS[tonumber(ARGV[#ARGV - 1])], ARGV[1])
  local fraction = score and tonumber(score) % 1 or 0
  if fraction > 4e-7 and math.abs(fraction - tonumber('0.' .. ARGV[#ARGV])) > 4e-7 then
    return redis.error_reply('FENCED')
  end
end
