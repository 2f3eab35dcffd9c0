  if r.kind == 'K' then
    return algorithms.K.after(r, now, units)
  end
