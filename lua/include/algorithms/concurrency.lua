-- concurrency: at most cap runs at once, each holding a place under its attempt
-- id until the place is released or its lease expires.
-- Source: docs/algorithms.md#concurrency
--
-- The state is a sorted set of attempt ids by the end of their lease.
do
  local function bounds(now)
    return '(' .. whole(now), whole(now + LONGEST_LEASE + FAR_AHEAD)
  end

  local function load(key, now, cost, cap, lease, _, _, member)
    local from, to = bounds(now)
    local r = { kind = 'C', key = key, cost = cost, cap = cap, lease = lease, member = member, now = now,
      held = redis.call('ZCOUNT', key, from, to), mine = false }
    if r.held >= cap and r.held > 0 then
      local ends = redis.call('ZSCORE', key, member)
      r.mine = ends and tonumber(ends) > now or false
    end
    return r
  end

  -- The end of one of the current leases, after skipping the `skip` that end first
  -- (ZRANGEBYSCORE) or last (ZREVRANGEBYSCORE). Nil if there are fewer: some places are only
  -- reserved.
  local function ends(command, key, a, b, skip)
    return tonumber(redis.call(command, key, a, b, 'WITHSCORES', 'LIMIT', whole(skip), 1)[2] or '')
  end

  -- A full rule has a free place once enough leases have ended to be below cap, unless they are
  -- renewed.
  local function fit(r, t)
    if r.held < r.cap or r.mine then
      return t
    elseif r.cap == 0 then
      return nil
    end
    local from, to = bounds(r.now)
    r.free = r.free or ends('ZRANGEBYSCORE', r.key, from, to, r.held - r.cap) or r.now + r.lease
    return max(t, r.free), true
  end

  local function charge(r)
    if not r.mine then
      r.held, r.free = r.held + 1, nil
    end
    return 0
  end

  local function refund(r)
    return redis.call('ZREM', r.key, r.member)
  end

  local function save(r, now, start)
    redis.call('ZREMRANGEBYSCORE', r.key, '-inf', whole(now))
    redis.call('ZADD', r.key, whole(start + r.lease), r.member)
    keep(r.key, start + r.lease - now)
  end

  local function remaining(r)
    return max(0, r.cap - r.held)
  end

  local function reset(r, now)
    local from, to = bounds(now)
    return r.held > 0 and ends('ZREVRANGEBYSCORE', r.key, to, from, 0) - now or 0
  end

  algorithms.C = { load = load, fit = fit, charge = charge, refund = refund, save = save,
    remaining = remaining, reset = reset }
end
