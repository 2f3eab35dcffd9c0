-- The rules of a call: a key each, and six ARGV.
--   kind  T token-bucket   a p         b q        c cap     d slack
--         S sliding-window a cap       b per      c grain   d -
--         F fixed-window   a cap       b per      c slack   d -
--         C concurrency    a cap       b lease    c -       d -
-- p = 0 and cap = 0 suspend; slack < per. All times are whole microseconds.

-- Rule i, described from ARGV[first] on.
local function read_rule(i, first, member, now)
  return algorithms[ARGV[first]].load(KEYS[i], now, tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2]),
    tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4]), tonumber(ARGV[first + 5]), member)
end
