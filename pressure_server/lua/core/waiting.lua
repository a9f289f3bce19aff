-- Waiting servers: notes which servers have clients that wait for a message of the queue. A call that puts leaves the
-- other servers their share: docs/internals/waiting.md#clients-of-several-servers.
--
-- Takes    block.how  'note' if other servers use this backend; 'share' if, in addition, the block puts and
--                     all its takes may wait
-- Touches  :ext:waiting  a hash: identity -> when that server noted waiting clients, in seconds since 1970

local waiting = {}
-- Seconds after which a server's note is ignored. A server renews its own note after half of that time.
local NOTE_LIFETIME = 60

-- Return how many seconds old a note is.
local function age_of(noted)
  return math.abs(math.floor(the_call.clock() / 1000) - (tonumber(noted) or 0))
end

-- Return how many of the queue's messages the clients of this server may take now.
local function share()
  local notes = call('HGETALL', queue.base .. ':ext:waiting')
  local servers, rank = 1, 0
  for i = 1, #notes, 2 do
    if notes[i] ~= the_call.identity and age_of(notes[i + 1]) <= NOTE_LIFETIME then
      servers = servers + 1
      rank = rank + (notes[i] < the_call.identity and 1 or 0)
    end
  end
  -- The remainder goes to the servers in rotation, by the number of consumed messages.
  local odd = queue.length % servers
  return (queue.length - odd) / servers + ((queue.consumed + rank) % servers < odd and 1 or 0)
end

-- Return how many of `wanted` messages the clients of this server may take. Note whether others are left some.
function waiting.allowed(wanted)
  if block.how ~= 'share' or queue.length == 0 then return wanted end
  local most = math.min(wanted, share())
  block.left_for_others = block.left_for_others or most < math.min(wanted, queue.length)
  return most
end

-- Note whether clients of this server still wait for a message.
function waiting.note(wait)
  local key = queue.base .. ':ext:waiting'
  if not wait then
    try('HDEL', key, the_call.identity)
    return
  end
  local noted = try('HGET', key, the_call.identity)
  if type(noted) ~= 'table' and noted and age_of(noted) <= NOTE_LIFETIME / 2 then return end
  local notes = try('HGETALL', key)
  for i = 1, notes.err and 0 or #notes, 2 do
    if age_of(notes[i + 1]) > NOTE_LIFETIME then try('HDEL', key, notes[i]) end
  end
  try('HSET', key, the_call.identity, math.floor(the_call.clock() / 1000))
end

return waiting
