-- Waiting servers: notes which servers have clients that wait for a message of the queue. Without these notes
-- the clients of the server that puts would take everything before other servers are told of the messages.
--
-- Takes    block.how  'note' if other servers use this backend; 'share' if, in addition, the block puts and
--                     all its takes may wait
-- Touches  :ext:waiting  a hash: identity -> when that server noted waiting clients, in seconds since 1970
--
-- A call that puts leaves the other servers their share. The put wakes them up, and they take it in calls
-- that do not put, which have no limit. If they do not come, this server's clients take it: in its next call
-- if that does not put, else after 10 ms (queues/waiting/waiting_operations.py). An outdated note costs this
-- delay, but loses no message.

-- Seconds after which a server's note is ignored. A server renews its own at half that age.
local NOTE_LIFETIME = 60
local left_for_others -- whether clients of this server were refused a message in favour of others

local function make_waiting_servers()
  local operations = {}
  local key = base .. ':ext:waiting'
  local now = tonumber(call('TIME')[1])

  local function is_current(noted)
    return math.abs(now - (tonumber(noted) or 0)) <= NOTE_LIFETIME
  end

  -- Return how many of the queue's messages the clients of this server may take now.
  function operations.share()
    local notes = call('HGETALL', key)
    local servers, rank = 1, 0
    for i = 1, #notes, 2 do
      if notes[i] ~= identity and is_current(notes[i + 1]) then
        servers = servers + 1
        rank = rank + (notes[i] < identity and 1 or 0)
      end
    end
    -- The remainder goes to the servers in rotation, by the number of consumed messages.
    local odd = queue.length % servers
    return (queue.length - odd) / servers + ((queue.consumed + rank) % servers < odd and 1 or 0)
  end

  -- Note whether clients of this server still wait for a message.
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

-- Return how many of `wanted` messages the clients of this server may take; note if others are left some.
local function allowed(wanted)
  if block.how ~= 'share' or queue.length == 0 then
    return wanted
  end
  local most = math.min(wanted, make_waiting_servers().share())
  left_for_others = left_for_others or most < math.min(wanted, queue.length)
  return most
end
