-- The mirror: a set of the queued messages, to find a message without a walk over the list.
--
-- Touches  :ext:members  a set of the mirrored messages
--          :ext:copies   a hash, message -> how many more copies are queued (plain puts may repeat messages)
--          :ext:index    'length unmirrored mirrored consumed producer consumer': how far the two are valid
--            length      the list's length when the index was written
--            unmirrored  how many messages at the head (the oldest, the list's right end) are not mirrored
--            mirrored    how many messages the mirror contains, repeats counted
--            consumed    :stats:consumed_messages when the index was written
--            producer    the :producer that a server wrote last; empty for none
--            consumer    the same for :consumer
--
-- A queue gets a mirror when a message is first looked up: docs/internals/mirror.md. If the present queue has none
-- (queue.mirror), the functions do nothing, and `queued` must not be called.

local keys = require 'core/keys'

local mirror = {
  -- Messages mirrored in one call: 1000 take about half a millisecond.
  SLICE = 1000,
  -- List entries that LPOS may walk over in one call: a million take about 5 milliseconds.
  SCAN = 1000000,
}
-- Slices that a call mirrors if it can do nothing else before.
local FAR = 10

local MEMBERS, COPIES, INDEX = ':ext:members', ':ext:copies', ':ext:index'

local function make()
  queue.mirror = {
    mirrored = 0,
    unmirrored = queue.length,
    is_garbage = true, -- :ext:members may be wrong: delete it before its next use
    producer = nil, -- the names in the index; a missing :producer is false, so it never equals nil
    consumer = nil,
    is_changed = false,
  }
  return queue.mirror
end

-- Mirror everything anew, because the contents of the mirror are no longer known.
function mirror.start_over()
  local self = queue.mirror
  if self then
    self.is_garbage, self.is_changed = true, true
    self.mirrored, self.unmirrored = 0, queue.length
  end
end

local function drop_garbage(self)
  if self.is_garbage then
    if queue.consumed + queue.length > keys.LARGE then keys.set_aside({ MEMBERS, COPIES }) end
    call('UNLINK', queue.base .. MEMBERS, queue.base .. COPIES)
    self.is_garbage = false
  end
end

local function note_roles(self)
  local identity = the_call.identity
  if queue.producer == identity then self.producer = identity end
  if queue.consumer == identity then self.consumer = identity end
end

-- Return whether a role's holder is that in the index: then the next call notices a change by another client.
local function is_watched(self)
  return queue.producer == self.producer or queue.consumer == self.consumer
end

-- Return whether the mirror may contain messages that a native consumer has taken.
local function is_stale(self)
  return self.mirrored > queue.length - self.unmirrored
end

-- Mirror messages that have just been added to the list.
local function remember(messages)
  local self = queue.mirror
  if #messages == 0 then return end
  drop_garbage(self)
  local fresh, seen, present = {}, {}, commands.values_of('SMISMEMBER', queue.base .. MEMBERS, messages)
  for i, message in ipairs(messages) do
    if present[i] == 1 or seen[message] then
      call('HINCRBY', queue.base .. COPIES, message, 1)
    else
      seen[message] = true
      fresh[#fresh + 1] = message
    end
  end
  if #fresh > 0 then commands.with_all('SADD', queue.base .. MEMBERS, fresh) end
  self.mirrored, self.is_changed = self.mirrored + #messages, true
end

-- Forget messages that have left the head of the list, oldest first.
local function forget_taken(messages)
  local self, count = queue.mirror, #messages
  self.is_changed = true
  note_roles(self)
  local skip = math.min(self.unmirrored, count)
  self.unmirrored = self.unmirrored - skip
  if skip == count then return end
  local members, copies = queue.base .. MEMBERS, queue.base .. COPIES
  self.mirrored = self.mirrored - (count - skip)
  if call('EXISTS', copies) == 0 then
    commands.with_all('SREM', members, skip > 0 and commands.slice(messages, skip + 1, count) or messages)
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
local function extend(limit)
  local self = queue.mirror
  note_roles(self)
  if self.unmirrored == 0 or not is_watched(self) then return end
  local first = queue.length - self.unmirrored
  local slice = call('LRANGE', queue.base, first, first + math.min(limit, self.unmirrored) - 1)
  if pcall(remember, slice) then self.unmirrored = self.unmirrored - #slice end
end

-- The messages have been put, or taken: an error in the mirror must not refuse that.

function mirror.note_put(messages)
  if queue.mirror then
    if not pcall(remember, messages) then mirror.start_over() end
    pcall(extend, mirror.SLICE)
  end
end

-- Note messages that have left the head of the list, oldest first.
function mirror.note_taken(messages)
  if queue.mirror and not pcall(forget_taken, messages) then mirror.start_over() end
end

-- Note messages that are back at the head of the list.
function mirror.note_back(messages)
  local self = queue.mirror
  if self then
    self.is_changed = true
    if self.unmirrored > 0 then
      self.unmirrored = self.unmirrored + #messages
    elseif not pcall(remember, messages) then
      mirror.start_over()
    end
  end
end

-- Forget all copies of one message. `in_head` of them were not mirrored yet.
function mirror.forget_all(message, in_head)
  local self = queue.mirror
  if self then
    self.is_changed = true
    self.unmirrored = self.unmirrored - (in_head or 0)
    if not self.is_garbage and call('SREM', queue.base .. MEMBERS, message) == 1 then
      local extra = tonumber(call('HGET', queue.base .. COPIES, message) or 0)
      call('HDEL', queue.base .. COPIES, message)
      self.mirrored = self.mirrored - 1 - extra
    end
  end
end

function mirror.extend()
  if queue.mirror then extend(mirror.SLICE) end
end

-- Mirror more messages, because even one operation is too much work for a call at present.
function mirror.hurry()
  local self = queue.mirror
  if self then
    queue.act_as('producer') -- a mirror is extended only if a role's holder is that in the index
    if is_stale(self) then mirror.start_over() end
    extend(FAR * mirror.SLICE)
  end
end

-- Work out what has happened since the index was written.
local function catch_up(self, noted, consumed)
  local same_producer = queue.producer == self.producer
  local same_consumer = queue.consumer == self.consumer
  if same_consumer and queue.consumed ~= consumed then
    -- No other client consumes under that name: a native client deleted the queue, and it was made anew.
    return mirror.start_over()
  elseif same_producer and (same_consumer or not (queue.consumer or self.consumer)) then
    return queue.length ~= noted and mirror.start_over()
  elseif same_producer then
    -- Others took messages, the unmirrored ones first. Mirrored ones that they took are stale.
    local taken = noted - queue.length
    if taken > 0 then
      self.unmirrored = math.max(0, self.unmirrored - taken)
      self.is_changed = true
    end
    if taken < 0 or taken > 0 and self.mirrored - (queue.length - self.unmirrored) > queue.length + mirror.SLICE then
      mirror.start_over()
    end
  elseif same_consumer then
    -- Others put messages: the list has grown by that many at its newest end.
    local added = queue.length - noted
    if added < 0 or added > 5 * mirror.SLICE
      or added > 0 and not pcall(remember, call('LRANGE', queue.base, 0, added - 1)) then
      mirror.start_over()
    end
  else
    mirror.start_over()
  end
end

function mirror.load()
  local self = make()
  local noted, unmirrored, mirrored, consumed, producer, consumer =
    string.match(queue.index, '^(%d+) (%d+) (%d+) (%d+) (%S*) (%S*)$')
  if not noted then
    -- Written by another program, or by another version of this one.
    return mirror.start_over()
  end
  self.unmirrored, self.mirrored, self.is_garbage = tonumber(unmirrored), tonumber(mirrored), false
  self.producer, self.consumer = producer ~= '' and producer or nil, consumer ~= '' and consumer or nil
  catch_up(self, tonumber(noted), tonumber(consumed))
end

-- Write the index, if it has changed.
function mirror.save()
  local self = queue.mirror
  if self then
    note_roles(self)
    if self.is_changed and is_watched(self) then
      drop_garbage(self)
      -- If this is refused, the next call works the index out again.
      try('SET', queue.base .. INDEX, string.format('%d %d %d %d %s %s', queue.length, self.unmirrored,
        self.mirrored, queue.consumed, self.producer or '', self.consumer or ''))
    end
  end
end

-- Mirror many messages of a queue that is too long for a walk. Return whether that was possible.
local function extends_far(self)
  local before = self.unmirrored
  extend(FAR * mirror.SLICE)
  return self.unmirrored < before
end

-- Return which messages are in the list, as an exact array of 1 and 0; and how many of them were decided before the call
-- reached its limit of list entries: at least one, unless the call has extended the mirror instead.
function mirror.queued(messages)
  local self, present, count = queue.mirror, {}, #messages
  -- A transaction does all at once. To mirror the list is one walk over it in place of one for each message.
  if not block.patient and count * self.unmirrored > mirror.SCAN then extend(self.unmirrored) end
  if self.mirrored > 0 and not self.is_garbage then
    present = commands.values_of('SMISMEMBER', queue.base .. MEMBERS, messages)
    if self.unmirrored == 0 and not is_stale(self) then return present, count end
  end
  -- `stale` is computed once: to forget a message may make the mirror exact, but `present` is older.
  local found, walked, stale = {}, 0, is_stale(self)
  for i = 1, count do
    local held = present[i] == 1
    local is_queued = held and not stale
    if not is_queued and (held or self.unmirrored > 0) then
      local walk = held and queue.length or self.unmirrored
      if block.patient and walked > 0 and walked + walk > mirror.SCAN then
        return found, i - 1
      elseif block.patient and walk > mirror.SCAN and not held and extends_far(self) then
        return found, i - 1
      end
      walked = walked + walk
      the_call.work = the_call.work + the_call.ENTRY * walk
      if held then
        is_queued = call('LPOS', queue.base, messages[i])
        if not is_queued then mirror.forget_all(messages[i]) end
      else
        is_queued = call('LPOS', queue.base, messages[i], 'RANK', -1, 'MAXLEN', self.unmirrored)
      end
    end
    found[i] = is_queued and 1 or 0
  end
  return found, count
end

-- Mirror messages known not to be in the mirror.
function mirror.add(messages)
  local self = queue.mirror
  if self and #messages > 0 then
    drop_garbage(self)
    self.mirrored = self.mirrored + commands.with_all('SADD', queue.base .. MEMBERS, messages)
    self.is_changed = true
  end
end

-- Make the mirror if the queue has none; mirror some more messages.
function mirror.need()
  if not queue.mirror then make() end
  extend(mirror.SLICE)
end

return mirror
