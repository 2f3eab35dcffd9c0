-- How long the runs under a concurrency rule take: an estimate, which no decision depends on. Source: docs/algorithms.md#run-times
--
-- t:<node>:<rule>  string "runs mean deviation": how many runs it stands for, and their mean and standard deviation in µs. Once it
--                  stands for a hundred, each later run takes a hundredth of it. It is kept for a day.
local function note_run(key, took)
  local runs, mean, deviation = match(call('GET', key) or '', '^(%d+) (%d+) (%d+)$')
  runs, mean, deviation = min((tonumber(runs) or 0) + 1, 100), tonumber(mean) or 0, tonumber(deviation) or 0
  local off, variance = took - mean, deviation * deviation
  mean = mean + off / runs
  variance = max(0, variance + (off * (took - mean) - variance) / runs)
  call('SET', key, whole(runs) .. ' ' .. whole(mean) .. ' ' .. whole(math.sqrt(variance)), 'PX', '86400000')
end
