-- ack: tell what became of tasks that wait or were granted their starts.
--
-- KEYS, ARGV[1] are in include/base.lua, the keys in include/tree.lua and include/flight.lua.
-- ARGV[2..]   tasks   four for each: a waiter, "queue:id"; "back" it has not come, and goes back to its place, "used" it has not
--                     come, and may have started, "gone" it no longer exists, waiting or granted, "left" it no longer waits, unless
--                     it was granted; its scope; and the text of its rules, "" if there is none. See include/rules.lua.
-- Returns  the clock of this call, in µs.
-- Writes   what it changes.
-- Source   docs/turns.md#ack

-- #include base
-- #include rules
-- #include flight
-- #include tree

for i = 2, #ARGV, 4 do
  local waiter, what, scope, text = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local q, id = match(waiter, '^([^:]*):(.*)$')
  local value = call('HGET', flight, waiter)
  if value and what ~= 'left' then
    local g = read_grant(value)
    local its = text ~= '' and rules.granted(rules.of(g.scope, text), g)
    if its then -- of a task that may have started only the lease comes back
      rules.refund(its, g.places, g.start, rules.costs(its, g.cost), lease_of(waiter, g.start), what == 'used' or its.shape ~= g.shape)
      for _, r in ipairs(its) do rules.due(r.node) end
    end
    if what == 'back' then
      tree.wait(q, g.scope, { score(g.score), id }, g.cost ~= 1 and { [id] = g.cost } or {})
      if its then
        call('HSET', rules_key, g.scope, text)
        call('EXPIRE', rules_key, STAYS)
      end
    end
    landed(waiter)
  end
  if what == 'gone' or what == 'left' and not value then tree.withdraw(q, scope, id) end
end
rules.save()
tree.save()
return now
