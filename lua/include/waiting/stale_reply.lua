-- A calendar rule whose boundaries the clock is not between is stale. By it nothing is
-- decided, and nobody loses a turn or a place: the caller asks again with others.
do
  local function moment_at(text, i)
    local a, b, c, d, e, f, g = byte(text, i, i + 6)
    return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
  end
  for i = 1, n do
    local rule = ARGV[base + 2 * i]
    if sub(rule, 1, 1) == 'K' and (now < moment_at(rule, 9) or now >= moment_at(rule, 16)) then
      local out = { 0, 0, now, 10000, i }
      for j = 6, 5 * n + 5 do
        out[j] = 0
      end
      out[5 * i + 1], out[5 * i + 3] = 1, 10000
      out[5 * n + 6], out[5 * n + 7], out[5 * n + 8] = -1, -1, -1
      return out
    end
  end
end
