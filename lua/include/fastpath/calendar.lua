  if sub(rule, 1, 1) == 'K' then
    break -- for the general way
  end
