-- Get, for many commands at once; take, which waits; remove, which takes messages out of the middle; and
-- restore, which puts back what was taken for nobody, also for recovery.lua. All but the last act as the consumer, and
-- what they take counts as consumed.
--
-- Touches  the list, :consumer, :not_full, :stats:consumed_*, the mirror.

-- What one call may take: a reply is in memory three times on its way to the client.
local GET_BYTES = 1048576
local GET_MESSAGES = 1000

local function make_get()
  local operations = {}

  -- Takes    how many messages are wanted
  -- Returns  the messages, oldest first; and how many are left for another call
  function operations.get(wanted)
    if queue.length == 0 then
      return {}, 0
    end
    local refusal = in_use('consumer')
    if refusal then
      return refusal, 0
    end
    local messages, bytes = {}, 0
    local most = patient and GET_BYTES or math.huge
    while queue.length > 0 and #messages < wanted and bytes < most do
      local count = math.min(wanted - #messages, GET_MESSAGES)
      if count > 1 then
        -- The oldest stands for those behind it; where they are heavier, the next round is the last.
        local weight = math.max(1, #call('LINDEX', base, -1))
        count = math.max(1, math.min(count, math.floor((most - bytes) / weight)))
      end
      local some = call('RPOP', base, count)
      local weight = sum_of_bytes(some)
      queue.length = queue.length - #some
      count_as('consumed', #some, weight)
      if mirror and not pcall(mirror.forget_taken, some) then
        mirror.start_over()
      end
      bytes = bytes + weight
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
    return messages, queue.length > 0 and wanted - #messages or 0
  end

  -- Takes    how many messages are wanted, by commands that wait for one each
  -- Returns  what there is, oldest first; an error where the queue is closed and nothing will come. Then how
  --          many are left for another call; then what to call when there may be more.
  function operations.take(wanted)
    if queue.bound and queue.length == 0 then
      if call('EXISTS', base .. ':closed') == 1 then
        return { err = 'CLOSED' }, 0
      end
      call('HDEL', base .. ':ext:settings', 'since') -- who waits for a message uses the queue (life.lua)
    end
    local messages, left = {}, 0
    if queue.length > 0 then
      messages, left = operations.get(wanted)
      if messages.err then
        return messages, 0
      end
    end
    local missing = wanted - #messages
    if missing > 0 and left == 0 then
      return queue.bound and messages or false, 0, function()
        return operations.take(missing)
      end
    end
    return messages, left
  end

  -- The same for one command that takes up to so many, and waits for one.
  function operations.some(wanted)
    local messages, left, go_on = operations.take(wanted)
    if go_on and not (messages and #messages > 0) then
      return messages, 0, function()
        return operations.some(wanted)
      end
    end
    return messages, left
  end

  -- Takes    messages that were taken, oldest first
  -- Returns  1. A role is not needed: nobody was to see that they were gone.
  function operations.restore(messages)
    -- A backend out of memory refuses a script whose first write needs some. This one does nothing.
    call('PERSIST', base)
    for last = #messages, 1, -CHUNK do
      local some = {}
      for i = last, math.max(1, last - CHUNK + 1), -1 do some[#some + 1] = messages[i] end
      call('RPUSH', base, unpack(some))
    end
    queue.length = queue.length + #messages
    count_as('consumed', -#messages, -sum_of_bytes(messages))
    if mirror then
      mirror.restored(messages)
    end
    settle_not_full()
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
