-- Get and reserve, for many commands at once; and peek. Gets act as the consumer and count messages as
-- consumed. Expired messages are dropped when they reach the head.
--
-- Options of get:
--   existing      do not wait for the queue to be created
--   waits         wait for messages: one for each command
--   several       all messages are for one command, which waits only for the first
--   otherwise     take nothing if the run before, on another queue of the same command, has taken any (batch.lua)
--   flags         return the messages, then their flags
--   final         take the messages for good, also from a queue with ACK NEXT
--
-- Touches  as the queue's kind takes messages, :not_full, and the records

local room = require 'core/room'
local waiting = require 'core/waiting'
local taking = require 'core/taking'
local mirror = require 'kinds/mirror'

local get = {}

-- Take up to `wanted` messages. Return them, oldest first; and how many are left for another call.
local function pop(self, wanted)
  local kind = queue.kind
  if wanted < 1 or kind.available() < 1 then return {}, 0 end
  local refusal = kind.in_use('consumer')
  if refusal then return refusal, 0 end
  local messages, is_first, bytes, expired = nil, true, 0, 0
  local most, changed_before = block.patient and taking.BYTES or math.huge, block.changed
  repeat
    local count = math.min(wanted - (messages and #messages or 0), taking.MESSAGES, kind.available())
    local some, dropped = kind.pop(self, count, most - bytes)
    bytes, expired = bytes + commands.sum_of_bytes(some), expired + dropped
    if self.claims then
      local ttr = self.claims.ttr
      self.claims = commands.slice(self.claims, #some + 1, #self.claims)
      self.claims.ttr = ttr
    end
    if messages then
      if is_first then messages, is_first = commands.slice(messages, 1, #messages), false end -- the original is noted (records.lua)
      for i = 1, #some do messages[#messages + 1] = some[i] end
    else
      messages = some
    end
    -- A job that an error has left in two states is counted, but cannot be taken.
    local is_stuck = #some + dropped == 0
    if #some == 0 and dropped > 0 then expired = expired + kind.drop_expired() end -- all, not as many as are wanted
  until is_stuck or #messages >= wanted or bytes >= most or expired >= taking.EXPIRED and block.patient
    or kind.available() == 0
  kind.act_as('consumer')
  mirror.extend()
  room.settle()
  if #messages == 0 then
    block.changed = changed_before -- expired messages were dropped, but none was taken
  end
  return messages, kind.available() > 0 and wanted - #messages or 0
end

-- Take up to `wanted` messages, for commands that wait for one each. Return the messages, false if there is no queue,
-- or an error if it is closed and empty; how many are left for another call; and how many are waited for.
local function take(self, wanted)
  local kind = queue.kind
  if queue.bound and kind.available() == 0 then
    if queue.is_finished() then return { err = 'CLOSED' }, 0 end
    call('HDEL', queue.base .. ':ext:settings', 'since') -- a waiting client counts as use (housekeeping.lua)
  end
  local messages, left = {}, 0
  local most = queue.bound and waiting.allowed(wanted) or 0 -- without :bound, a native Delete is in progress
  if most > 0 and kind.available() > 0 then
    messages, left = pop(self, most)
    if messages.err then return messages, 0 end
  end
  local missing = wanted - #messages
  if missing > 0 and left == 0 and not (self.options.several and #messages > 0) then
    return queue.bound and messages or false, 0, missing
  end
  return messages, left
end

-- Return the messages, oldest first, or false if there is no queue, or an error; how many are left for another call; and
-- if the get waits, the function to call when there may be more. Return nothing if all is left for another call.
-- `again` is the function of this file that gets the rest, as the verb says: a put may have created the queue meanwhile.
local function get_some(options, wanted, claims, again)
  if not queue.bound and (options.existing or not options.waits) then
    return { err = 'NOQUEUE' }, 0
  end
  local kind = queue.kind
  local refusal = queue.bound and (claims and queue.kind.refusal_to_reserve or queue.kind.refusal_to_take)()
  if refusal then
    return refusal, 0
  elseif queue.kind ~= kind and queue.jobs.has_due then
    return nil -- it has become one of jobs, and the first one is not known yet
  end
  local self = { options = options, claims = claims, flags = nil } -- flags of the taken messages, if any has marks
  local messages, left, missing = (options.waits and take or pop)(self, wanted)
  if options.flags and not claims and messages and #messages > 0 then
    -- After the messages, the flags of all, or '' if all are 0. Flags before each message would copy it.
    messages[#messages + 1] = self.flags and table.concat(self.flags, ' ') or ''
  end
  return messages, left, missing and function()
    return again(options, self.claims or missing)
  end
end

-- Return whether to take nothing, because the caller does not know what a pop does here: whether the messages are taken
-- for good, or reserved until the client's next pop (ACK NEXT). The reply says so (batch.lua), and the caller tries again.
local function is_mistaken(reserves)
  local keeps = queue.bound and queue.jobs and queue.jobs.settings.ack and true or false
  if keeps == reserves then return false end
  block.keeps = keeps
  return true
end

-- Takes    how many messages are wanted. Returns what `get_some` does
function get.get(options, wanted)
  if block.patient and not options.final and is_mistaken(false) then return {}, wanted end
  return get_some(options, wanted, nil, get.get)
end

-- Get from a queue with ACK NEXT, as `reserve` does. The reservations have the queue's ACK-TTR, or no end.
function get.pop(options, claims)
  if #claims > 0 and is_mistaken(true) then return queue.bound and {} or false, #claims end
  claims.ttr = tonumber(queue.bound and call('HGET', queue.base .. ':ext:settings', 'ack_ttr') or 0)
  return get_some(options, #claims, claims, get.pop)
end

-- Takes a claim for each message (job_gets.lua), and returns each as 'id ttr flags reserves message'.
function get.reserve(options, claims)
  return get_some(options, #claims, claims, get.reserve)
end

-- Returns  the oldest message that has not expired, and its flags, '' for 0; or an empty list. With the option
--          `waits`, false if there is no queue
function get.peek(options)
  if not queue.bound then return not options.waits and { err = 'NOQUEUE' } end
  return queue.kind.peek()
end

return get
