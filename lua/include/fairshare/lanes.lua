-- The place of a task in its queue by its lane. It needs now, pack, the numbers and tasks.lua.
-- Source: docs/turns.md#lanes
--
-- Start-time fair queueing within a queue: the place of a lane's next task is a stride behind that of
-- its last one, and never before the first task of the queue, which stands for the virtual time. A
-- task without a lane goes to the end, and the next task of every lane behind it.
-- Q<scope> keeps these places as long as the queue is not empty and a task has named a lane: seven
-- bytes, the next place, and the lane with a zero byte after it. Under '' is the place that no lane of
-- the same priority is before.
--
-- Below FRONT are the tasks that came back to the front: they do not stand for the virtual time. If
-- more than LANES lanes have tasks in a queue, the other lanes count as none.
local FRONT = MIDDLE / 2

-- The priority of a task, and its stride and lane if it has one: "0" or "-1:6:low".
local function priority_of(text)
  local priority, stride, lane = string.match(text, '^([^:]*):?([^:]*):?(.*)$')
  return tonumber(priority), tonumber(stride) or 1, lane
end

-- The place of a task that was to start, did not, and had no place before: no place at the end of a queue is
-- before it. So the tasks that come back keep their order, whichever comes first.
local function front_place(rank, start)
  return -priority_of(rank) * BAND + floor(start / 1000) % FRONT
end

local function lane_key(band, name)
  return whole(band + 0) .. ':' .. name -- never "-0"
end

-- The next places of a queue's lanes, by lane_key.
local function read_lanes(text)
  local lanes, from = {}, 1
  while text and from < #text do
    local place, zero = unpack7(text, from) - SCORES, string.find(text, '\0', from + 7, true)
    lanes[lane_key(floor(place / BAND) * BAND, sub(text, from + 7, zero - 1))] = place
    from = zero + 1
  end
  return lanes
end

local function lanes_text(lanes)
  local text = ''
  for key, place in pairs(lanes) do
    text = text .. pack(place + SCORES) .. string.match(key, ':(.*)$') .. '\0'
  end
  return text
end

local place_in_lane, take_place
do
  local LANES = 32

  -- Whether there is room to keep a place for a lane. A lane whose next place is its turn needs none.
  local function has_room(lanes, band, lane, first)
    local many, all = 0, lane_key(band, '')
    for key, place in pairs(lanes) do
      if key ~= all and place >= band and place <= (first or band) then
        lanes[key] = nil
      else
        many = many + 1
      end
    end
    return lanes[lane_key(band, lane)] ~= nil or many + 1 < LANES
  end

  -- The place of a lane's next task; `first` is the first task of its priority in the queue, if any. Nil
  -- for the end of the queue.
  function place_in_lane(lanes, band, lane, first)
    local least = lanes[lane_key(band, '')]
    if not least or not has_room(lanes, band, lane, first) then
      return nil
    end
    least = max(least, first and first + 1 or place_after(nil, band, now))
    return min(max(least, lanes[lane_key(band, lane)] or least), band + BAND - 1)
  end

  -- Notes where lanes continue after a task that has got its place.
  function take_place(lanes, band, lane, stride, place)
    local all = lane_key(band, '')
    if lane ~= '' and has_room(lanes, band, lane) then
      lanes[all] = lanes[all] or place
      lanes[lane_key(band, lane)] = min(place + stride, band + BAND - 1)
    elseif lanes[all] then
      lanes[all] = min(place + 1, band + BAND - 1)
    end
  end
end
