-- The pause of a level by an API, or by a guess. It needs now, pack and the numbers. Source: docs/vendor.md#pauses
--
-- Four numbers: when it ends; when it began; its length if the API gave none, 0 if it did; and then its trial, the
-- moment at which the guess is over. From the trial on calls go one at a time, as probes: each start puts the end
-- off by PROBE, until a call has gone through. A probe of which nothing is heard holds up the others no longer, and
-- no trial lasts longer than the guess is remembered.
--
-- One table, since a chunk has few locals.
local guess = { PROBE = 10000000, RESTED = 60000000 }

-- For how long after its end a guess of this length is remembered: it shows that the next one is in vain.
function guess.remembered(length)
  return max(length, guess.RESTED)
end

function guess.read(v)
  if not v then
    return { ends = 0, since = 0, length = 0, trial = 0 }
  end
  return { ends = unpack7(v, 1), since = unpack7(v, 8), length = unpack7(v, 15), trial = unpack7(v, 22) }
end

function guess.text(ends, since, length, trial)
  return pack(ends) .. pack(since) .. pack(length) .. pack(trial)
end

-- When a pause ends, or the guess of one is over.
function guess.over(p)
  return p.trial > 0 and p.trial or p.ends
end

-- Whether starts at a moment are probes.
function guess.tries(p, at)
  return p.trial > 0 and at >= p.trial and at < p.trial + guess.remembered(p.length)
end
