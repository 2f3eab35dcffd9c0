-- How long the runs under a concurrency rule take: an estimate, which no decision depends on. It needs floor and the numbers.
--
-- runs  string "runs mean deviation": how many runs it stands for, and their mean and standard deviation in µs. Once it
--       stands for a hundred, each later run takes a hundredth of it.
-- Source: docs/algorithms.md#run-times
local MOST_RUNS, RUNS_STAY = 100, 86400000 -- ms: the next day's first forecast reads it, too

local function note_run(key, took)
  local runs, mean, deviation = string.match(redis.call('GET', key) or '', '^(%d+) (%d+) (%d+)$')
  runs, mean, deviation = min((tonumber(runs) or 0) + 1, MOST_RUNS), tonumber(mean) or 0, tonumber(deviation) or 0
  local off, variance = took - mean, deviation * deviation
  mean = mean + off / runs
  variance = max(0, variance + (off * (took - mean) - variance) / runs)
  local text = whole(runs) .. ' ' .. whole(floor(mean + 0.5)) .. ' ' .. whole(floor(math.sqrt(variance) + 0.5))
  redis.call('SET', key, text, 'PX', whole(RUNS_STAY))
end
