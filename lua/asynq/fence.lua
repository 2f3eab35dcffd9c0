-- The text that goes before a script of asynq's that ends the run of a task. It checks that the run still has the lease
-- under which its process took the task; otherwise it returns FENCED and changes nothing. See worker/internal/asynqx/ends.go.
-- ARGV[1] is the id of the task. Two more follow asynq's own arguments: which of KEYS is asynq's sorted set of leases,
-- and the digits of the fraction of a second that identifies the lease. A lease of whole seconds is bare asynq's, and
-- passes. Numbers of this size are 0.24 millionths apart.
do
  local score = redis.call('ZSCORE', KEYS[tonumber(ARGV[#ARGV - 1])], ARGV[1])
  local fraction = score and tonumber(score) % 1 or 0
  if fraction > 4e-7 and math.abs(fraction - tonumber('0.' .. ARGV[#ARGV])) > 4e-7 then
    return redis.error_reply('FENCED')
  end
end
