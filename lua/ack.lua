-- ack: tell what became of tasks that wait or were granted their starts.
--
-- KEYS[1]     prefix  of the provider's keys. See include/base.lua, include/tree.lua and include/flight.lua.
--
-- ARGV[1]     clock   "" for the server's clock, or integer µs since the epoch (tests).
-- ARGV[2..]   tasks   four for each: a waiter, "queue:id"; "back" it has not come, and goes back to its place, "used" it has not
--                     come, and may have started, "gone" it no longer exists, waiting or granted, "left" it no longer waits, unless
--                     it was granted; its scope; and the text of its rules, "" if there is none. See include/rules.lua.
--
-- Returns  the clock of this call, in µs.
--
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
    local its = text ~= '' and policy(g.scope, text)
    if its then -- of a task that may have started only the lease comes back
      refund(its, g.places, g.start, costs_of(its, g.cost), lease_of(waiter, g.start), what == 'used' or its.shape ~= g.shape)
      for _, r in ipairs(its) do due(r.node) end
    end
    if what == 'back' then
      wait(q, g.scope, { score(g.score), id }, g.cost ~= 1 and { [id] = g.cost } or {})
      if its then call('HSET', rules_key, g.scope, text) end
    end
    landed(waiter)
  end
  if what == 'gone' or what == 'left' and not value then withdraw(q, scope, id) end
end
save()
save_tree()
return now
