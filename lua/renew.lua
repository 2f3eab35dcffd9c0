-- renew: keep the places of a run for another lease, if it still holds them all.
--
-- KEYS[1]  prefix  of the provider's keys. See include/base.lua.
--
-- ARGV[1]  clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2]  lease   the id under which it holds them.
-- ARGV[3]  scope   of the run, and
-- ARGV[4]  rules   the text of its rules. See include/rules.lua.
--
-- Returns  {held, ends}
--          held  1, or 0 when any place was lost; then no lease is renewed
--          ends  integer µs until the first of the leases ends
--
-- Writes   the places when held == 1.
-- Source   docs/algorithms.md#concurrency

-- #include base
-- #include rules

local ends, its = EXACT, policy(ARGV[3], ARGV[4])
for i = 1, its.many do
  local r = its[i]
  if r.of.kind == 'C' then
    if tonumber(call('ZSCORE', r.key, ARGV[2]) or 0) <= now then return { 0, 0 } end
    r.its.charge(r, now, 1, ARGV[2])
    dirty(r)
    ends = min(ends, r.lease)
  end
end
save()
return { 1, ends }
