-- join: give tasks their places, many in one call.
--
-- Sent again, it leaves tasks where they are.
--
-- KEYS, ARGV[1] are in include/base.lua, the keys in include/tree.lua.
-- ARGV[2]      rules   integer n: how many scopes follow.
-- ARGV[3..]    scope and the text of its rules, for each of them. See include/rules.lua.
-- ARGV[2n+3..] leaves for each: the number of its scope, its queue, and how many tasks follow; then three for each task: its id; its
--                     priority, an integer, or "=" and the score of the place that it had; its cost, a number, or by unit, "requests=1,tokens=5,"
-- Returns  {clock, then for each task: how many tasks are before it in its leaf, the integer µs until its start is expected, an
--          estimate, -1 if unknown, and the rule that it waits for, from 1; 0 for none, one more than there are rules for a pause, two more for
--          the members of a pool}
-- Writes   the keys of the tree.
-- Source   docs/turns.md#join

-- #include base
-- #include rules
-- #include tree
-- #include expect

-- SEQUENCE is more than the number of tasks that join while one of them waits; priorities are at most 2^20 either way.
local SEQUENCE, n = 4294967296, tonumber(ARGV[2])
local at, sequence, out = 3 + 2 * n, nil, { now }

-- The score of a task's place.
local function place_of(rank)
  local had = match(rank, '^=(%d+)$')
  if had then return tonumber(had) end
  sequence = sequence + 1
  return sequence % SEQUENCE + (1048576 - rank) * SEQUENCE
end

for i = 3, at - 1, 2 do call('HSET', rules_key, ARGV[i], ARGV[i + 1]) end
call('EXPIRE', rules_key, STAYS)
local many = floor((#ARGV - at + 1) / 3)
sequence = call('INCRBY', P .. 'sequence', whole(many)) - many
call('EXPIRE', P .. 'sequence', STAYS)
while at < #ARGV do
  local scope, text, q, last = ARGV[2 * ARGV[at] + 1], ARGV[2 * ARGV[at] + 2], ARGV[at + 1], at + 2 + 3 * ARGV[at + 2]
  local tasks, costs = {}, {}
  for i = at + 3, last, 3 do
    tasks[#tasks + 1], tasks[#tasks + 2] = score(place_of(ARGV[i + 1])), ARGV[i]
    costs[ARGV[i]] = ARGV[i + 2] ~= '1' and ARGV[i + 2] or nil
  end
  local joined = tree.wait(q, scope, tasks, costs)
  local key, its = leaf_key(q, scope), rules.of(scope, text)
  local before = call('ZRANK', key, ARGV[at + 3])
  for i = at + 3, last, 3 do
    if i > at + 3 then -- those of a call mostly follow each other
      before = joined == #tasks / 2 and ARGV[i + 1] == ARGV[i - 2] and before + 1 or call('ZRANK', key, ARGV[i])
    end
    local cost = tonumber(ARGV[i + 2]) or ARGV[i + 2]
    local expected, by = expect(its, scope, q, before, cost)
    out[#out + 1], out[#out + 2], out[#out + 3] = before, expected and expected - now or -1, by
  end
  at = last + 1
end
tree.save()
return out
