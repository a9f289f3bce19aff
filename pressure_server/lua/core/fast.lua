-- The fast path: the most frequent blocks, done without creating a function. The queue's roles are free, and
-- only this server uses it. Such a block is one run of one-message puts that fit, or that replace others in a
-- ring; one run of gets; a waiting get on an empty queue and the put that serves it; or a get on an empty queue.
-- Unique puts need an exact mirror, plain puts need a queue without one, gets accept either. Of a log, only plain
-- puts are done here, and only while no group reads it. The general path (batch.lua) can do all blocks.
--
-- Returns  the reply of the block (batch.lua), or nil for any other block; 'new' replaces the counts if all
--          messages were new
--
-- Microseconds for a block (an empty script takes 4). Alone in its call: a put takes 37, on the general path
-- 84; a get 45, general 80. Among 100 blocks: a put 12, general 19; a get 15, general 19.

local the_call = require 'core/call'
local block = require 'core/blocks'
local commands = require 'core/commands'
local queue = require 'core/queue'
local records = require 'core/records'

local fast = {}
-- Limits of a fast get. Larger gets take the general path, which checks the bytes after every portion.
local GET_MESSAGES, GET_BYTES = 1000, 1048576
-- PRESSURE.PUT also leaves one :not_full token of two, which clients of pressure 0.1 may leave in a bounded queue.
local FAST_PUTS = { ['put'] = true, ['put now'] = true, ['put existing'] = true }

-- Return 'below' if so many more messages leave the queue below its bound: the put that fills it must also
-- remove the :not_full token (general path). Return 'ring' if they replace the oldest ones of a full queue, which
-- nobody else consumes. Otherwise return false.
local function room_for(count)
  local base, identity = queue.base, the_call.identity
  local closed, length = base .. ':closed', queue.length
  -- Two tokens must exist, and other keys must not: these are asked for three times, so the sum tells.
  if queue.bound == 0 or length + count < queue.bound then
    return call('EXISTS', base .. ':producer_free', base .. ':not_full', closed, closed, closed) == 2 and 'below'
  end
  local full, marks, copies = base .. ':not_full', base .. ':ext:marks', base .. ':ext:copies'
  return length == queue.bound and count <= length and (queue.consumer or identity) == identity
    and call('HGET', base .. ':ext:settings', 'overflow') == 'overwrite'
    and call('EXISTS', base .. ':producer_free', base .. ':consumer_free', full, full, full, closed, closed, closed,
      marks, marks, marks, copies, copies, copies) == 2 and 'ring'
end

-- Drop the oldest messages of a ring (get.lua).
local function drop_from_ring(count, members)
  local base = queue.base
  local dropped = call('RPOP', base, count)
  if members then try('SREM', members, unpack(dropped)) end
  try('INCRBY', base .. ':stats:consumed_messages', count)
  try('INCRBY', base .. ':stats:consumed_bytes', commands.sum_of_bytes(dropped))
  try('HINCRBY', base .. ':ext:settings', 'dropped', count)
  if not queue.consumer then try('SET', base .. ':consumer', the_call.identity) end
  queue.consumed = queue.consumed + count
end

-- Do the block. Return its reply, or nil.
local function do_fast()
  local arguments, base, identity = the_call.arguments, queue.base, the_call.identity
  local at, how = block.first, block.how
  local name, count = arguments[at], block.last - at + 1
  local is_log = queue.kind.has_groups
  if not queue.bound or queue.word and not is_log then
    return nil
  end
  -- `exact`: nothing is unmirrored or stale, and no other client has acted since mirror.lua wrote the index.
  local length, index = queue.length, queue.index
  local consumer = queue.consumer
  local done = queue.bound > 0 and -1 or 0
  local exact = index and queue.producer == identity and (consumer or identity) == identity
    and index == string.format('%d 0 %d %d %s %s', length, length, queue.consumed, identity, consumer or '')
  local waits = name == 'get waits' or name == 'get existing waits'
  local closed = base .. ':closed'

  -- There is nothing to take.
  if length == 0 and not is_log and count == 3 and (name == 'get' or name == 'get flags') then
    return records.keep({ done, {} })
  end

  -- There is nothing to take yet. A waiting client counts as use of the queue (life.lua).
  if length == 0 and not is_log and waits and count == 3 and how == ''
    and call('EXISTS', base .. ':consumer_free', closed, closed) == 1 then
    call('HDEL', base .. ':ext:settings', 'since')
    return records.keep({ done, {} })
  end

  -- Pass the message directly to the waiting get: it is never queued.
  if length == 0 and not is_log and name == 'get existing waits' and count == 7 and arguments[at + 4] == '2'
    and (arguments[at + 3] == 'put' or arguments[at + 3] == 'put unique') and how == '' and (exact or not index)
    and queue.producer == identity and consumer == identity
    and call('EXISTS', base .. ':producer_free', base .. ':consumer_free', base .. ':not_full', closed, closed,
      closed, closed) == 3 then
    local message = arguments[at + 6]
    for _, verb in ipairs({ ':stats:produced_', ':stats:consumed_' }) do
      try('INCR', base .. verb .. 'messages')
      try('INCRBY', base .. verb .. 'bytes', #message)
    end
    if index then
      try('SET', base .. ':ext:index', string.format('0 0 0 %d %s %s', queue.consumed + 1, identity, identity))
    end
    block.changed = true
    records.note_taken(2)
    return records.keep({ done, { message }, arguments[at + 3] == 'put' and 0 or 'new' })
  end

  if not (exact or not index) or count ~= 2 + tonumber(arguments[at + 1]) then
    return nil
  end
  local members, result, verb, accepted, bytes = base .. ':ext:members', nil, nil, 0, 0
  count = count - 3

  local adds = exact and (name == 'put unique' or name == 'put unique now')
  local puts = not index and queue.producer == identity
    and (FAST_PUTS[name] and (name ~= 'put existing' or queue.bound == 0) or is_log and name == 'put existing offset')
  if is_log and not (puts and call('EXISTS', base .. ':ext:groups') == 0) then
    return nil
  end
  local room = (adds or puts) and arguments[at + 2] == '' and count < commands.CHUNK and room_for(count)

  if adds and room then
    local messages, added
    if count == 1 then
      local message = arguments[at + 3]
      added = call('SADD', members, message)
      if added == 1 then
        call('LPUSH', base, message)
        bytes = #message
      end
      result, accepted = added == 1 and 'new' or { 0 }, added
    else
      messages = { unpack(arguments, at + 3, block.last) }
      local present = call('SMISMEMBER', members, unpack(messages))
      local all_new = true
      for i = 1, count do
        all_new = all_new and present[i] == 0
      end
      added = all_new and call('SADD', members, unpack(messages))
      result = 'new'
      if added ~= count then
        -- Some messages are queued already, or are repeated here. What SADD has added is right either way.
        local new, seen = {}, {}
        result = {}
        for i = 1, count do
          local message = messages[i]
          local is_new = present[i] == 0 and not seen[message]
          if is_new then
            seen[message] = true
            new[#new + 1] = message
          end
          result[i] = is_new and 1 or 0
        end
        messages = new
        if #messages > 0 and not all_new then
          call('SADD', members, unpack(messages))
        end
      end
      accepted = #messages
      if accepted > 0 then
        call('LPUSH', base, unpack(messages))
        bytes = commands.sum_of_bytes(messages)
      end
    end
    if accepted == 0 then
      return records.keep({ done, result })
    end
    verb, length = 'produced', length + accepted
  elseif puts and room then
    local messages = { unpack(arguments, at + 3, block.last) }
    call('LPUSH', base, unpack(messages))
    verb, result, accepted, bytes = 'produced', length, count, commands.sum_of_bytes(messages)
    if name == 'put existing offset' then
      result = {}
      for i = 1, count do result[i] = queue.consumed + length + i - 1 end
    elseif room == 'ring' then
      result = {}
      for i = 1, count do result[i] = length end
    end
    length = length + count
  elseif length > 0 and (consumer or identity) == identity and (name == 'get' or name == 'get flags' or waits and how == '') then
    local wanted = tonumber(arguments[at + 2])
    if wanted < 1 or wanted > GET_MESSAGES or (waits and length < wanted)
      or (wanted > 1 and wanted * #call('LINDEX', base, -1) > GET_BYTES)
      or call('EXISTS', base .. ':consumer_free', base .. ':not_full', base .. ':ext:marks', base .. ':ext:marks',
        base .. ':ext:marks', base .. ':ext:copies', base .. ':ext:copies', base .. ':ext:copies') ~= 2 then
      return nil
    end
    result = call('RPOP', base, wanted)
    verb, accepted, bytes = 'consumed', #result, commands.sum_of_bytes(result)
    if not consumer then
      try('SET', base .. ':consumer', identity)
      consumer = identity
    end
    if exact then try('SREM', members, unpack(result)) end
    the_call.answered, the_call.work = the_call.answered + bytes, the_call.work + the_call.MESSAGE * accepted
    records.note_taken(name == 'get flags' and { marked = 2 } or 2)
    if name == 'get flags' then
      result[accepted + 1] = '' -- no flags (get.lua)
    end
    length, queue.consumed = length - accepted, queue.consumed + accepted
  else
    return nil
  end

  if room == 'ring' then
    drop_from_ring(accepted, exact and members)
    consumer, length = identity, length - accepted
    done = 0 -- as without a bound: puts into a ring do not wait, so a client's next commands need not wait for them
  end
  local statistics = base .. ':stats:' .. verb
  if accepted == 1 then
    try('INCR', statistics .. '_messages')
  else
    try('INCRBY', statistics .. '_messages', accepted)
  end
  try('INCRBY', statistics .. '_bytes', bytes)
  if exact then
    -- An error must not end the block here: the messages taken are not recorded yet.
    try('SET', base .. ':ext:index', string.format('%d 0 %d %d %s %s', length, length, queue.consumed, identity,
      consumer or ''))
  end
  block.changed = true
  return records.keep({ done, result })
end

-- Return whether the backend is out of memory and the block needs some.
local function is_refused()
  local arguments, at = the_call.arguments, block.first
  while the_call.full and at <= block.last do
    local verb = block.read_name(arguments[at])
    if verb == 'put' or verb == 'move' or verb == 'create' then
      return true
    end
    at = at + 2 + tonumber(arguments[at + 1])
  end
  return false
end

-- Begin the block. Return its reply, or nil if it needs the general path.
local function begin()
  if block.how == 'recover' or block.how == 'cut' then
    return nil
  elseif the_call.full and is_refused() then
    return { err = the_call.full }
  end
  queue.read(block.home)
  return do_fast()
end

-- Do the current block and those after it while they are fast. Return whether one needs the general path.
function fast.do_blocks()
  local replies = the_call.replies
  repeat
    local is_done, answer = pcall(begin)
    if is_done and not answer then
      return true
    end
    the_call.changed = the_call.changed or block.changed
    replies[#replies + 1] = is_done and answer or the_call.error_reply(answer)
    the_call.work = the_call.work + the_call.FAST_BLOCK + the_call.MESSAGE * (block.last - block.first)
  until the_call.is_long_enough() or not block.next()
  return false
end

return fast
