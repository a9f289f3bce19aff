-- Get, for many commands at once; peek; remove, which takes messages out of the middle; flush; and restore, which
-- puts back what was taken for nobody, also for recovery.lua. All but restore act as the consumer, and what they
-- take counts as consumed. A message that has expired is dropped where it would be taken.
--
-- Options of get:
--   existing      do not wait for the queue to be made
--   waits         wait for a message: each command for one, or with `several` one command for up to so many
--   flags         return the messages, and after the last one the flags of all, 'flags flags …', or '' if all are 0
--                 (To put each before its message would make another string of it, which costs 0.2 microseconds,
--                 and 5 for 4 KiB.)
--   acknowledged  return each as 'flags number message'. The message is kept by itself in the field o<call's
--                 number>.<number> of our records, until the client acknowledges it, or it is recovered.
--
-- Touches  the list, :consumer, :not_full, :stats:consumed_*, our records, the mirror, the marks.

-- What one call may take: a reply is in memory three times on its way to the client.
local GET_BYTES = 1048576
local GET_MESSAGES = 1000
-- Dropped in one call: each takes some 12 microseconds.
local GET_EXPIRED = 4000

local function make_get(options)
  local operations = {}
  options = options or {}

  local flags -- of the messages that are returned, if any has marks

  local function open(message, mark)
    open_count = open_count + 1
    local number, field = open_count, 'o' .. ARGV[HEADER_NUMBER] .. '.' .. open_count
    opened[#opened + 1] = field
    write_record(field, false, { { base, queue.made, 0, { { message } }, mark and { message, mark } or {} } })
    return string.format('%s %d ', mark and mark[1] or '0', number) .. message
  end

  -- What is returned of messages that have left the head, with these marks: not what has expired.
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

  -- Takes up to so many messages. Returns them, oldest first; and how many are left for another call.
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
        -- The oldest stands for those behind it; where they are heavier, the next round is the last.
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
    -- Not before: a backend out of memory refuses a script whose first write is a SET, but lets it take.
    act_as('consumer')
    if mirror then
      mirror.extend(SLICE)
    end
    settle_not_full()
    if #messages == 0 then
      changed = changed_before -- what has expired is dropped, and nothing has been taken
    end
    return messages, queue.length > 0 and wanted - #messages or 0
  end

  -- Takes up to so many, for commands that wait for one each. Returns what there is; or an error if the queue is
  -- closed and nothing will come, or false if there is no queue. Then how many are left for another call; then
  -- how many are waited for.
  local function take(wanted)
    if queue.bound and queue.length == 0 then
      if call('EXISTS', base .. ':closed') == 1 then
        return { err = 'CLOSED' }, 0
      end
      call('HDEL', base .. ':ext:settings', 'since') -- who waits for a message uses the queue (life.lua)
    end
    local messages, left = {}, 0
    local most = queue.bound and allowed(wanted) or 0 -- without its bound the queue is being deleted natively
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
  -- Returns  the messages, oldest first, false if there is no queue, or an error; how many are left for another call;
  --          then what to call when there may be more, if they are waited for
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

  -- Drops what has expired from the head, for those who look there; nothing where a native client is at work.
  -- `marks`: who has made them already says so, as two would not agree on the drift.
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

  -- Returns  the oldest message that has not expired, and its flags, '' for 0; or an empty list. What has expired is
  --          dropped: who waits for a message would be told at once that there is one, again and again.
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

  -- Drops all messages. Returns how many these were, or an error.
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

  -- Takes    messages that were taken, oldest first; and their marks, by number, if any
  -- Returns  1. A role is not needed: nobody was to see that they were gone.
  function operations.restore(messages, marks)
    local noted = marks and next(marks) and make_marks()
    -- A backend out of memory refuses a script whose first write needs some. This one does nothing.
    call('PERSIST', base)
    for last = #messages, 1, -CHUNK do
      local some = {}
      for i = last, math.max(1, last - CHUNK + 1), -1 do some[#some + 1] = messages[i] end
      call('RPUSH', base, unpack(some))
    end
    queue.length = queue.length + #messages
    count_as('consumed', -#messages, -sum_of_bytes(messages))
    -- They are back: an error in what follows must not have them put back again.
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
  -- Returns  1 for each that was queued, 0 for each that was not; and how many are left for another call
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
    -- Where nothing was taken, a native producer may be about to push the token that is missing.
    if taken > 0 then
      settle_not_full()
    end
    return removed, #messages - #removed
  end

  return operations
end
