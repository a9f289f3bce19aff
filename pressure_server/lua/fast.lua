-- The calls that matter most, done without making a function, on a queue with free roles and room that only we
-- use: one run, of puts of one message each or of gets; or two, of which the first waits on an empty queue for
-- what the second puts; or one get that finds it empty. Unique puts need an exact mirror, and plain ones none; a get
-- either. Everything else is left to the files below, which do the same and more.
--
-- Returns  what a block returns (batch.lua), or nil for everything else; 'new' stands for the counts if every
--          message was
--
-- Microseconds a block, on a machine where an empty script takes 4: alone in its call, a put takes 37 here and 84
-- below, a get 45 and 80; among 100 of them a put takes 12 and 19, a get 15 and 19.

-- What a get may take here: more is for the general path, which looks at the bytes every so many messages.
local FAST_GET_MESSAGES, FAST_GET_BYTES = 1000, 1048576

local function do_fast()
  local at, how = block.first, block.how
  local name, count = ARGV[at], block.last - at + 1
  if not queue.bound then
    return nil
  end
  -- What mirror.lua has written, if nothing is unmirrored or stale and nobody else has been here since.
  local length, index = queue.length, queue.index
  local consumer = queue.consumer
  local done = queue.bound > 0 and -1 or 0
  local exact = index and queue.producer == identity and (consumer or identity) == identity
    and index == string.format('%d 0 %d %d %s %s', length, length, queue.consumed, identity, consumer or '')
  local waits = name == 'get waits' or name == 'get existing waits'
  local closed = base .. ':closed'

  -- Nothing to take.
  if length == 0 and count == 3 and (name == 'get' or name == 'get flags') then
    return keep({ done, {} })
  end

  -- Nothing to take yet. Who waits for a message uses the queue (life.lua).
  if length == 0 and waits and count == 3 and how == ''
    and call('EXISTS', base .. ':consumer_free', closed, closed) == 1 then
    call('HDEL', base .. ':ext:settings', 'since')
    return keep({ done, {} })
  end

  -- From hand to hand: the message is never queued.
  if length == 0 and name == 'get existing waits' and count == 7 and ARGV[at + 4] == '2'
    and (ARGV[at + 3] == 'put' or ARGV[at + 3] == 'put unique') and how == '' and (exact or not index)
    and queue.producer == identity and consumer == identity
    and call('EXISTS', base .. ':producer_free', base .. ':consumer_free', base .. ':not_full', closed, closed,
      closed, closed) == 3 then
    local message = ARGV[at + 6]
    for _, verb in ipairs({ ':stats:produced_', ':stats:consumed_' }) do
      try('INCR', base .. verb .. 'messages')
      try('INCRBY', base .. verb .. 'bytes', #message)
    end
    if index then
      try('SET', base .. ':ext:index', string.format('0 0 0 %d %s %s', queue.consumed + 1, identity, identity))
    end
    changed = true
    note_taken(2)
    return keep({ done, { message }, ARGV[at + 3] == 'put' and 0 or 'new' })
  end

  if not (exact or not index) or count ~= 2 + tonumber(ARGV[at + 1]) then
    return nil
  end
  local members, result, verb, accepted, bytes = base .. ':ext:members', nil, nil, 0, 0
  count = count - 3

  if exact and (name == 'put unique' or name == 'put unique now') and ARGV[at + 2] == '' and count < CHUNK
    -- With the :not_full token kept: the last place of a bounded queue is for the general path.
    and (queue.bound == 0 or length + count < queue.bound)
    -- Both tokens and no :closed, which counts thrice.
    and call('EXISTS', base .. ':producer_free', base .. ':not_full', closed, closed, closed) == 2 then
    local messages, added
    if count == 1 then
      local message = ARGV[at + 3]
      added = call('SADD', members, message)
      if added == 1 then
        call('LPUSH', base, message)
        bytes = #message
      end
      result, accepted = added == 1 and 'new' or { 0 }, added
    else
      messages = { unpack(ARGV, at + 3, block.last) }
      local present = call('SMISMEMBER', members, unpack(messages))
      local all_new = true
      for i = 1, count do
        all_new = all_new and present[i] == 0
      end
      added = all_new and call('SADD', members, unpack(messages))
      result = 'new'
      if added ~= count then
        -- Some are queued already, or given twice. What SADD has added is right either way.
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
        bytes = sum_of_bytes(messages)
      end
    end
    if accepted == 0 then
      return keep({ done, result })
    end
    verb, length = 'produced', length + accepted
  elseif not index and (name == 'put' or name == 'put now') and ARGV[at + 2] == '' and count < CHUNK
    and queue.producer == identity and (queue.bound == 0 or length + count < queue.bound)
    and call('EXISTS', base .. ':producer_free', base .. ':not_full', closed, closed, closed) == 2 then
    local messages = { unpack(ARGV, at + 3, block.last) }
    call('LPUSH', base, unpack(messages))
    verb, result, accepted, bytes = 'produced', length, count, sum_of_bytes(messages)
    length = length + count
  elseif length > 0 and (consumer or identity) == identity and (name == 'get' or name == 'get flags' or waits and how == '') then
    local wanted = tonumber(ARGV[at + 2])
    if wanted < 1 or wanted > FAST_GET_MESSAGES or (waits and length < wanted)
      or (wanted > 1 and wanted * #call('LINDEX', base, -1) > FAST_GET_BYTES)
      or call('EXISTS', base .. ':consumer_free', base .. ':not_full', base .. ':ext:marks', base .. ':ext:marks',
        base .. ':ext:marks', base .. ':ext:copies', base .. ':ext:copies', base .. ':ext:copies') ~= 2 then
      return nil
    end
    result = call('RPOP', base, wanted)
    verb, accepted, bytes = 'consumed', #result, sum_of_bytes(result)
    if not consumer then
      try('SET', base .. ':consumer', identity)
      consumer = identity
    end
    if exact then try('SREM', members, unpack(result)) end
    answered_in_call, work = answered_in_call + bytes, work + MESSAGE * accepted
    note_taken(name == 'get flags' and { marked = 2 } or 2)
    if name == 'get flags' then
      result[accepted + 1] = '' -- no flags (get.lua)
    end
    length, queue.consumed = length - accepted, queue.consumed + accepted
  else
    return nil
  end

  local statistics = base .. ':stats:' .. verb
  if accepted == 1 then
    try('INCR', statistics .. '_messages')
  else
    try('INCRBY', statistics .. '_messages', accepted)
  end
  try('INCRBY', statistics .. '_bytes', bytes)
  if exact then
    -- An error must not end the block here: what has been taken is not recorded yet.
    try('SET', base .. ':ext:index', string.format('%d 0 %d %d %s %s', length, length, queue.consumed, identity,
      consumer or ''))
  end
  changed = true
  return keep({ done, result })
end

-- Whether the block needs memory, and the backend has none left: Redis refuses only the first write of a script.
local function is_refused()
  local at = block.first
  while out_of_memory and at <= block.last do
    local verb = read_name(ARGV[at])
    if verb == 'put' or verb == 'move' or verb == 'create' then
      return true
    end
    at = at + 2 + tonumber(ARGV[at + 1])
  end
  return false
end

-- Returns the reply of the block, or nil if that takes the files below.
local function begin()
  begin_records()
  if block.how == 'recover' or block.how == 'cut' then
    return nil
  elseif is_refused() then
    return { err = out_of_memory }
  end
  read_queue(block.home)
  return do_fast()
end

-- Does the block that has begun, and those after it, while they are fast. Returns whether one is left.
local function do_while_fast()
  repeat
    local is_done, answer = pcall(begin)
    if is_done and not answer then
      return true
    end
    call_changed = call_changed or changed
    replies[#replies + 1] = is_done and answer or error_reply(answer)
    work = work + FAST_BLOCK + MESSAGE * (block.last - block.first)
  until is_long_enough() or not next_block()
  return false
end

local refused = begin_call()
if refused then
  return refused
end
is_shared = next_block() and next_argument <= #ARGV
local is_left = next_argument > HEADER_SIZE + 1 and do_while_fast() -- whether there is more to do
if not is_left then
  local reply = end_call()
  if reply then
    return reply
  end
end
