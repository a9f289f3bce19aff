-- Room: the bound of the queue, its limit of bytes, and the :not_full token.
--
-- Touches  :not_full
--          :ext:settings  'max_bytes': the queue's limit of bytes, if it has one; 'held_bytes': the bytes of its
--                         reserved and buried jobs, which do not count
--
-- A queue that has reached its limit of bytes is full, whatever its bound: docs/internals/keys.md#full-in-use-closed. A
-- put that begins below the limit is accepted.

local room = {}

-- Return the limit of bytes, or false.
function room.max_bytes()
  if queue.max_bytes == nil then
    queue.max_bytes = queue.word and tonumber(call('HGET', queue.base .. ':ext:settings', 'max_bytes') or nil) or false
  end
  return queue.max_bytes
end

-- Return whether the limit of bytes is reached.
function room.is_heavy()
  local most, base = room.max_bytes(), queue.base
  if not most then return false end
  local stats = call('MGET', base .. ':stats:produced_bytes', base .. ':stats:consumed_bytes')
  return (tonumber(stats[1]) or 0) - (tonumber(stats[2]) or 0) - queue.kind.held_bytes() >= most
end

function room.is_full()
  return queue.bound > 0 and queue.length >= queue.bound or room.is_heavy()
end

-- Return whether puts into the queue may have to wait.
function room.may_be_full() return queue.bound > 0 or room.max_bytes() end

-- Note when the oldest message expires, which then makes room for a put, in milliseconds since 1970; 0 for never.
function room.note_expiry(expires)
  if expires > 0 then block.room_due = math.min(block.room_due or math.huge, expires) end
end

-- Keep exactly one :not_full token if there is room, else none (pressure 0.15, Put and Get, last steps). But if a
-- native consumer has taken a message from a full queue, leave it to push the token itself.
function room.settle()
  local key = queue.base .. ':not_full'
  if not room.may_be_full() and queue.signs and queue.has_token() then return end
  queue.signs = nil
  if room.is_full() then
    try('DEL', key)
    return
  end
  local tokens = try('LLEN', key)
  if type(tokens) ~= 'number' then
    return -- not a list: the doctor finds that, and the put or get is done all the same
  elseif tokens == 0 then
    local is_used = queue.producer or queue.consumer or queue.word -- else a native client may be creating it
    if is_used and (not room.may_be_full() or try('EXISTS', queue.base .. ':consumer_free') == 1) then
      try('LPUSH', key, 1)
    end
  elseif tokens > 1 then
    try('LTRIM', key, 0, 0)
  end
end

return room
