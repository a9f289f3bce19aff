-- Waiting servers: which servers have clients that wait for a message of this queue, so that the clients of the
-- server that puts do not take everything before the others have been told.
--
-- Takes    block.how  'note' if other servers use this backend; 'share' if they do and the block puts, and all
--          its takes may wait
-- Touches  :ext:waiting  a hash: identity -> when that server noted that its clients wait, in seconds
--
-- A call that puts leaves the others their share. They are woken by what was put, and take it in calls that do
-- not put, which are not limited; so are ours, a round trip later, if the others do not come, and after 10 ms
-- those of calls that put (lane.py). A note that is no longer true costs that time, and nobody's message.

-- A note of another server that is so old, in seconds, counts no longer; our own is written again at half the age.
local NOTE_LIFETIME = 60
local left_for_others -- whether our clients were refused a message for the others

local function make_waiting_servers()
  local operations = {}
  local key = base .. ':ext:waiting'
  local now = tonumber(call('TIME')[1])

  local function is_current(noted)
    return math.abs(now - (tonumber(noted) or 0)) <= NOTE_LIFETIME
  end

  -- Returns  how many of the queue's messages the clients of this server may take now
  function operations.share()
    local notes = call('HGETALL', key)
    local servers, rank = 1, 0
    for i = 1, #notes, 2 do
      if notes[i] ~= identity and is_current(notes[i + 1]) then
        servers = servers + 1
        rank = rank + (notes[i] < identity and 1 or 0)
      end
    end
    -- What cannot be divided goes round, by the number of messages that have left the queue.
    local odd = queue.length % servers
    return (queue.length - odd) / servers + ((queue.consumed + rank) % servers < odd and 1 or 0)
  end

  -- Notes whether clients of this server still wait for a message.
  function operations.note(wait)
    if not wait then
      try('HDEL', key, identity)
      return
    end
    local noted = try('HGET', key, identity)
    if type(noted) ~= 'table' and noted and math.abs(now - (tonumber(noted) or 0)) <= NOTE_LIFETIME / 2 then
      return
    end
    local notes = try('HGETALL', key)
    for i = 1, notes.err and 0 or #notes, 2 do
      if not is_current(notes[i + 1]) then try('HDEL', key, notes[i]) end
    end
    try('HSET', key, identity, now)
  end

  return operations
end

-- Returns  how many of `wanted` messages the clients of this server may take now; notes if others are left some
local function allowed(wanted)
  if block.how ~= 'share' or queue.length == 0 then
    return wanted
  end
  local most = math.min(wanted, make_waiting_servers().share())
  left_for_others = left_for_others or most < math.min(wanted, queue.length)
  return most
end
