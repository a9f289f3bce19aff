-- The fast path: the most frequent blocks, most of one run, without the parts of the general path (batch.lua), which can
-- do all blocks. The queue is a list, its roles are free, and only this server uses it. Of a log, only plain puts are
-- done here, and only while no group reads it; of a list with reserved messages, only acknowledgements followed by one
-- pop or reserve (kinds/list_worker.lua).
-- docs/performance.md says what that saves.
--
-- Returns  the reply of the block (batch.lua), or nil for any other block; 'new' replaces the counts if all
--          messages were new

local records = require 'core/records'

-- Limits of a fast get. Larger gets take the general path, which checks the bytes after every portion.
local fast = { GET_MESSAGES = 1000 }
local GET_BYTES = 1048576
local FAST_BLOCK, MESSAGE, CHUNK = the_call.FAST_BLOCK, the_call.MESSAGE, commands.CHUNK
local sum_of_bytes = commands.sum_of_bytes

-- Return the index (mirror.lua) of a mirror in which nothing is missing or stale.
local function exact_index(length, consumer)
  local identity = the_call.identity
  return string.format('%d 0 %d %d %s %s', length, length, queue.consumed, identity, consumer or '')
end

-- Return whether the mirror is exact, and no other client has acted since it was written.
function fast.is_exact()
  local consumer, identity = queue.consumer, the_call.identity
  return queue.producer == identity and (not consumer or consumer == identity)
    and queue.index == exact_index(queue.length, consumer)
end

-- Count messages, and write the index if there is one. Return the reply; `waits` says whether puts may wait for room.
function fast.reply(result, verb, messages, bytes, length, waits)
  local base = queue.base
  local statistic = base .. (verb == 'produced' and ':stats:produced_' or ':stats:consumed_')
  if messages == 1 then
    try('INCR', statistic .. 'messages')
  else
    try('INCRBY', statistic .. 'messages', messages)
  end
  try('INCRBY', statistic .. 'bytes', bytes)
  if queue.index then
    -- An error must not end the block here: the messages taken are not recorded yet.
    try('SET', base .. ':ext:index', exact_index(length, queue.consumer))
  end
  block.changed = true
  return records.keep({ waits and -1 or 0, result })
end

-- Return whether commands of one message each may put `count` messages, and leave the queue below its bound: the put
-- that fills it must also remove the :not_full token.
local function may_put(count)
  local base = queue.base
  if the_call.arguments[block.first + 2] ~= '' or count >= CHUNK or queue.producer ~= the_call.identity
    or queue.bound > 0 and queue.length + count >= queue.bound then
    return false
  end
  -- Two tokens must exist, and :closed must not: it is named three times, so the sum tells.
  local closed = base .. ':closed'
  return call('EXISTS', base .. ':producer_free', base .. ':not_full', closed, closed, closed) == 2
end

-- Return whether `count` messages may replace the oldest ones of a full ring from which only this server takes.
local function may_replace(count)
  local base, identity, length = queue.base, the_call.identity, queue.length
  if length == 0 or length ~= queue.bound or count > length or count >= CHUNK or queue.producer ~= identity
    or (queue.consumer or identity) ~= identity or the_call.arguments[block.first + 2] ~= ''
    or call('HGET', base .. ':ext:settings', 'overflow') ~= 'overwrite' then
    return false
  end
  local full, closed, marks, copies = base .. ':not_full', base .. ':closed', base .. ':ext:marks', base .. ':ext:copies'
  return call('EXISTS', base .. ':producer_free', base .. ':consumer_free', full, full, full, closed, closed, closed,
    marks, marks, marks, copies, copies, copies) == 2
end

-- Reply to a put. In a full ring, drop as many of the oldest messages. Puts into a ring do not wait.
local function reply_to_put(result, messages, is_ring)
  local base, count, length = queue.base, #messages, queue.length + #messages
  if is_ring then
    length = queue.length
    local dropped = call('RPOP', base, count)
    if queue.index then try('SREM', base .. ':ext:members', unpack(dropped)) end
    try('INCRBY', base .. ':stats:consumed_messages', count)
    try('INCRBY', base .. ':stats:consumed_bytes', sum_of_bytes(dropped))
    try('HINCRBY', base .. ':ext:settings', 'dropped', count)
    if not queue.consumer then try('SET', base .. ':consumer', the_call.identity) end
    queue.consumer, queue.consumed = the_call.identity, queue.consumed + count
  end
  return fast.reply(result, 'produced', count, sum_of_bytes(messages), length, queue.bound > 0 and not is_ring)
end

local function put(count)
  local length, base, is_ring = queue.length, queue.base, may_replace(count)
  local is_log = queue.word
  if queue.index or is_log and (call('EXISTS', base .. ':ext:groups') == 1
    or (call('HGET', base .. ':ext:settings', 'max_bytes') or '') ~= '') or not (is_ring or may_put(count)) then
    return nil
  end
  local first = block.first
  local messages = { unpack(the_call.arguments, first + 3, block.last) }
  call('LPUSH', base, unpack(messages))
  local result, has_offset = length, the_call.arguments[first] == 'put existing offset'
  if has_offset or is_ring then
    result = {}
    for i = 1, count do result[i] = has_offset and queue.consumed + length + i - 1 or length end
  end
  return reply_to_put(result, messages, is_ring)
end

-- A put into an existing queue takes the general path if there is a bound: clients of pressure 0.1 may have left two
-- :not_full tokens, of which that path leaves one.
local function put_existing(count)
  return queue.bound == 0 and put(count) or nil
end

local function put_offset(count) return queue.word and put(count) or nil end

local function put_unique(count)
  local base, members = queue.base, queue.base .. ':ext:members'
  if queue.word or not fast.is_exact() then return nil end
  local is_ring = may_replace(count)
  if not is_ring and not may_put(count) then
    return nil
  elseif count == 1 then
    local message = the_call.arguments[block.last]
    if call('SADD', members, message) == 0 then
      return records.keep({ queue.bound > 0 and not is_ring and -1 or 0, { 0 } })
    end
    call('LPUSH', base, message)
    return reply_to_put('new', { message }, is_ring)
  end
  local messages, seen = { unpack(the_call.arguments, block.first + 3, block.last) }, {}
  local present = call('SMISMEMBER', members, unpack(messages))
  for i = 1, count do
    local message = messages[i]
    if present[i] == 1 or seen[message] then return nil end
    seen[message] = true
  end
  call('SADD', members, unpack(messages))
  call('LPUSH', base, unpack(messages))
  return reply_to_put('new', messages, is_ring)
end

-- Return whether `wanted` messages may be taken: at least `least` are queued, none has marks, and none is queued twice.
function fast.may_take(wanted, least)
  local base, identity = queue.base, the_call.identity
  local marks, copies, due = base .. ':ext:marks', base .. ':ext:copies', base .. ':ext:due'
  return queue.length >= least and wanted >= 1 and wanted <= fast.GET_MESSAGES and (queue.consumer or identity) == identity
    and (not queue.index or fast.is_exact())
    and (wanted == 1 or wanted * #call('LINDEX', base, -1) <= GET_BYTES)
    and call('EXISTS', base .. ':consumer_free', base .. ':not_full', marks, marks, marks, copies, copies, copies,
      due, due, due) == 2
end

-- Take messages, if at least `least` are queued.
local function take(least)
  local base, length, wanted = queue.base, queue.length, tonumber(the_call.arguments[block.first + 2])
  local identity = the_call.identity
  if not fast.may_take(wanted, least) then return nil end
  local messages = call('RPOP', base, wanted)
  local count, bytes, has_flags = #messages, sum_of_bytes(messages), the_call.arguments[block.first] == 'get flags'
  if not queue.consumer then
    try('SET', base .. ':consumer', identity)
    queue.consumer = identity
  end
  if queue.index then try('SREM', base .. ':ext:members', unpack(messages)) end
  the_call.answered, the_call.work = the_call.answered + bytes, the_call.work + MESSAGE * count
  records.note_taken(has_flags and { marked = 2 } or 2)
  if has_flags then messages[count + 1] = '' end -- no flags (get.lua)
  queue.consumed = queue.consumed + count
  return fast.reply(messages, 'consumed', count, bytes, length - count, queue.bound > 0)
end

local function get()
  if queue.word then return nil end
  if queue.length == 0 then return records.keep({ queue.bound > 0 and -1 or 0, {} }) end
  return take(1)
end

-- Do a get that waits and the put after it: the message is never queued.
local function pass_on()
  local arguments, first, base, identity = the_call.arguments, block.first, queue.base, the_call.identity
  local name, closed = arguments[first + 3], base .. ':closed'
  if string.sub(arguments[first], 1, 18) ~= 'get existing waits' or block.last - first ~= 6 or arguments[first + 4] ~= '2'
    or name ~= 'put' and name ~= 'put unique' or queue.index and not fast.is_exact()
    or queue.producer ~= identity or queue.consumer ~= identity
    or call('EXISTS', base .. ':producer_free', base .. ':consumer_free', base .. ':not_full', closed, closed,
      closed, closed) ~= 3 then
    return nil
  end
  local message = arguments[first + 6]
  try('INCR', base .. ':stats:produced_messages')
  try('INCRBY', base .. ':stats:produced_bytes', #message)
  queue.consumed = queue.consumed + 1
  records.note_taken(2)
  local its_reply = fast.reply({ message }, 'consumed', 1, #message, 0, queue.bound > 0)
  its_reply[3] = name == 'put' and 0 or 'new'
  return its_reply
end

local function get_waiting(count)
  local base = queue.base
  local closed = base .. ':closed'
  if queue.word or block.how ~= '' then
    return nil
  elseif queue.length > 0 then
    return count == 0 and take(tonumber(the_call.arguments[block.first + 2])) or nil
  elseif count > 0 then
    return pass_on()
  elseif call('EXISTS', base .. ':consumer_free', closed, closed) ~= 1 then
    return nil
  end
  call('HDEL', base .. ':ext:settings', 'since') -- a waiting client counts as use (housekeeping.lua)
  return records.keep({ queue.bound > 0 and -1 or 0, {} })
end

local function length()
  return not queue.word and records.keep({ queue.bound > 0 and -1 or 0, queue.length }) or nil
end

local function contains(count)
  if queue.word or not fast.is_exact() or count < 0 or count >= CHUNK then return nil end
  local messages = { unpack(the_call.arguments, block.first + 2, block.last) }
  local found = call('SMISMEMBER', queue.base .. ':ext:members', unpack(messages))
  return records.keep({ queue.bound > 0 and -1 or 0, found })
end

-- The functions, by the name of the block's first run. Each takes the number of the block's arguments without three: the
-- run's name, its count, and its first argument. `several` if the block may have other runs.
local ways = {
  put = { put }, ['put now'] = { put }, ['put existing'] = { put_existing }, ['put existing offset'] = { put_offset },
  ['put unique'] = { put_unique }, ['put unique now'] = { put_unique },
  get = { get }, ['get flags'] = { get }, length = { length }, contains = { contains },
  ['get waits'] = { get_waiting, several = true }, ['get existing waits'] = { get_waiting, several = true },
  ['get existing waits final'] = { get_waiting, several = true },
}

-- Return whether the backend is out of memory and the block needs some.
local function is_refused()
  local arguments, at = the_call.arguments, block.first
  while the_call.full and at <= block.last do
    local verb = block.read_name(arguments[at])
    if verb == 'put' or verb == 'move' or verb == 'create' then return true end
    at = at + 2 + tonumber(arguments[at + 1])
  end
  return false
end

-- Begin the block. Return its reply, or nil if it needs the general path.
local function begin()
  local arguments, first = the_call.arguments, block.first
  local way = ways[arguments[first]]
  if block.how == 'recover' or block.how == 'cut' then return nil end
  if the_call.full and is_refused() then return { err = the_call.full } end
  queue.read(block.home)
  local count = block.last - first - 2
  if queue.bound and queue.word and queue.kind.do_worker_block then return queue.kind.do_worker_block() end
  if not way or not queue.bound or queue.word and not queue.kind.has_groups
    or not way.several and count ~= tonumber(arguments[first + 1]) - 1 then
    return nil
  end
  return way[1](count)
end

-- Do the current block and the next ones, up to one that needs the general path. Return whether there is such a block.
function fast.do_blocks()
  local replies = the_call.replies
  repeat
    local is_done, answer = pcall(begin)
    if is_done and not answer then
      return true
    elseif block.changed then
      the_call.changed = true
    end
    replies[#replies + 1] = is_done and answer or the_call.error_reply(answer)
    the_call.work = the_call.work + FAST_BLOCK + MESSAGE * (block.last - block.first)
  until the_call.is_long_enough() or not block.next()
  return false
end

return fast
