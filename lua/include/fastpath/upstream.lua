-- Whether the API has reported anything about the rules or a level of the call's own path: reports about other paths
-- do not matter. It needs call, n, upstream, provider, scope and reported.
if reported then
  local fields = {}
  for ends in string.gmatch(scope .. '/', '()/') do
    fields[#fields + 1] = 'P' .. sub(scope, 1, ends - 1)
  end
  for i = 1, n do
    fields[#fields + 1] = 'R' .. sub(KEYS[i], #provider + 1)
  end
  reported = false
  for _, v in ipairs(call('HMGET', upstream, unpack(fields))) do
    reported = reported or v
  end
end
