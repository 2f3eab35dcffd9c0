  if sub(rule, 1, 1) == 'K' then
    return algorithms.K.load(KEYS[i], now, cost, rule)
  end
