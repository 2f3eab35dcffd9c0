-- A calendar rule is stale if the clock is outside its boundaries. No decision is made by it, and
-- no task loses a turn or a place: the caller asks again with other boundaries.
for i = 1, n do
  local rule = ARGV[base + 2 * i]
  local from, to = 0, now + 1
  if byte(rule) == CALENDAR then
    from, to = unpacked('>I7I7', sub(rule, 9))
  end
  if now < from or now >= to then
    local out = { 0, 0, now, 10000, i }
    for j = 6, 5 * n + 5 do
      out[j] = 0
    end
    out[5 * i + 1], out[5 * i + 3] = 1, 10000
    out[5 * n + 6], out[5 * n + 7], out[5 * n + 8], out[5 * n + 9] = -1, -1, -1, 0
    return out
  end
end
