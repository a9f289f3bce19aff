-- Get, for many commands at once; peek; remove, which takes messages out of the middle; flush; and restore,
-- which puts undelivered messages back. All but peek and restore act as the consumer and count messages as
-- consumed. Expired messages are dropped when they reach the head.
--
-- Options of get:
--   existing      do not wait for the queue to be created
--   waits         wait for messages: one for each command, or with `several`, up to that many for one command
--   flags         return the messages, then the flags of all as 'flags flags …', or '' if all are 0
--                 (Flags before each message would copy it: 0.2 microseconds, or 5 for 4 KiB.)
--   acknowledged  return each message as 'flags number message', and open it: it gets a record of its own,
--                 o<number of the call>.<number>, until the client acknowledges it or it is recovered
--
-- Touches  the list, :consumer, :not_full, :stats:consumed_*, the records, the mirror, the marks.

-- The limits of one call: a reply is in memory three times on its way to the client.
local GET_BYTES = 1048576
local GET_MESSAGES = 1000
-- Expired messages dropped in one call: each takes some 12 microseconds.
local GET_EXPIRED = 4000

local function make_get(options)
  local operations = {}
  options = options or {}

  local flags -- of the returned messages, if any has marks

  local function open(message, mark)
    open_count = open_count + 1
    local number, field = open_count, 'o' .. ARGV[HEADER_NUMBER] .. '.' .. open_count
    opened[#opened + 1] = field
    write_record(field, false, { { base, queue.made, 0, { { message } }, mark and { message, mark } or {} } })
    return string.format('%s %d ', mark and mark[1] or '0', number) .. message
  end

  -- Return those of the messages that have not expired, and note their marks. They have just left the head.
  local function unexpired(messages, marks)
    local some = {}
    flags = flags or {}
    local noted = taken_marks[base] or {}
    taken_marks[base] = noted
    for i, message in ipairs(messages) do
      local mark = marks[i]
      if not is_expired(mark) then
        if not options.acknowledged then
          noted[#noted + 1], noted[#noted + 2] = message, mark or false
        end
        some[#some + 1] = options.acknowledged and open(message, mark) or message
        flags[#flags + 1] = mark and mark[1] or '0'
      end
    end
    return some
  end

  local function with_flags(messages)
    if messages and not messages.err and #messages > 0 then
      messages[#messages + 1] = flags and table.concat(flags, ' ') or ''
    end
    return messages
  end

  -- Take up to `wanted` messages. Return them, oldest first; and how many are left for another call.
  local function pop(wanted)
    if queue.length == 0 then
      return {}, 0
    end
    local refusal = in_use('consumer')
    if refusal then
      return refusal, 0
    end
    local messages, bytes = {}, 0
    local most = patient and GET_BYTES or math.huge
    local marks, changed_before = has_marks() and make_marks(), changed
    local expired = 0
    while queue.length > 0 and #messages < wanted and bytes < most and (expired < GET_EXPIRED or not patient) do
      local count = math.min(wanted - #messages, GET_MESSAGES)
      if count > 1 then
        -- Estimate by the oldest message. If later ones are larger, the next round is the last.
        local weight = math.max(1, #call('LINDEX', base, -1))
        count = math.max(1, math.min(count, math.floor((most - bytes) / weight)))
      end
      local some = call('RPOP', base, count)
      note_popped(some)
      local weight, position = sum_of_bytes(some), queue.consumed
      queue.length = queue.length - #some
      count_as('consumed', #some, weight)
      if mirror and not pcall(mirror.forget_taken, some) then
        mirror.start_over()
      end
      bytes = bytes + weight
      if marks or options.acknowledged then
        local popped = #some
        some = unexpired(some, marks and marks.take(some, position) or {})
        expired = expired + popped - #some
      end
      if #messages == 0 then
        messages = some
      else
        for i = 1, #some do messages[#messages + 1] = some[i] end
      end
    end
    -- Only now: a backend out of memory refuses a script whose first write is a SET, but not one that begins
    -- with RPOP.
    act_as('consumer')
    if mirror then
      mirror.extend(SLICE)
    end
    settle_not_full()
    if #messages == 0 then
      changed = changed_before -- expired messages were dropped, but none was taken
    end
    return messages, queue.length > 0 and wanted - #messages or 0
  end

  -- Take up to `wanted` messages, for commands that wait for one each.
  --
  -- Returns  the messages; an error if the queue is closed and empty; or false if there is no queue. Then how
  --          many are left for another call, and how many are waited for
  local function take(wanted)
    if queue.bound and queue.length == 0 then
      if call('EXISTS', base .. ':closed') == 1 then
        return { err = 'CLOSED' }, 0
      end
      call('HDEL', base .. ':ext:settings', 'since') -- a waiting client counts as use of the queue (life.lua)
    end
    local messages, left = {}, 0
    local most = queue.bound and allowed(wanted) or 0 -- without :bound, a native Delete is in progress
    if queue.length > 0 and most > 0 then
      messages, left = pop(most)
      if messages.err then
        return messages, 0
      end
    end
    local missing = wanted - #messages
    if missing > 0 and left == 0 and not (options.several and #messages > 0) then
      return queue.bound and messages or false, 0, missing
    end
    return messages, left
  end

  -- Takes    how many messages are wanted
  -- Returns  the messages, oldest first, or false if there is no queue, or an error; how many are left for
  --          another call; and if messages are waited for, the function to call when there may be more
  function operations.get(wanted)
    if not queue.bound and (options.existing or not options.waits) then
      return { err = 'NOQUEUE' }, 0
    end
    flags = nil
    local messages, left, missing = (options.waits and take or pop)(wanted)
    if options.flags then
      messages = with_flags(messages)
    end
    return messages, left, missing and function()
      return operations.get(missing)
    end
  end

  -- Drop expired messages from the head, unless a native client holds the consumer role.
  -- `marks`: pass the marks if they have been made already, because two objects would not agree on the drift.
  function operations.drop_expired(marks)
    if not has_marks() then
      return
    end
    marks = marks or make_marks()
    local dropped = 0
    while queue.length > 0 and (dropped < GET_EXPIRED or not patient) and not in_use('consumer')
      and is_expired(marks.look(call('LINDEX', base, -1), queue.consumed)) do
      dropped = dropped + 1
      local changed_before = changed
      local message = call('RPOP', base)
      local position = queue.consumed
      queue.length = queue.length - 1
      count_as('consumed', 1, #message)
      if mirror then mirror.forget_taken({ message }) end
      marks.take({ message }, position)
      act_as('consumer')
      settle_not_full()
      changed = changed_before
    end
  end

  -- Returns  the oldest message that has not expired, and its flags, '' for 0; or an empty list. Expired
  --          messages are dropped: else they would wake up waiting clients again and again
  function operations.peek()
    operations.drop_expired()
    local marks = has_marks() and make_marks()
    for i = 0, math.min(queue.length, GET_EXPIRED) - 1 do
      local message = call('LINDEX', base, -1 - i)
      local mark = marks and marks.look(message, queue.consumed + i)
      if not is_expired(mark) then
        return { message, mark and mark[1] or '' }
      end
    end
    return {}
  end

  -- Drop all messages. Return their number, or an error.
  function operations.flush()
    local count = queue.length
    local refusal = count > 0 and in_use('consumer')
    if refusal or count == 0 then
      return refusal or 0
    end
    call('UNLINK', base, base .. ':ext:marks')
    queue.length = 0
    local stats = call('MGET', base .. ':stats:produced_bytes', base .. ':stats:consumed_bytes')
    count_as('consumed', count, math.max(0, (tonumber(stats[1]) or 0) - (tonumber(stats[2]) or 0)))
    act_as('consumer')
    if mirror then mirror.start_over() end
    settle_not_full()
    return count
  end

  -- Takes    undelivered messages, oldest first; and their marks, by index, if any
  -- Returns  1. No role is needed, because for other clients the messages had never left
  function operations.restore(messages, marks)
    local noted = marks and next(marks) and make_marks()
    -- A backend out of memory refuses a script whose first write needs memory. This one does nothing.
    call('PERSIST', base)
    for last = #messages, 1, -CHUNK do
      local some = {}
      for i = last, math.max(1, last - CHUNK + 1), -1 do some[#some + 1] = messages[i] end
      call('RPUSH', base, unpack(some))
    end
    queue.length = queue.length + #messages
    count_as('consumed', -#messages, -sum_of_bytes(messages))
    -- The messages are back: an error from here on must not put them back again.
    if mirror and not pcall(mirror.restored, messages) then
      pcall(mirror.start_over)
    end
    if noted then
      pcall(noted.note, messages, marks, queue.consumed)
    end
    pcall(settle_not_full)
    return 1, 0
  end

  -- Takes    messages
  -- Returns  for each 1 if it was queued, else 0; and how many are left for another call
  function operations.remove(messages)
    local refusal = queue.length > 0 and in_use('consumer')
    if refusal then
      return refusal, 0
    end
    local removed, walked, taken = {}, 0, 0
    local marks = has_marks() and make_marks()
    for i, message in ipairs(messages) do
      if patient and walked > SCAN then
        break
      end
      removed[i] = 0
      if queue.length > 0 and (not mirror or mirror.queued({ message })[1] == 1) then
        local in_head = 0
        if mirror and mirror.unmirrored > 0 then
          in_head = #call('LPOS', base, message, 'RANK', -1, 'COUNT', 0, 'MAXLEN', mirror.unmirrored)
        end
        walked = walked + queue.length
        work = work + ENTRY * queue.length
        local count = call('LREM', base, 0, message)
        if count > 0 then
          act_as('consumer')
          taken = taken + count
          removed[i] = 1
          queue.length = queue.length - count
          count_as('consumed', count, count * #message)
          if mirror then
            mirror.unmirrored = mirror.unmirrored - in_head
            mirror.forget_all(message)
          end
          if marks then marks.forget(message, count) end
        end
      end
    end
    -- If nothing was taken, a native producer may be about to push the missing token.
    if taken > 0 then
      settle_not_full()
    end
    return removed, #messages - #removed
  end

  return operations
end
