-- token-bucket: at most cap + p/q * t units start in any interval of t µs.
-- Source: docs/algorithms.md#token-bucket
--
-- The level x, in units of 1/q, drains p a µs: a unit costs q. x stands at the
-- decision `at`, which never repeats, so that it also names the grant. `low` is
-- the least level that any charge after `since` met: nothing granted since then
-- can have been refilled below it, so a refund up to `low` is exact.
do
  local UNTOUCHED = 9007199254740991

  -- The level at t, below zero where the bucket has been full for a while.
  local function level(r, t)
    return r.x - (t - r.at) * r.p
  end

  -- Speaks of the state in parts of this rule's unit, whose length has changed.
  local function convert(r, q)
    r.x = ceil(r.x / q * r.q)
    if r.low < UNTOUCHED then
      r.low = floor(r.low / q * r.q)
    end
  end

  local function load(key, now, cost, p, q, cap)
    local r = { kind = 'T', key = key, cost = cost, p = p, q = q, cap = cap,
      at = now - 1, x = 0, since = now, low = UNTOUCHED, found = false, healed = false }
    local v = redis.call('GET', key)
    if not v then
      return r
    end
    r.found = true
    if byte(v, 1) ~= TOKEN then
      r.x, r.low = min(carried(v), cap) * q, 0
      return r
    end
    r.at, r.x, r.since, r.low = unpack7(v, 2), unpack7(v, 9), unpack7(v, 23), unpack7(v, 30)
    local before = unpack7(v, 16)
    if before ~= q and p > 0 then
      convert(r, before)
    end
    if r.at - now > FAR_AHEAD then
      r.at, r.since, r.low, r.healed = now, now, 0, true
    end
    return r
  end

  local function fit(r, t)
    if r.p == 0 then
      return nil
    end
    local over = level(r, t) + (r.cost - r.cap) * r.q
    return over <= 0 and t or t + ceil(over / r.p)
  end

  local function charge(r, now, start)
    local p, at_start = r.p, max(0, level(r, start))
    local mark = max(now, r.at + 1)
    local x = max(level(r, now), (start - now) * p) + r.cost * r.q
    if at_start < r.q then
      r.since, r.low = mark, UNTOUCHED
    elseif at_start < r.low then
      r.low = at_start
    end
    r.x, r.at = max(0, x - (mark - now) * p), mark
    return mark
  end

  local function refund(r, now, mark)
    if r.p == 0 or not r.found or mark < r.since or mark > r.at then
      return 0
    end
    local back = max(0, min(r.cost * r.q, floor(level(r, now))))
    if mark < r.at and r.low < UNTOUCHED then
      back = min(back, r.low)
      r.low = r.low - back
    end
    r.x = r.x - back
    return floor(back / r.q)
  end

  local function save(r)
    redis.call('SET', r.key, char(TOKEN) .. pack(r.at) .. pack(r.x) .. pack(r.q) .. pack(r.since) .. pack(r.low),
      'PX', whole(ceil(r.x / r.p / 1000) + 1000))
  end

  local function remaining(r, now)
    return r.p == 0 and 0 or max(0, floor(r.cap - max(0, level(r, now)) / r.q))
  end

  local function reset(r, now)
    return r.p == 0 and -1 or max(0, ceil(level(r, now) / r.p))
  end

  algorithms.T = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
