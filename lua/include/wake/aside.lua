-- Those that are left alone. Source: docs/turns.md#waking

-- The round of those that are left alone may have more scopes than a caller brings along. So a
-- look begins behind where the last one came to, and goes on past those that are not known.
local begin_aside, pass_unknown, begin_again
do
  -- How many to pass: as many again may take turns. And how soon to look at those.
  local SKIPS, SOON = 32, AGAIN / 4

  function begin_aside()
    read_at({ NO_RULE })
    local r, from = rounds[NO_RULE] or { here = {} }, held[NO_RULE] or nil
    rounds[NO_RULE] = r
    r.from, r.place, r.after, r.passed = from, from, from, 0
  end

  -- Passes a scope that the caller doesn't know, and is to bring along. True while there may be
  -- others.
  function pass_unknown(r, seat)
    miss(seat.scope)
    if r.passed == 0 then
      look_by(NO_RULE, r.met and now + SOON or now)
    end
    r.passed = r.passed + 1
    take_from_round(seat)
    return r.passed < SKIPS
  end

  -- Goes on, behind the last, with the first, unless the look has begun there.
  function begin_again(r)
    local goes_on = r.from and r.passed == 0
    if r.passed == 0 then
      r.from, r.place = nil, nil
    end
    if goes_on then
      r.first = nil
    end
    return goes_on
  end
end
