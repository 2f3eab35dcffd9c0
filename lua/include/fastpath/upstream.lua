-- Whether an API has told anything of the rules or of a level of the call's own path: of another's it makes no
-- difference. It needs call, n, told, provider, scope and heeds.
if heeds then
  local fields = {}
  for ends in string.gmatch(scope .. '/', '()/') do
    fields[#fields + 1] = 'P' .. sub(scope, 1, ends - 1)
  end
  for i = 1, n do
    fields[#fields + 1] = 'R' .. sub(KEYS[i], #provider + 1)
  end
  heeds = false
  for _, v in ipairs(call('HMGET', told, unpack(fields))) do
    heeds = heeds or v
  end
end
