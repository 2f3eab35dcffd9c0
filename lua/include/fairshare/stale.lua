-- Whether the clock is not between the boundaries of a calendar rule of the call: by such a rule nothing is
-- decided, and the caller asks again with others. It needs n and base; rule i is ARGV[base + i].

for i = 1, n do
  local rule = ARGV[base + i]
  stale = stale or byte(rule) == CALENDAR and (now < unpack7(rule, 9) or now >= unpack7(rule, 16))
end
