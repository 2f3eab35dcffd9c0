-- fixed-window: at most cap units in each window of `per` µs since the epoch.
-- Source: docs/algorithms.md#fixed-window
--
-- The state is the latest charged window and the one before it, each by its last
-- start, with their units: a start ahead does not close the window at hand. No
-- unit goes into a window before those two, and none comes back that was taken
-- before `since`, when the state began. The last `slack` µs of a window admit
-- nothing: what starts late must not land in the next. A clock that steps back by
-- less than a window finds those two as they were; otherwise what they had counts in
-- the window at hand.
do
  -- The units of another algorithm, in the last two windows that have any.
  local function take_over(r, v, now)
    local units = stored.carried(v)
    for i = 1, #units, 2 do
      local t, n = min(units[i], now), units[i + 1]
      if n > 0 and floor(t / r.per) > floor(r.last / r.per) then
        r.prior, r.before, r.last, r.count = r.last, r.count, t, n
      elseif n > 0 then
        r.last, r.count = max(r.last, t), r.count + n
      end
    end
    r.healed = true
  end

  local function load(key, now, cost, cap, per, slack)
    local r = { kind = 'F', key = key, cost = cost, cap = cap, per = per, slack = min(slack, per - 1),
      last = 0, count = 0, prior = 0, before = 0, since = now, till = 0, found = false, healed = false }
    local v = stored.get(key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= FIXED then
      take_over(r, v, now)
      return r
    end
    r.till, r.since = unpack7(v, 2), unpack7(v, 37)
    r.last, r.count, r.prior, r.before = unpack7(v, 9), unpack7(v, 16), unpack7(v, 23), unpack7(v, 30)
    local notches = byte(v, 44)
    if stored.stepped(now, r.last, notches) > per then
      r.count = r.count + (notches > 0 and r.before or 0) -- the last start was in a window ahead, maybe
      r.last, r.prior, r.before, r.since, r.healed, r.stepped = now, 0, 0, now, true, true
    elseif floor(r.prior / per) == floor(r.last / per) then
      r.count, r.before = r.count + r.before, 0
    end
    return r
  end

  local function window(r, t)
    return floor(t / r.per)
  end

  local function used(r, w)
    return w == window(r, r.last) and r.count or w == window(r, r.prior) and r.before or 0
  end

  local function fit(r, t)
    if r.cost > r.cap then
      return nil
    end
    local w = window(r, t)
    if w < window(r, r.prior) then
      w = window(r, r.prior)
      t = w * r.per
    end
    while (w + 1) * r.per - t <= r.slack or used(r, w) + r.cost > r.cap do
      w = w + 1
      t = w * r.per
    end
    return t
  end

  local function charge(r, _, start)
    local w, latest = window(r, start), window(r, r.last)
    if w == latest then
      r.last, r.count = max(r.last, start), r.count + r.cost
    elseif w == window(r, r.prior) then
      r.prior, r.before = max(r.prior, start), r.before + r.cost
    else
      if w > latest then
        r.prior, r.before, r.last, r.count = r.last, r.count, start, r.cost
      else
        r.prior, r.before = start, r.cost
      end
      r.since = max(r.since, window(r, r.prior) * r.per) -- the window before those two is let go
    end
    return start
  end

  local function refund(r, _, place)
    local w, back = window(r, place), 0
    if r.healed or place < r.since then
      return 0
    elseif w == window(r, r.last) then
      back = min(r.count, r.cost)
      r.count = r.count - back
      if r.count == 0 and r.prior > 0 then
        r.last, r.count, r.before = r.prior, r.before, 0
      end
    elseif w == window(r, r.prior) then
      back = min(r.before, r.cost)
      r.before = r.before - back
    end
    r.changed = back > 0
    return back
  end

  -- µs until the last window with units is over, and the last is open that may
  -- not get any.
  local function lasts(r, now)
    local last = r.count > 0 and r.last or r.before > 0 and r.prior or r.prior - r.per
    return max(0, (window(r, last) + 1) * r.per - now)
  end

  local function save(r, now)
    write(r, now, FIXED, pack(r.last) .. pack(r.count) .. pack(r.prior) .. pack(r.before) .. pack(r.since)
      .. stored.ahead(now, r.last), lasts(r, now))
  end

  local function remaining(r, now)
    local w = window(r, now)
    return w < window(r, r.prior) and 0 or max(0, r.cap - used(r, w))
  end

  algorithms.F = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = lasts, lasts = lasts }
end
