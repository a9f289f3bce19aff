-- The state of one queue, read once when the script comes to it and kept here while it works on it.
--
-- Takes    a base key, ${PREFIX}:${queue}
--          ARGV[HEADER_IDENTITY]  our identity, written to :producer and :consumer when we act in that role
--          ARGV[HEADER_OVERFLOW]  what a put on a full queue does where the queue has no setting of its own
-- Touches  the 12 keys of pressure 0.15. A script is atomic, so a role is taken and given back without
--          anyone seeing it: we only look whether its token is there.
--          :ext:producer_turn, :ext:consumer_turn  a token that a server of ours has waited for in line
--          with native clients, parked where no other takes it (backend/turns.py)
--          :ext:settings  a hash: 'overflow' (block or error), 'implicit' where a put made the queue
--          :ext:made  when we made the queue, which tells it from others that had its name
--
-- The files are put together into one script, and Lua makes every function anew in each call. So functions are
-- made by those who need them: 19 microseconds became 5. What a block of the call (batch.lua) works on is set
-- when the block begins.

local base
local queue = {}
local identity = ARGV[HEADER_IDENTITY]
local default_overflow = ARGV[HEADER_OVERFLOW]
local block = { how = '' } -- what is being done: see batch.lua
local changed = false -- whether the block has done anything that must not be done twice
local patient = true -- whether operations may be left undone, for want of something or for another call
local call = redis.call
-- For what follows the first write: a key of a wrong type, which the doctor finds, must not end a call there.
local try = redis.pcall

-- Redis's Lua can hand about 8000 values to one call.
local CHUNK = 4000

local function read_queue(key)
  base = key
  local values = call('MGET', base .. ':bound', base .. ':producer', base .. ':consumer', base .. ':ext:index',
    base .. ':stats:consumed_messages', base .. ':ext:made')
  -- One table for all: making one for each queue takes half a microsecond.
  queue.bound = values[1] and (tonumber(values[1]) or 0) -- false: there is no such queue
  queue.producer, queue.consumer, queue.index = values[2], values[3], values[4]
  queue.consumed, queue.made, queue.turn = tonumber(values[5]) or 0, values[6], nil
  queue.length = call('LLEN', base)
end

-- The names of runs that the call has had so far, with what read_name returns.
local names = {}

-- Returns the verb of a run's name, and its options as a set of words.
local function read_name(name)
  local about = names[name]
  if not about then
    local verb, words = string.match(name, '^(%S+) ?(.*)$')
    about = { verb, {} }
    for word in string.gmatch(words, '%S+') do about[2][word] = true end
    names[name] = about
  end
  return about[1], about[2]
end

-- command key value..., however many values there are; the sum of the replies.
local function call_with_all(command, key, values)
  local count = #values
  if count <= CHUNK then
    return call(command, key, unpack(values))
  end
  local sum = 0
  for first = 1, count, CHUNK do
    sum = sum + call(command, key, unpack(values, first, math.min(first + CHUNK - 1, count)))
  end
  return sum
end

local function sum_of_bytes(messages)
  local bytes = 0
  for i = 1, #messages do
    bytes = bytes + #messages[i]
  end
  return bytes
end

-- Why we may not act in a role ('producer' or 'consumer') now, or nil.
local function in_use(role)
  if call('EXISTS', base .. ':' .. role .. '_free') == 1 then
    return nil
  end
  queue.turn = call('EXISTS', base .. ':ext:' .. role .. '_turn') == 1
  if not queue.turn then
    -- The name of a server of ours is from before: a client that has just taken the role has not written its own.
    local name = queue[role] or ''
    return { err = 'INUSE ' .. role .. ' ' .. (string.sub(name, 1, 16) == 'pressure-server:' and '' or name) }
  end
end

-- Whoever acts in a turn ends it, also where the server that waited for it has died.
local function end_turn(role)
  return try('LMOVE', base .. ':ext:' .. role .. '_turn', base .. ':' .. role .. '_free', 'RIGHT', 'LEFT')
end

local function overflow()
  return call('HGET', base .. ':ext:settings', 'overflow') or default_overflow
end

local function act_as(role)
  if queue[role] ~= identity then
    call('SET', base .. ':' .. role, identity)
    queue[role] = identity
  end
end

-- One :not_full token exactly when there is room (pressure 0.15, Put and Get, last steps). Only a native
-- consumer that has taken a message from a full queue, and is about to push the token, is left to do so.
local function settle_not_full()
  local key = base .. ':not_full'
  if queue.bound > 0 and queue.length >= queue.bound then
    call('DEL', key)
    return
  end
  local tokens = try('LLEN', key)
  if type(tokens) ~= 'number' then
    return -- no list, which the doctor finds; what has been put or taken stays so
  elseif tokens == 0 then
    local is_used = queue.producer or queue.consumer -- else a native client may be creating it
    if is_used and (queue.bound == 0 or call('EXISTS', base .. ':consumer_free') == 1) then
      call('LPUSH', key, 1)
    end
  elseif tokens > 1 then
    call('LTRIM', key, 0, 0)
  end
end

-- Statistics: `verb` is 'produced' or 'consumed'. It has been done by now.
local function count_as(verb, messages, bytes)
  if queue.turn then
    end_turn(verb == 'produced' and 'producer' or 'consumer')
  end
  if verb == 'consumed' then
    queue.consumed = queue.consumed + messages
  end
  changed = true
  try('INCRBY', base .. ':stats:' .. verb .. '_messages', messages)
  try('INCRBY', base .. ':stats:' .. verb .. '_bytes', bytes)
end
