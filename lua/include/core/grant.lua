-- How a decision is made under the rules of its path. It needs n, member, attempt and
-- scope, and late, what came too late before or nil; rule i is ARGV[base + 2 * i], and pauses follow the n rules.

local function read_rules()
  local rules = {}
  for i = 1, n do
    rules[i] = load_rule(i, ARGV[base + 2 * i], tonumber(ARGV[base + 2 * i + 1]), member, now)
  end
  add_pauses(rules, scope)
  return rules
end

-- By how much the run may begin after its start, and how far ahead the start must be.
local leeway = late and byte(late) == 76 and tonumber(sub(late, 2)) or 0
local from = late and leeway == 0 and tonumber(sub(late, 2)) or 0

-- A reply to a grant, which is bound by a pause if it is a probe.
local function as_probe(out, rules, start)
  out[5] = probed(rules, start)[1] and n + 1 or out[5]
  return out
end

-- Charges every rule at start. The record goes first, here too. Nil, with nothing
-- changed, for an attempt that was decided before. An attempt with leeway may begin later by as
-- much: windows and buckets count it at the last moment at which it may begin.
local function grant(rules, start, binding)
  save_stepped()
  local out, record = { 1, 0, now, start - now, binding }, pack(start)
  local retries, places = {}, {}
  for i = 1, n do
    local r = rules[i]
    retries[i] = start == now and 0 or retry_of(r, now)
    local counts = (r.kind == 'T' or r.kind == 'S' and r.per > 0) and start + leeway or start
    places[i] = algorithms[r.kind].charge(r, now, counts)
    record = record .. pack(places[i])
  end
  local before = call('SET', attempt, record .. member, 'PX', '30000', 'GET')
  if before and sub(before, -#member) == member then
    call('SET', attempt, before, 'PX', byte(before, 1) == GIVEN_BACK and '60000' or '30000')
    return nil
  end
  for i = 1, n do
    local r = rules[i]
    algorithms[r.kind].save(r, now, start)
    report(out, i, r, now, retries[i], places[i])
  end
  for i = n + 1, #rules do
    algorithms.P.charge(rules[i], now, start)
    algorithms.P.save(rules[i])
  end
  return as_probe(out, rules, start)
end

-- The reply for an attempt that was granted before.
local function granted_before(rules, record)
  local left = unpack7(record, 1) - now
  local out, wait = { 1, 1, now, left, 0 }, max(0, left)
  for i = 1, n do
    -- Its own units are among those that it would have to wait for.
    local retry = wait > 0 and retry_of(rules[i], now) or 0
    if retry < 0 or retry > wait then
      retry = wait
    end
    report(out, i, rules[i], now, retry, unpack7(record, 7 * i + 1))
  end
  return as_probe(out, rules, now + left)
end

-- Mends what would not heal by itself: a key without a TTL, or with a TTL that is too short after a
-- change of a limit; a state from the future, or of another algorithm, whose units would seem
-- to be spent anew at each read.
local function mend(rules)
  save_stepped()
  for i = 1, n do
    local r = rules[i]
    if r.kind == 'C' then
      if r.held > 0 and redis.call('PTTL', r.key) == -1 then
        keep(r.key, LONGEST_LEASE)
      end
    elseif r.found and r.p ~= 0 then
      local algorithm = algorithms[r.kind]
      if r.healed or redis.call('PTTL', r.key) < ceil(algorithm.lasts(r, now) / 1000) then
        r.till = 0
        algorithm.save(r, now)
      end
    end
  end
end
