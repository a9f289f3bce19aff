-- Logs: queues whose messages have offsets. The offset of a message is how many were put before it; that of the
-- oldest message is the number of consumed ones. So nothing may leave from the middle, and a message that could
-- not be delivered does not go back to the list: it waits beside it, and is the next to be taken.
--
-- Touches  :ext:ready   a sorted set: 'flags expires message' with its offset before it, for each message that has
--                       come back; the score is the offset. Clients that wait for a message watch this key
--          :ext:groups  the groups that read the log (groups.lua)

-- Begin with a log: count the messages that have come back, and drop what all groups have passed.
function begin_log()
  queue.returned = call('ZCARD', base .. ':ext:ready')
  queue.groups = call('EXISTS', base .. ':ext:groups') == 1
  if queue.groups and has_records then drop_passed() end
end

function make_log(options)
  local operations = {}
  local list = options and make_get(options) or gets

  -- Return a message that has come back, from its member of the set: its offset, and its marks.
  local function parse(member)
    local offset, flags, expires, first = string.match(member, '^(%d+) (%d+) (%d+) ()')
    return string.sub(member, first), { flags, tonumber(expires), tonumber(offset) }
  end

  -- Return why nothing can be taken from the log itself, or nil; `wanted` is a message, if not the oldest.
  function operations.refusal_to_take(wanted)
    if queue.groups then
      return { err = "TYPE is read by groups: take its messages from 'queue+group'" }
    end
    return wanted and { err = 'TYPE is a log: nothing leaves it from the middle' } or nil
  end

  function operations.get(wanted)
    local refusal = queue.bound and operations.refusal_to_take()
    if refusal then
      return refusal, 0
    end
    return list.get(wanted)
  end

  function operations.reserve()
    return operations.refusal_to_take() or { err = 'TYPE is a log, which has no reservations: read it with a group' }, 0
  end

  function operations.remove(messages)
    return operations.refusal_to_take(messages[1]), 0
  end

  -- Takes    the messages that have come back before, at most `count`
  -- Returns  the messages, their marks
  function operations.take_returned(count)
    local messages, marks = {}, {}
    local found = call('ZPOPMIN', base .. ':ext:ready', count)
    for i = 1, #found, 2 do
      messages[#messages + 1], marks[#marks + 1] = parse(found[i])
    end
    queue.returned = queue.returned - #messages
    return messages, marks
  end

  -- Takes    undelivered messages, and what `get` noted of each: { flags, expires, offset }
  function operations.restore(messages, marks)
    for i, message in ipairs(messages) do
      local mark = marks[i] or { '0', 0, queue.consumed - 1 }
      call('ZADD', base .. ':ext:ready', mark[3], string.format('%.0f %s %.0f ', mark[3], mark[1], mark[2]) .. message)
    end
    queue.returned = queue.returned + #messages
    changed = true
    return 1, 0
  end

  function operations.length()
    return queue.length + queue.returned
  end

  -- Takes    first, last: positions, as `range` in read.lua; those that have come back are the oldest
  function operations.range(first, last)
    if queue.returned == 0 then
      return reads.range(first, last)
    end
    local count = operations.length()
    first = math.max(0, first < 0 and first + count or first)
    last = math.min(count - 1, last < 0 and last + count or last)
    local found = {}
    for _, member in ipairs(first <= last and call('ZRANGE', base .. ':ext:ready', first, last) or {}) do
      found[#found + 1] = parse(member)
    end
    for _, message in ipairs(last >= queue.returned and reads.range(math.max(0, first - queue.returned),
      last - queue.returned) or {}) do
      found[#found + 1] = message
    end
    return found
  end

  -- Takes    an offset; and a count, as `scan` in read.lua
  function operations.scan(position, count)
    local members = queue.returned > 0 and position < queue.consumed
      and call('ZRANGEBYSCORE', base .. ':ext:ready', position, '+inf', 'LIMIT', 0, count) or {}
    if #members == 0 then
      return reads.scan(position, count)
    end
    local messages, mark = {}, nil
    for i, member in ipairs(members) do messages[i], mark = parse(member) end
    return { string.format('%.0f', math.min(mark[3] + 1, queue.consumed)), messages }
  end

  function operations.peek()
    local member = call('ZRANGE', base .. ':ext:ready', 0, 0)[1]
    if not member then
      return list.peek()
    end
    local message, mark = parse(member)
    return { message, mark[1] ~= '0' and mark[1] or '' }
  end

  function operations.contains(messages)
    local found, left = reads.contains(messages)
    for _, member in ipairs(queue.returned > 0 and call('ZRANGE', base .. ':ext:ready', 0, -1) or {}) do
      local message = parse(member)
      for i = 1, #found do
        if messages[i] == message then found[i] = 1 end
      end
    end
    return found, left
  end

  function operations.flush()
    local count = operations.length()
    call('DEL', base .. ':ext:ready')
    queue.returned = 0
    local refusal = list.flush()
    return type(refusal) == 'table' and refusal or count
  end

  -- Return a text that changes with every put, get, close, delete and create; and when all groups have passed a
  -- message, but not when such messages are dropped, which may happen later.
  function operations.version()
    local slowest = queue.groups and call('ZRANGE', groups_of(base), 0, 0, 'WITHSCORES')[2]
    local tail = queue.consumed + queue.length
    return string.format('log %.0f %.0f %d %d %s', math.min(tail, math.max(queue.consumed, tonumber(slowest) or 0)), tail,
      queue.returned, call('EXISTS', base .. ':closed'), queue.made or '')
  end

  -- Takes    an offset, and how many messages from there on
  -- Returns  the messages, false for each that is gone; fewer at the end of the log, or if they are large; or an
  --          error if the first offset is yet to come
  function operations.at(offset, count)
    local MAX_AT, AT_BYTES = 1000, 1048576
    local head, tail = queue.consumed, queue.consumed + queue.length
    if offset >= tail then
      return { err = string.format('AHEAD %.0f', tail) }
    end
    local last = math.min(tail, offset + math.min(count, MAX_AT)) - 1
    local found, bytes = {}, 0
    local came_back, marks = {}, has_marks() and make_marks()
    if offset < head then
      for _, member in ipairs(call('ZRANGEBYSCORE', base .. ':ext:ready', offset, last)) do
        local message, mark = parse(member)
        came_back[mark[3]] = message
      end
    end
    local first = math.max(offset, head)
    while offset <= last and bytes < AT_BYTES do
      local some = offset >= first and reads.range(offset - head, math.min(last, offset + 99) - head) or { came_back[offset] or false }
      for _, message in ipairs(some) do
        found[#found + 1] = message and not (marks and offset >= head and is_expired(marks.look(message, offset))) and message
        bytes = bytes + (message and #message or 0)
        offset = offset + 1
      end
    end
    return found
  end

  return operations
end
