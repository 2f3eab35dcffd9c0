-- inspect: return where tasks wait, changing nothing at all.
--
-- KEYS, ARGV[1] are in include/base.lua, the keys in include/tree.lua.
-- ARGV[2..]  five for each scope: the scope; the text of its rules, see include/rules.lua; the queue of the task that is asked for, "*"
--            for that of the first; the task's id, "" for the first of its leaf, "-" for the last; and until when the limits pause the
--            scope, in integer µs since the epoch, 0 for no pause
-- Returns  {clock, then for each scope {waiting, flying, ahead, out, expected, binding, then two for each concurrency rule: tasks, held}}
--          clock     integer µs, the clock of this call
--          waiting   how many tasks are in its leaves; flying: how many of it, and of scopes below it, are in flight
--          ahead     how many tasks are before the task in its leaf, -1 if it is not in it; out: 1 if it is in flight
--          expected  integer µs until its start is expected by all but concurrency rules, -1 if unknown; binding: the rule that it waits for, from 1, 0 for none, one
--                    more than there are rules for a pause, two more for the members of a pool
--          tasks     how many tasks take a place up to and including the task; held: how many runs hold one
-- Writes   nothing.
-- Source   docs/operations.md#who-waits

-- #include base
-- #include rules
-- #include flight
-- #include tree
-- #include expect

-- How many tasks are in flight at each scope.
local flying = {}
for _, value in ipairs(call('HVALS', flight)) do
  local scope = read_grant(value).scope
  flying[scope] = (flying[scope] or 0) + 1
end

local out = { now }
for i = 2, #ARGV, 5 do
  local scope, text, queue, id, from = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local waiting, below_here, rank, its = 0, 0, false, rules.of(scope, text)
  for q in pairs(seen) do
    local many = call('ZCARD', leaf_key(q, scope))
    waiting = waiting + many
    if queue == '*' and many > 0 then queue = q end
  end
  for at, many in pairs(flying) do
    if at == scope or sub(at, 1, #scope + 1) == scope .. '/' then below_here = below_here + many end
  end
  local key, place = leaf_key(queue, scope), id == '-' and '-1' or '0'
  if id == '' or id == '-' then id = call('ZRANGE', key, place, place)[1] or '' end
  rank = call('ZRANK', key, id)
  local list = { waiting, below_here, rank or -1, call('HEXISTS', flight, queue .. ':' .. id), -1, 0 }
  if rank then
    local cost = call('HGET', costs_key, queue .. ':' .. id) or 1
    local expected, by = expect(its, scope, queue, rank, tonumber(cost) or cost, from, list)
    list[5], list[6] = expected and expected - now or -1, by
  end
  out[#out + 1] = list
end
return out
