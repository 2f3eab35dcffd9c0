-- reset: make rate rules as if unused, and return how many units they had counted. Tasks that wait for them are looked at now.
--
-- KEYS, ARGV[1] are in include/base.lua.
-- ARGV[2]  scope   whose rules they are; ARGV[3] is the text of its rules, see include/rules.lua.
-- ARGV[4]  which   a byte for each rule, 1 to reset it.
-- Returns  {now, waits, then one for each rule: used}
--          now    integer µs, the clock of this call
--          waits  1 if tasks wait for one of the rules, else 0
--          used   integer units that still counted, rounded up, starts ahead included; 0 for a rule that was not reset
-- Writes   the states of the rules, and when to look at blocked nodes.
-- Source   docs/limits.md#what-is-in-force-and-who-set-it

-- #include base
-- #include rules

local its = rules.of(ARGV[2], ARGV[3])
local out = { now, 0 }
for i = 1, its.many do
  local r, used = its[i], 0
  if byte(ARGV[4], i) == 1 and r.of.kind ~= 'C' then
    used = r.of.kind == 'K' and r.count or 2 * r.cap - algorithm(r.of.kind, 'rare').room(r)
    call('DEL', r.key)
    out[2] = max(out[2], rules.due(r.node))
  end
  out[i + 2] = used
end
return out
