-- Whether the clock is outside the boundaries of a calendar rule of the call: no decision is made by such a rule,
-- and the caller asks again with other boundaries. It needs n and base; rule i is ARGV[base + i].

for i = 1, n do
  local rule = ARGV[base + i]
  stale = stale or byte(rule) == CALENDAR and (now < unpack7(rule, 9) or now >= unpack7(rule, 16))
end
