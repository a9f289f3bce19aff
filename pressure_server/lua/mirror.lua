-- The mirror: a set of the queued messages, to find a message without a walk over the list.
--
-- Touches  :ext:members  a set of the mirrored messages
--          :ext:copies   a hash, message -> how many more copies are queued (plain puts may repeat messages)
--          :ext:index    'length unmirrored mirrored consumed producer consumer': how far the two are valid
--            length      the list's length when the index was written
--            unmirrored  how many messages at the head (the oldest, the list's right end) are not mirrored
--            mirrored    how many messages the mirror holds, repeats counted
--            consumed    :stats:consumed_messages when the index was written
--            producer    the :producer last written by a client that maintains the mirror; empty for none
--            consumer    the same for :consumer
--
-- Every client writes its name when it takes a role. If a name differs from the recorded one, another client
-- may have put or taken messages since. docs/architecture.md discusses each case.
--
-- A queue gets a mirror when a message is first looked up. Without one, puts and gets pay nothing for it.

-- Messages mirrored in one call: 1000 take about half a millisecond.
local SLICE = 1000
-- Slices in a call that can do nothing else before more is mirrored.
local FAR = 10
-- List entries that LPOS may walk over in one call: a million take about 5 milliseconds.
local SCAN = 1000000

local mirror -- nil if the queue has no mirror

local function make_mirror()
  local members, copies = base .. ':ext:members', base .. ':ext:copies'
  local self = {
    mirrored = 0,
    unmirrored = queue.length,
    garbage = true,   -- :ext:members may be wrong: delete it before its next use
    producer = nil,   -- the recorded names; a missing :producer is false, so it never equals nil
    consumer = nil,
    changed = false,
  }

  function self.start_over()
    self.garbage = true
    self.mirrored, self.unmirrored = 0, queue.length
    self.changed = true
  end

  local function drop_garbage()
    if self.garbage then
      if queue.consumed + queue.length > LARGE then
        set_aside({ [':ext:members'] = 'SCARD', [':ext:copies'] = 'HLEN' })
      end
      call('UNLINK', members, copies)
      self.garbage = false
    end
  end

  local function note_roles()
    if queue.producer == identity then self.producer = identity end
    if queue.consumer == identity then self.consumer = identity end
  end

  -- Return whether a recorded name still stands: then a change by another client can be noticed.
  local function watched()
    return queue.producer == self.producer or queue.consumer == self.consumer
  end

  -- Return whether the mirror may hold messages that a native consumer has taken.
  function self.stale()
    return self.mirrored > queue.length - self.unmirrored
  end

  -- Mirror messages that have just been added to the list.
  function self.remember(messages)
    if #messages == 0 then
      return
    end
    drop_garbage()
    local fresh, seen = {}, {}
    for first = 1, #messages, CHUNK do
      local last = math.min(first + CHUNK - 1, #messages)
      local present = call('SMISMEMBER', members, unpack(messages, first, last))
      for i = first, last do
        local message = messages[i]
        if present[i - first + 1] == 1 or seen[message] then
          call('HINCRBY', copies, message, 1)
        else
          seen[message] = true
          fresh[#fresh + 1] = message
        end
      end
    end
    if #fresh > 0 then
      call_with_all('SADD', members, fresh)
    end
    self.mirrored = self.mirrored + #messages
    self.changed = true
  end

  -- Mirror messages if possible; return whether it was.
  local function may_remember(messages)
    return pcall(self.remember, messages)
  end

  -- Forget all copies of one message.
  function self.forget_all(message)
    self.changed = true
    if not self.garbage and call('SREM', members, message) == 1 then
      local extra = tonumber(call('HGET', copies, message) or 0)
      call('HDEL', copies, message)
      self.mirrored = self.mirrored - 1 - extra
    end
  end

  -- Forget messages that have left the head of the list, oldest first.
  function self.forget_taken(messages)
    self.changed = true
    note_roles()
    local count = #messages
    local skip = math.min(self.unmirrored, count)
    self.unmirrored = self.unmirrored - skip
    if skip == count then
      return
    end
    self.mirrored = self.mirrored - (count - skip)
    if call('EXISTS', copies) == 0 then
      for first = skip + 1, count, CHUNK do
        call('SREM', members, unpack(messages, first, math.min(first + CHUNK - 1, count)))
      end
      return
    end
    for i = skip + 1, count do
      local extra = tonumber(call('HGET', copies, messages[i]) or 0)
      if extra > 1 then
        call('HINCRBY', copies, messages[i], -1)
      elseif extra == 1 then
        call('HDEL', copies, messages[i])
      else
        call('SREM', members, messages[i])
      end
    end
  end

  -- Mirror up to `limit` more messages, from the newest unmirrored one towards the head.
  function self.extend(limit)
    note_roles()
    if self.unmirrored == 0 or not watched() then
      return
    end
    local first = queue.length - self.unmirrored
    local slice = call('LRANGE', base, first, first + math.min(limit, self.unmirrored) - 1)
    if may_remember(slice) then
      self.unmirrored = self.unmirrored - #slice
    end
  end

  -- Read the index, and work out what has happened since it was written.
  function self.load(index)
    local noted, consumed
    noted, self.unmirrored, self.mirrored, consumed, self.producer, self.consumer =
      string.match(index, '^(%d+) (%d+) (%d+) (%d+) (%S*) (%S*)$')
    if not noted then
      -- Written by another program, or by another version of this one.
      self.start_over()
      return
    end
    noted, self.unmirrored, self.mirrored = tonumber(noted), tonumber(self.unmirrored), tonumber(self.mirrored)
    self.garbage = false
    if self.producer == '' then self.producer = nil end
    if self.consumer == '' then self.consumer = nil end
    local same_producer = queue.producer == self.producer
    local same_consumer = queue.consumer == self.consumer
    if same_consumer and queue.consumed ~= tonumber(consumed) then
      -- No other client consumes under that name: a native client deleted the queue, and it was made anew.
      self.start_over()
    elseif same_producer and (same_consumer or not (queue.consumer or self.consumer)) then
      if queue.length ~= noted then
        self.start_over()
      end
    elseif same_producer then
      -- Others took messages, the unmirrored ones first. What they took beyond these is stale in the mirror.
      local taken = noted - queue.length
      if taken < 0 then
        self.start_over()
      elseif taken > 0 then
        self.unmirrored = math.max(0, self.unmirrored - taken)
        self.changed = true
        if self.mirrored - (queue.length - self.unmirrored) > queue.length + SLICE then
          self.start_over()
        end
      end
    elseif same_consumer then
      -- Others put messages: the list has grown by that many at its newest end.
      local added = queue.length - noted
      if added < 0 or added > 5 * SLICE then
        self.start_over()
      elseif added > 0 then
        if not may_remember(call('LRANGE', base, 0, added - 1)) then
          self.start_over()
        end
      end
    else
      self.start_over()
    end
  end

  -- Note messages that are back at the head of the list.
  function self.restored(messages)
    self.changed = true
    if self.unmirrored > 0 then
      self.unmirrored = self.unmirrored + #messages
    else
      self.remember(messages)
    end
  end

  function self.save()
    note_roles()
    if self.changed and watched() then
      drop_garbage()
      -- If this is refused, the next call works the index out again.
      try('SET', base .. ':ext:index', string.format('%d %d %d %d %s %s', queue.length, self.unmirrored,
        self.mirrored, queue.consumed, self.producer or '', self.consumer or ''))
    end
  end

  -- Mirror many messages of a queue that is too long for a walk. Return whether that was possible.
  local function extends_far()
    local before = self.unmirrored
    self.extend(FAR * SLICE)
    return self.unmirrored < before
  end

  -- Return which messages are in the list, as an exact array of 1 and 0; and how many of them were decided
  -- before the call reached its limit of list entries: at least one, unless the mirror has grown instead.
  function self.queued(messages)
    local present, count = {}, #messages
    if self.mirrored > 0 and not self.garbage then
      for first = 1, count, CHUNK do
        local last = math.min(first + CHUNK - 1, count)
        local flags = call('SMISMEMBER', members, unpack(messages, first, last))
        if count <= CHUNK then
          present = flags
        else
          for i = first, last do present[i] = flags[i - first + 1] end
        end
      end
      if self.unmirrored == 0 and not self.stale() then
        return present, count
      end
    end
    -- `stale` is computed once: forgetting a message may make the mirror exact, but `present` is from before.
    local found, walked, stale = {}, 0, self.stale()
    for i = 1, count do
      local held = present[i] == 1
      local is_queued = held and not stale
      if not is_queued and (held or self.unmirrored > 0) then
        local walk = held and queue.length or self.unmirrored
        if patient and walked > 0 and walked + walk > SCAN then
          return found, i - 1
        elseif patient and walk > SCAN and not held and extends_far() then
          return found, i - 1
        end
        walked = walked + walk
        work = work + ENTRY * walk
        if held then
          is_queued = call('LPOS', base, messages[i])
          if not is_queued then self.forget_all(messages[i]) end
        else
          is_queued = call('LPOS', base, messages[i], 'RANK', -1, 'MAXLEN', self.unmirrored)
        end
      end
      found[i] = is_queued and 1 or 0
    end
    return found, count
  end

  -- Mirror messages known not to be in the mirror. Return how many distinct ones there were.
  function self.add(messages)
    drop_garbage()
    local added = call_with_all('SADD', members, messages)
    self.mirrored = self.mirrored + added
    self.changed = true
    return added
  end

  return self
end

-- Return the mirror; a queue of jobs has an index instead, which tells what is queued, too.
local function need_mirror()
  if queue.kind == 'jobs' then
    return queue.jobs.index('equal')
  end
  if not mirror then
    mirror = make_mirror()
  end
  mirror.extend(SLICE)
  return mirror
end

local function load_mirror()
  mirror = nil
  if queue.kind == 'jobs' or queue.kind == 'reserved' then begin_jobs() end
  if queue.index and queue.bound then
    mirror = make_mirror()
    mirror.load(queue.index)
  end
  if queue.kind == 'log' then begin_log() end
end

local function save_mirror()
  if mirror then
    mirror.save()
  end
end

-- Switch to a queue, unless the script works on it already.
local function enter(key)
  if key ~= base then
    if base then
      settle_groups()
      if queue.jobs then queue.jobs.note_due() end
    end
    save_mirror()
    read_queue(key)
    load_mirror()
  end
end

-- Leave the present queue after an error, and finish what earlier runs have begun, as far as possible. Its state
-- in memory may be wrong, so it must be entered anew.
local function leave_after_error()
  if mirror then mirror.start_over() end
  pcall(move_dead_letters)
  pcall(settle_groups)
  if queue.jobs then pcall(queue.jobs.note_due) end
  pcall(save_mirror)
  base, mirror, queue.jobs = nil, nil, nil
  block.is_moving = false
end

-- Enter the present queue anew after an error in one unit of a run.
local function enter_again()
  local key = base
  leave_after_error()
  enter(key)
end
