-- Get, for many commands at once; peek; remove, which takes messages out of the middle; flush; and restore,
-- which puts undelivered messages back. All but peek and restore act as the consumer and count messages as
-- consumed. Expired messages are dropped when they reach the head.
--
-- Options of get:
--   existing      do not wait for the queue to be created
--   waits         wait for messages: one for each command, or with `several`, up to that many for one command
--   flags         return the messages, then the flags of all as 'flags flags …', or '' if all are 0
--                 (Flags before each message would copy it: 0.2 microseconds, or 5 for 4 KiB.)
--
-- Touches  the list, :consumer, :not_full, :stats:consumed_*, the records, the mirror, the marks.

-- The limits of one call: a reply is in memory three times on its way to the client.
local GET_BYTES = 1048576
local GET_MESSAGES = 1000
-- Expired messages dropped in one call: each takes some 12 microseconds.
local GET_EXPIRED = 4000

local function make_get(options)
  local operations = {}

  -- State of the run:
  local flags -- of the returned messages, if any has marks
  local claims -- of the clients that reserve messages, instead of taking them for good (job_gets.lua)

  -- Return those of the messages that have not expired, with their marks. They have just left the head.
  local function unexpired(messages, marks)
    local some, their_marks = {}, {}
    flags = flags or {}
    local noted = taken_marks[base] or {}
    taken_marks[base] = noted
    for i, message in ipairs(messages) do
      local mark = marks[i]
      if not is_expired(mark) then
        if not claims then
          noted[#noted + 1], noted[#noted + 2] = message, mark or false
        end
        some[#some + 1], their_marks[#some + 1] = message, mark
        flags[#flags + 1] = mark and mark[1] or '0'
      end
    end
    return some, their_marks
  end

  local function with_flags(messages)
    if messages and not messages.err and #messages > 0 then
      messages[#messages + 1] = flags and table.concat(flags, ' ') or ''
    end
    return messages
  end

  -- Return how many messages can be taken now.
  local function available()
    if queue.kind == 'jobs' then return queue.jobs.available() end
    return queue.length + (queue.kind == 'log' and queue.returned or 0)
  end

  -- Pop up to `count` messages from the head of the list, about `most` bytes. Return them, and how many have
  -- expired.
  local function pop_from_list(count, most, marks)
    if count > 1 then
      -- Estimate by the oldest message. If later ones are larger, the next round is the last.
      local weight = math.max(1, #call('LINDEX', base, -1))
      count = math.max(1, math.min(count, math.floor(most / weight)))
    end
    local some, their_marks = call('RPOP', base, count), nil
    note_popped(some)
    local popped, position = #some, queue.consumed
    queue.length = queue.length - popped
    count_as('consumed', popped, sum_of_bytes(some))
    if mirror and not pcall(mirror.forget_taken, some) then
      mirror.start_over()
    end
    if marks or claims or queue.kind == 'log' then
      their_marks = marks and marks.take(some, position) or {}
      for i = 1, queue.kind == 'log' and popped or 0 do
        their_marks[i] = their_marks[i] or { '0', 0 }
        their_marks[i][3] = position + i - 1 -- its offset (log.lua)
      end
      some, their_marks = unexpired(some, their_marks)
    end
    local dropped = popped - #some
    if claims and #some > 0 then some = job_gets().hold(some, their_marks, claims) end
    return some, dropped
  end

  -- Take the best jobs. Return their messages, and how many have expired.
  local function pop_jobs(count)
    count = math.min(count, 64) -- between two looks at the limits
    if claims then
      return job_gets().reserve(claims, count)
    end
    local some, marks = job_gets().pop(count)
    local popped = #some
    some = unexpired(some, marks)
    return some, popped - #some
  end

  -- Take messages of a log, those that have come back first. Return what `pop_from_list` does.
  local function pop_from_log(count, most, marks)
    if queue.returned == 0 then
      return pop_from_list(count, most, marks)
    end
    local some, their_marks = make_log().take_returned(count)
    changed = true
    local popped = #some
    some = unexpired(some, their_marks)
    return some, popped - #some
  end

  -- Take up to `wanted` messages. Return them, oldest first; and how many are left for another call.
  local function pop(wanted)
    local of_jobs = queue.kind == 'jobs'
    if available() == 0 then
      return {}, 0
    end
    local refusal = not of_jobs and in_use('consumer')
    if refusal then
      return refusal, 0
    end
    local messages, bytes, expired = {}, 0, 0
    local most = patient and GET_BYTES or math.huge
    local marks, changed_before = not of_jobs and has_marks() and make_marks(), changed
    while available() > 0 and #messages < wanted and bytes < most and (expired < GET_EXPIRED or not patient) do
      local count = math.min(wanted - #messages, GET_MESSAGES)
      local take_some = of_jobs and pop_jobs or queue.kind == 'log' and pop_from_log or pop_from_list
      local some, dropped = take_some(count, most - bytes, marks)
      bytes = bytes + sum_of_bytes(some)
      expired = expired + dropped
      if claims then
        claims = { unpack(claims, #some + 1) }
      end
      if #messages == 0 then
        messages = some
      else
        for i = 1, #some do messages[#messages + 1] = some[i] end
      end
    end
    if not of_jobs then
      act_as('consumer')
    end
    if mirror then
      mirror.extend(SLICE)
    end
    settle_not_full()
    if #messages == 0 then
      changed = changed_before -- expired messages were dropped, but none was taken
    end
    return messages, available() > 0 and wanted - #messages or 0
  end

  -- Take up to `wanted` messages, for commands that wait for one each.
  --
  -- Returns  the messages; an error if the queue is closed and empty; or false if there is no queue. Then how
  --          many are left for another call, and how many are waited for
  local function take(wanted)
    if queue.bound and available() == 0 then
      if is_finished() then
        return { err = 'CLOSED' }, 0
      end
      call('HDEL', base .. ':ext:settings', 'since') -- a waiting client counts as use of the queue (life.lua)
    end
    local messages, left = {}, 0
    local most = queue.bound and allowed(wanted) or 0 -- without :bound, a native Delete is in progress
    if most > 0 and available() > 0 then
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
    local own_claims = claims
    return messages, left, missing and function()
      claims = own_claims
      return operations.get(missing)
    end
  end

  -- Reserve messages: takes and returns the same, but with a claim for each message (job_gets.lua) in place of
  -- their number; and each message is returned as 'id ttr flags reserves message'.
  function operations.reserve(some_claims)
    claims = some_claims
    local messages, left, go_on = operations.get(#claims)
    return messages, left, go_on
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

  -- Drop the oldest messages. They count as consumed, like all that leave the queue.
  function operations.drop_oldest(count, marks)
    marks = marks or has_marks() and make_marks()
    while count > 0 do
      local position, some = queue.consumed, call('RPOP', base, math.min(count, CHUNK))
      queue.length = queue.length - #some
      count_as('consumed', #some, sum_of_bytes(some))
      if mirror and not pcall(mirror.forget_taken, some) then mirror.start_over() end
      if marks then marks.take(some, position) end
      count = count - #some
    end
    act_as('consumer')
    settle_not_full()
  end

  -- Returns  the oldest message that has not expired, and its flags, '' for 0; or an empty list. Expired
  --          messages are dropped: else they would wake up waiting clients again and again. With the option
  --          `waits`, false if there is no queue
  function operations.peek()
    if not queue.bound then
      return not options.waits and { err = 'NOQUEUE' }
    end
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
      local is_queued, decided = { 1 }, 1
      if queue.length > 0 and mirror then is_queued, decided = mirror.queued({ message }) end
      if decided == 0 then
        break -- the mirror has grown instead
      end
      removed[i] = 0
      if queue.length > 0 and is_queued[1] == 1 then
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

-- What depends on no option.
local gets = make_get({})
