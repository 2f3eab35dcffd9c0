-- fixed-window: at most cap units in each window of `per` µs since the epoch.
-- Source: docs/algorithms.md#fixed-window
--
-- The state is the latest charge and the units of its window. The last `slack`
-- µs of a window admit nothing: what starts late must not land in the next.
do
  local function load(key, now, cost, cap, per, slack)
    local r = { kind = 'F', key = key, cost = cost, cap = cap, per = per, slack = slack,
      last = 0, count = 0, found = false, healed = false }
    local v = redis.call('GET', key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= FIXED then
      r.last, r.count = now, carried(v)
      return r
    end
    r.last, r.count = unpack7(v, 2), unpack7(v, 9)
    if r.last - now > FAR_AHEAD then
      r.last, r.healed = now, true
    end
    return r
  end

  local function used(r, window)
    return floor(r.last / r.per) == window and r.count or 0
  end

  local function fit(r, t)
    if r.cap == 0 then
      return nil
    end
    local window, latest = floor(t / r.per), floor(r.last / r.per)
    if latest > window then
      window, t = latest, latest * r.per
    end
    local next_window = (window + 1) * r.per
    if next_window - t <= r.slack or used(r, window) + r.cost > r.cap then
      return next_window
    end
    return t
  end

  local function charge(r, _, start)
    r.count = used(r, floor(start / r.per)) + r.cost
    r.last = max(start, r.last)
    return start
  end

  local function refund(r, _, place)
    if not r.found or floor(place / r.per) ~= floor(r.last / r.per) then
      return 0
    end
    local back = min(r.count, r.cost)
    r.count = r.count - back
    return back
  end

  -- µs until the window of the latest charge is over.
  local function left(r, now)
    return max(0, (floor(r.last / r.per) + 1) * r.per - now)
  end

  local function save(r, now)
    redis.call('SET', r.key, char(FIXED) .. pack(r.last) .. pack(r.count),
      'PX', whole(ceil(left(r, now) / 1000) + 1000))
  end

  local function remaining(r, now)
    return max(0, r.cap - used(r, max(floor(now / r.per), floor(r.last / r.per))))
  end

  local function reset(r, now)
    return r.count == 0 and 0 or left(r, now)
  end

  algorithms.F = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
