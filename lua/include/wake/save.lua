-- What a look has come to, written at its end. Source: docs/turns.md#lines-rounds-and-seats

local save
do
  -- How soon others may look whose turns a round is left to: well within the lead that they have;
  -- and when this caller is to look again at such rounds.
  local OTHERS, own_look = 5000, now + AGAIN / 2

  -- Moves released tasks from their lines to those that are out. They come there before they
  -- go here: a server that refuses a command half-way leaves no task in neither.
  local function save_released()
    for _, l in pairs(lines) do
      local tickets, outs = {}, {}
      for i, o in ipairs(l.out or {}) do
        tickets[i] = o.ticket
        outs[2 * i - 1] = l.scope .. '\0' .. o.ticket
        outs[2 * i] = pack(now) .. pack(o.score + SCORES) .. pack(o.tag) .. id
        count(l, o.ticket, -1)
      end
      if #tickets > 0 then
        call('HSET', out_key, unpack(outs))
        call('ZREM', l.key, unpack(tickets))
      end
    end
  end

  -- Whether a line was emptied.
  local function closed(l)
    return moved[l.scope] and not moved[l.scope].name
  end

  -- Adds up the units and lines that came and went.
  local function save_sums()
    local add, fields = {}, {}
    local function plus(field, k)
      if k ~= 0 then
        add[field] = (add[field] or 0) + k
        fields[#fields + 1] = field
      end
    end
    for _, l in pairs(lines) do
      local opened = (l.opened and 1 or 0) - (closed(l) and 1 or 0)
      if next(l.units) or opened ~= 0 then
        for unit, k in pairs(l.units) do
          plus(sum_of(l.scope, unit), unit ~= '' and k or 0)
        end
        for i in path_numbers(l.path_text) do
          local name = rule_name(KEYS[tonumber(i)])
          plus('U' .. name, l.units[unit_of(ARGV[9 + tonumber(i)])] or 0)
          plus('N' .. name, opened)
        end
      end
    end
    read_at(fields)
    for field, k in pairs(add) do
      note(field, max(0, number_at(field) + k))
    end
  end

  local function save_seats()
    for scope, seat in pairs(moved) do
      if seat.seat ~= seat.was then
        comes[seat.was] = false
        note('S' .. scope, seat.seat or false)
        if seat.seat then
          comes[seat.seat] = true
        end
      end
    end
  end

  -- Notes the tags of all that were looked at, and of lines that were emptied what is to be
  -- remembered.
  local function save_tags()
    for scope, l in pairs(lines) do
      if closed(l) then
        remember(slots(l), names_in(l), true)
        save_shares(l.shares, true)
        note('Q' .. scope, false)
        for unit in pairs(units_of(l)) do
          note(sum_of(scope, unit), false)
        end
      elseif l.shares then
        save_shares(l.shares)
      end
    end
  end

  local function save_looks(names)
    local set, lower, gone = {}, {}, {}
    for name, r in pairs(rounds) do
      if r.left then
        own_look = min(own_look, looks[name] or own_look)
        look_by(name, now + OTHERS)
      end
    end
    for name, look in pairs(looks) do
      local list = served[name] and set or lower
      list[#list + 1], list[#list + 2] = whole(look), name
    end
    for _, name in ipairs(names) do
      if not looks[name] then
        gone[#gone + 1] = name
      end
    end
    if #set > 0 then
      call('ZADD', due, unpack(set))
    end
    if #lower > 0 then
      call('ZADD', due, 'LT', unpack(lower))
    end
    if #gone > 0 then
      call('ZREM', due, unpack(gone))
    end
  end

  -- Forgets nodes whose slots the time has passed. So many nodes or turns after the last time
  -- it looks through twice as many: what is kept is about as much as means anything.
  local FORGET = 32
  local function forget()
    local many = number_at(PAST)
    if many == 0 then
      return
    end
    many = many + #released / 2
    note(PAST, many)
    if many < FORGET then
      return
    end
    write_round() -- nodes that this call has noted, or taken up again, are looked through as they are now
    local most = min(2 * many, MANY)
    local past = call('ZRANGEBYLEX', round, '(' .. PAST .. '\0', '(' .. PAST .. '\1', 'LIMIT', '0', whole(most))
    local fields, left = {}, #past == most
    for _, entry in ipairs(past) do
      local node = sub(entry, 13)
      local level = level_above(node)
      fields[#fields + 1], fields[#fields + 2] = 'F' .. node, 'V' .. level
    end
    read_at(fields)
    for i, entry in ipairs(past) do
      local slot, time = fields[2 * i - 1], fields[2 * i]
      comes[entry] = false
      if held[time] and number_at(slot) > number_at(time) then
        comes[past_at(sub(slot, 2))], left = true, true
      else
        note(slot, false)
      end
    end
    note(PAST, left and 1 or 0)
  end

  -- When the caller is to look again, 0 when nobody waits.
  local function next_look(name, due_at)
    local following = tonumber(due_at or 0)
    if name and rounds[name] and rounds[name].left then
      local later = call('ZRANGEBYSCORE', due, '(' .. whole(following), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
      following = min(tonumber(later or own_look), own_look)
    end
    return following
  end

  -- Writes what the call has come to. Returns when to look again.
  function save(names)
    save_released()
    save_looks(names)
    local next_rule = call('ZRANGE', due, '0', '0', 'WITHSCORES')
    if #next_rule == 0 then
      call('DEL', at, round)
      return 0
    end
    save_sums()
    save_seats()
    save_tags()
    forget()
    note('@', now)
    write_round()
    write_at()
    return next_look(next_rule[1], next_rule[2])
  end
end
