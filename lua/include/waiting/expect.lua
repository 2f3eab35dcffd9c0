-- Whether a clock says when a rule will admit more, or a pause is over.
local function can_tell(r)
  if r.kind == 'P' then
    return r.ends > now
  end
  return r.kind ~= 'C'
end

-- When the `units` before it and then the rule's cost will have been admitted, as
-- far as a clock can tell; nil where it can't. An estimate: nothing is decided by it.
local function after_units(r, now, units)
  if r.kind == 'P' then
    return max(now, r.ends)
  end
  -- #include waiting/expect_calendar when K
  local whole_windows, t = 0, nil
  local field = r.kind == 'T' and 'x' or r.kind == 'S' and (r.per > 0 and 'total' or 'count')
  if not field then
    return now
  elseif r.kind == 'T' then
    units = units * r.q
  elseif r.cap > 0 then
    whole_windows = floor(units / r.cap)
    units = units - whole_windows * r.cap
  end
  local was = r[field]
  -- A bucket that has been full for a while is no fuller than full.
  r[field] = (r.kind == 'T' and max(was, (now - r.at) * r.p) or was) + units
  t = algorithms[r.kind].fit(r, now)
  r[field] = was
  return t and t + whole_windows * (r.window or 0)
end

-- The units that other lines are given while one is given so many: an equal share each,
-- for one of weight 1.
local function turns_of(units, lines, weight)
  return ceil(units * max(0, lines) / (weight > 0 and weight or 1))
end
