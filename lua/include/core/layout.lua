-- A rate rule's state is one string whose first byte is its layout, so that a rule
-- whose algorithm has changed still finds the units that were spent:
--   T till at x q since low ahead                       token bucket
--   S till grain total head last tail count ahead log   sliding window, or F: fixed window
--   K till last from count prior before carry since next was   calendar
--   O till per total head last tail count ahead log, as F: fixed window that opens on use
-- All are numbers of seven bytes, except the log, and `ahead`, which is one byte: by how
-- many quarters of a second, rounded up, the latest start (at, tail) was ahead of the clock
-- when the state was written. A start that is further ahead now was written by a clock that
-- has since stepped back. The key expires at `till`.
local TOKEN, SLIDING, FIXED, OPENED, HELD, CALENDAR = 84, 83, 70, 79, 67, 75

-- The first byte of the record of an attempt that was given back: no start begins with it.
local GIVEN_BACK = 88

-- A token bucket's `low` when nothing was charged since.
local UNTOUCHED = 9007199254740991

-- To set a TTL costs as much as a write. So the TTL is set to end LONGER after the state means
-- nothing any more, and kept while it ends at least LEAST and at most MOST after that.
local LONGER, LEAST, MOST = 40000000, 1000000, 58000000

-- No lease is longer than a day, so an end beyond that was written by a clock
-- that has since stepped back and counts for nothing.
local LONGEST_LEASE = 86400000000
