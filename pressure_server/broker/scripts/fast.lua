-- The calls that matter most, done without making a function, on a queue with free roles and room that only we
-- use: one run, of puts of one message each or of one get; or two, of which the first waits on an empty queue for
-- what the second puts; or one that finds it empty. Unique puts need an exact mirror, and plain ones none; a get
-- either. Everything else is left to the files below, which do the same and more.
--
-- Returns  what a block returns (batch.lua), or nil for everything else; 'new' stands for the counts where every
--          message was
--
-- A block with one message takes 13 microseconds here and 28 below; in a call with many, each takes 0.9 and 1.9.

local function do_fast()
  local at = block.first
  local name, count = ARGV[at], block.last - at + 1
  -- What mirror.lua has written, if nothing is unmirrored or stale and nobody else has been here since.
  local done = queue.bound and (queue.bound > 0 and -1 or 0)
  local exact = queue.bound and queue.producer == identity and (queue.consumer or identity) == identity
    and queue.index == string.format('%d 0 %d %d %s %s', queue.length, queue.length, queue.consumed, identity,
      queue.consumer or '')

  -- Nothing to take yet. Who waits for a message uses the queue (life.lua).
  if queue.length == 0 and queue.bound and (name == 'take' or name == 'take existing') and count == 3
    and block.how == '' and call('EXISTS', base .. ':consumer_free', base .. ':closed', base .. ':closed') == 1 then
    call('HDEL', base .. ':ext:settings', 'since')
    return keep({ done, {} })
  end

  -- From hand to hand: the message is never queued.
  if queue.length == 0 and queue.bound and name == 'take existing' and count == 7 and ARGV[at + 4] == '2'
    and (ARGV[at + 3] == 'put' or ARGV[at + 3] == 'add') and block.how == '' and (exact or not queue.index)
    and queue.producer == identity and queue.consumer == identity
    and call('EXISTS', base .. ':producer_free', base .. ':consumer_free', base .. ':not_full', base .. ':closed',
      base .. ':closed', base .. ':closed', base .. ':closed') == 3 then
    local message = ARGV[at + 6]
    for _, verb in ipairs({ ':stats:produced_', ':stats:consumed_' }) do
      try('INCR', base .. verb .. 'messages')
      try('INCRBY', base .. verb .. 'bytes', #message)
    end
    if queue.index then
      try('SET', base .. ':ext:index', string.format('0 0 0 %d %s %s', queue.consumed + 1, identity, identity))
    end
    changed = true
    note_taken(2)
    return keep({ done, { message }, ARGV[at + 3] == 'put' and 0 or 'new' })
  end

  local without_mirror = queue.bound and not queue.index

  if (exact or without_mirror) and count == 2 + tonumber(ARGV[at + 1]) then
    local members, result, verb, accepted, bytes = base .. ':ext:members', nil, nil, 0, 0
    count = count - 3

    if exact and (name == 'add' or name == 'add now') and ARGV[at + 2] == '' and count < CHUNK
      -- With the :not_full token kept: the last place of a bounded queue is for the general path.
      and (queue.bound == 0 or queue.length + count < queue.bound)
      -- Both tokens and no :closed, which counts thrice.
      and call('EXISTS', base .. ':producer_free', base .. ':not_full',
        base .. ':closed', base .. ':closed', base .. ':closed') == 2 then
      local messages = { unpack(ARGV, at + 3, block.last) }
      local present = count > 1 and call('SMISMEMBER', members, unpack(messages)) or { 0 }
      local all_new = true
      for i = 1, count do
        all_new = all_new and present[i] == 0
      end
      local added = all_new and call('SADD', members, unpack(messages))
      verb, result = 'produced', 'new'
      if added ~= count then
        -- Some are queued already, or given twice. What SADD has added is right either way.
        local new, seen = {}, {}
        result = {}
        for i = 1, count do
          local message = messages[i]
          local is_new = present[i] == 0 and not seen[message] and added ~= 0
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
      if accepted == 0 then
        return keep({ done, result })
      end
      call('LPUSH', base, unpack(messages))
      bytes = sum_of_bytes(messages)
      queue.length = queue.length + accepted
    elseif without_mirror and (name == 'put' or name == 'put now') and ARGV[at + 2] == '' and count < CHUNK
      and queue.producer == identity and (queue.bound == 0 or queue.length + count < queue.bound)
      and call('EXISTS', base .. ':producer_free', base .. ':not_full',
        base .. ':closed', base .. ':closed', base .. ':closed') == 2 then
      local messages = { unpack(ARGV, at + 3, block.last) }
      call('LPUSH', base, unpack(messages))
      verb, result, accepted, bytes = 'produced', queue.length, count, sum_of_bytes(messages)
      queue.length = queue.length + count
    elseif (name == 'get' or name == 'get_marked') and queue.consumer == identity and ARGV[at + 2] == '1'
      and queue.length > 0
      and call('EXISTS', base .. ':consumer_free', base .. ':not_full', base .. ':ext:marks', base .. ':ext:marks',
        base .. ':ext:marks', base .. ':ext:copies', base .. ':ext:copies', base .. ':ext:copies') == 2 then
      result = call('RPOP', base, 1)
      if exact then try('SREM', members, result[1]) end
      verb, accepted, bytes = 'consumed', 1, #result[1]
      answered_in_call = answered_in_call + bytes
      if name == 'get_marked' then
        result[2] = '' -- no flags (get.lua)
      end
      note_taken(name == 'get_marked' and { marked = 2 } or 2)
      queue.length, queue.consumed = queue.length - 1, queue.consumed + 1
    end

    if verb then
      try('INCRBY', base .. ':stats:' .. verb .. '_messages', accepted)
      try('INCRBY', base .. ':stats:' .. verb .. '_bytes', bytes)
      if exact then
        -- An error must not end the block here: what has been taken is not recorded yet.
        try('SET', base .. ':ext:index', string.format('%d 0 %d %d %s %s', queue.length, queue.length, queue.consumed,
          identity, queue.consumer or ''))
      end
      changed = true
      return keep({ done, result })
    end
  end
end

-- Whether the block needs memory, and the backend has none left: Redis refuses only the first write of a script.
local function is_refused()
  local at = block.first
  while out_of_memory and at <= block.last do
    local verb = string.match(ARGV[at], '^[%l_]+')
    if verb == 'put' or verb == 'add' or verb == 'put_marked' or verb == 'add_marked' or verb == 'move'
      or verb == 'create' then
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
