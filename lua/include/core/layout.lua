-- A rate rule's state is one string whose first byte names its layout, so that
-- a rule whose algorithm has changed still finds what was spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
-- All are numbers of seven bytes, but for the log, and for `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
-- when the state was written. What is further ahead now was written by a clock that has since stepped
-- back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, HELD, CALENDAR = 84, 83, 70, 67, 75

-- The first byte of the record of an attempt that was given back: no start has it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So one is set for LONGER than the state
-- means anything, and kept while it is no less than LEAST and no more than MOST.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000
