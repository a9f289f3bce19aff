-- The state of one queue: read when the script enters the queue, and updated with every change that it makes.
--
-- Takes    a base key, ${PREFIX}:${queue}
--          ARGV[HEADER_IDENTITY]  this server's identity, written to :producer or :consumer when it acts
--          ARGV[HEADER_OVERFLOW]  what a put on a full queue does if the queue has no setting of its own
-- Touches  the 12 keys of pressure 0.15. A script is atomic, so it need not take a role's token: it only
--          checks that the token is there.
--          :ext:producer_turn, :ext:consumer_turn  the token of a role while a pressure-server has its turn.
--          The server waited for it in line with native clients; no other client takes it (backend/turns.py)
--          :ext:settings  a hash: 'overflow' (block, error or overwrite), 'implicit' if a put created the
--          queue; 'dropped': how many messages have been overwritten
--          :ext:made  when this script created the queue: tells it from earlier queues of that name; '-' if it
--          did not. Then, after a space, the queue's kind, unless it is a plain list: 'jobs', 'reserved' if clients
--          have reserved messages of a list (jobs.lua), 'log' (log.lua), or 'limited' for a list with a limit of
--          bytes (limits.lua)
--
-- All files are joined into one library, whose functions are created once, when the backend loads it. Its variables
-- live on from call to call: call.lua gives those of the call their values, and next_block (blocks.lua) those of the
-- block.

local KEYS, ARGV -- of the call
-- See jobs.lua, job_puts.lua, job_gets.lua and job_verbs.lua.
local open_jobs, begin_jobs, job_puts, job_gets, move_dead_letters
-- See limits.lua.
local max_bytes, is_full, own_key, set_kind
-- See garbage.lua.
local set_aside
-- See log.lua and groups.lua.
local begin_log, make_log, drop_passed, fill_group, settle_groups
local base
local queue = {}
local identity, default_overflow
local block -- see batch.lua
local changed -- whether the block has done anything that must not be done twice
local patient -- whether operations may be left undone, to wait or for another call
-- redis.call, and redis.pcall for commands after the first write: a key of the wrong type (which the doctor finds) must
-- not end the call.
local call, try

-- Redis's Lua can pass about 8000 values to one call.
local CHUNK = 4000

local function read_queue(key)
  base = key
  local values = call('MGET', base .. ':bound', base .. ':producer', base .. ':consumer', base .. ':ext:index',
    base .. ':stats:consumed_messages', base .. ':ext:made')
  -- Reuse one table: a new one for each queue takes half a microsecond.
  queue.bound = values[1] and (tonumber(values[1]) or 0) -- false: there is no such queue
  queue.producer, queue.consumer, queue.index = values[2], values[3], values[4]
  queue.consumed, queue.made, queue.turn = tonumber(values[5]) or 0, values[6], nil
  queue.max_bytes = nil
  queue.kind, queue.jobs, queue.groups, queue.has_new, queue.returned = nil, nil, nil, nil, 0
  if queue.made and string.byte(queue.made, -1) > 57 then -- does not end in a digit
    queue.made, queue.kind = string.match(queue.made, '^(%S+) (%l+)$')
    queue.made = queue.made ~= '-' and queue.made
  end
  queue.length = call('LLEN', base)
end

-- What read_name has returned, by the name of the run.
local names = {}

-- Return the verb of a run's name, and its options as a set of words.
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

-- Run `command key value…` for any number of values; return the sum of the replies.
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

-- Run `command key name…` for any number of names; return the list of the values.
local function values_of_all(command, key, names)
  local count = #names
  if count <= CHUNK then
    return count > 0 and call(command, key, unpack(names)) or {}
  end
  local found = {}
  for first = 1, count, CHUNK do
    for _, value in ipairs(call(command, key, unpack(names, first, math.min(first + CHUNK - 1, count)))) do
      found[#found + 1] = value
    end
  end
  return found
end

local function sum_of_bytes(messages)
  local bytes = 0
  for i = 1, #messages do
    bytes = bytes + #(messages[i] or '') -- false: a message of a log that is gone
  end
  return bytes
end

-- Return an error if a native client holds the role ('producer' or 'consumer'), else nil.
local function in_use(role)
  if call('EXISTS', base .. ':' .. role .. '_free') == 1 then
    return nil
  end
  queue.turn = call('EXISTS', base .. ':ext:' .. role .. '_turn') == 1
  if not queue.turn then
    -- A pressure-server's name is out of date: the client that took the role has not written its own yet.
    local name = queue[role] or ''
    return { err = 'INUSE ' .. role .. ' ' .. (string.sub(name, 1, 16) == 'pressure-server:' and '' or name) }
  end
end

-- End a turn. Any pressure-server that acts in the role does so: the server whose turn it was may be dead.
local function end_turn(role)
  return try('LMOVE', base .. ':ext:' .. role .. '_turn', base .. ':' .. role .. '_free', 'RIGHT', 'LEFT')
end

local function overflow()
  return call('HGET', base .. ':ext:settings', 'overflow') or default_overflow
end

-- Return whether the queue is closed, and nothing will come out of it any longer: reserved jobs may.
local function is_finished()
  return queue.length == 0 and call('EXISTS', base .. ':closed') == 1
    and call('EXISTS', base .. ':ext:ready', base .. ':ext:delayed', base .. ':ext:reserved') == 0
end

local function act_as(role)
  if queue[role] ~= identity then
    call('SET', base .. ':' .. role, identity)
    queue[role] = identity
  end
end

-- Keep exactly one :not_full token if there is room, else none (pressure 0.15, Put and Get, last steps).
-- Exception: a native consumer that has taken a message from a full queue pushes the token itself.
local function settle_not_full()
  local key = base .. ':not_full'
  if is_full() then
    try('DEL', key)
    return
  end
  local tokens = try('LLEN', key)
  if type(tokens) ~= 'number' then
    return -- not a list: the doctor finds that; the put or get stands
  elseif tokens == 0 then
    local is_used = queue.producer or queue.consumer or queue.kind -- else a native client may be creating it
    if is_used and (queue.bound == 0 and not max_bytes() or try('EXISTS', base .. ':consumer_free') == 1) then
      try('LPUSH', key, 1)
    end
  elseif tokens > 1 then
    try('LTRIM', key, 0, 0)
  end
end

-- Count messages as 'produced' or 'consumed' after they have been put or taken.
local function count_as(verb, messages, bytes)
  if queue.turn then
    end_turn(verb == 'produced' and 'producer' or 'consumer')
  end
  if verb == 'consumed' then
    queue.consumed = queue.consumed + messages
  end
  changed = true
  -- Redis 7.0 would get -0 as an argument, and refuse it.
  try('INCRBY', base .. ':stats:' .. verb .. '_messages', 0 + messages)
  try('INCRBY', base .. ':stats:' .. verb .. '_bytes', 0 + bytes)
end
