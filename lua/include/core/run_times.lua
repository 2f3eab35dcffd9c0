-- How long the runs under a concurrency rule take: an estimate, which no decision depends on. It needs floor and the numbers.
--
-- runs  string "runs mean deviation": how many runs it stands for, and their mean and standard deviation in µs. Once it
--       stands for a hundred, each later run takes a hundredth of it.
-- Source: docs/algorithms.md#run-times
local MOST_RUNS, LONGEST_RUN = 100, 4503599627370496
local RUNS_STAY = 86400000 -- ms: the next day's first forecast reads it, too

local function note_run(key, took)
  local v = redis.call('MGET', key)[1] -- no error from a key of another type: what is damaged is written anew
  local runs, mean, deviation = string.match(v or '', '^(%d+) (%d+) (%d+)$')
  runs, mean, deviation = tonumber(runs), tonumber(mean), tonumber(deviation)
  if not (runs and mean and deviation and max(mean, deviation) <= LONGEST_RUN) then
    runs, mean, deviation = 0, 0, 0
  end
  runs = min(runs + 1, MOST_RUNS)
  local off, variance = took - mean, deviation * deviation
  mean = mean + off / runs
  variance = max(0, variance + (off * (took - mean) - variance) / runs)
  local text = whole(runs) .. ' ' .. whole(floor(mean + 0.5)) .. ' ' .. whole(floor(math.sqrt(variance) + 0.5))
  redis.call('SET', key, text, 'PX', whole(RUNS_STAY))
end
