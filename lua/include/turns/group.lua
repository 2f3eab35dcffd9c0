-- The group of a task: what its name begins with, up to and with the first slash; '' where it has none.
local function group_of(ticket)
  return string.match(ticket, '^[^:]*:([^/]*/)') or ''
end
