-- The rule of a path that a task waits for, as its number in it, and when to look at
-- it, nil where it can't tell: one that can't, or the one that alone would admit the
-- task last. Whatever comes free of any other, it can't start before. That need not be
-- the one that asked for the start: a window may only be in the way of the moment that
-- others have put it off to.
local function waits_for(path, start, binding)
  local last, at
  for i = 1, #path do
    local t = algorithms[path[i].kind].fit(path[i], now)
    if not t then
      return i, nil
    elseif t > (at or now) then
      last, at = i, t
    end
  end
  return last or max(1, binding), at or start
end
