-- Whether an API has told anything of the rules or of a level of the call's own path: of another's it makes no
-- difference. It needs call, n, upstream, provider, scope and reported.
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
