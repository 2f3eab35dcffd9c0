-- µs from now until a rule alone would admit its cost; -1 if unknown.
local function retry_of(r, now)
  local t = algorithms[r.kind].fit(r, now)
  return t and t - now or -1
end

-- The first moment from now on at which every rule with a known moment admits its cost,
-- the rule that asked for it, and whether that is sure. A suspended rule has no known moment;
-- a full concurrency rule expects leases to end. Fixed windows that are out of step may take
-- long to agree; then the result is only a lower bound.
local function joint_start(rules, now)
  local start, binding, sure = now, 0, true
  local many, agree, i = #rules, 0, 0
  for _ = 1, 50 * many do
    i = i % many + 1
    local t, hope = algorithms[rules[i].kind].fit(rules[i], start)
    if not t or hope then
      sure = false
    end
    agree = agree + 1
    if t and t > start then
      start, binding, agree = t, i, 1
    end
    if agree == many then
      return start, binding, sure
    end
  end
  return start, binding, sure and many == 0
end

-- Adds the report of rule i to the reply: limited, remaining, retry, reset, place.
local function report(out, i, r, now, retry, place)
  local n, algorithm = 5 * i, algorithms[r.kind]
  out[n + 1] = retry == 0 and 0 or 1
  out[n + 2] = algorithm.remaining(r, now)
  out[n + 3] = retry
  out[n + 4] = algorithm.reset(r, now)
  out[n + 5] = place
end

-- A denial: how long until all rules would admit it, and the report of each rule. An unknown time
-- (-1) outlasts every wait. A pause in addition to it is subtracted from -1: a pause by hand, whose
-- end no script knows, may be over sooner. A pause binds unless a rule's time is unknown; one whose probe is on
-- its way may be over at any moment, and has a number of its own.
local function denied(rules, now, start, binding)
  local wait, pause, probes = start - now, 0, false
  local out, last = { 0, 0, now, 0, 0 }, 0
  for i = 1, #rules do
    local r = rules[i]
    if r.kind ~= 'P' then
      local retry = retry_of(r, now)
      if wait >= 0 and retry < 0 then
        wait, binding = -1, i
      end
      report(out, i, r, now, retry, 0)
      last = i
    else
      if r.ends - now > pause then
        pause, probes = r.ends - now, r.trial > 0 and r.trial <= now
      end
      binding = pause > 0 and wait >= 0 and last + (probes and 2 or 1) or binding
    end
  end
  wait = wait < 0 and -1 - pause or wait
  out[4], out[5] = wait == 0 and 1 or wait, min(binding, last + 2)
  return out
end
