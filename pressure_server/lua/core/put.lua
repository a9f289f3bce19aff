-- Put, for many commands at once.
--
-- Takes    sizes      the number of messages of each command, 'n n n'; '' if each has one
--          messages   the messages of all commands, in order
-- Returns  an error for all commands, or their values (see `put` and `add`); how many commands are left for
--          another call; and if commands wait for room, the function to call when there may be more
--
-- Options:
--   existing  do not create the queue
--   unique    put only messages that are not queued
--   flags     each message follows its flags and expiry (marks.lua); each command has one message
--   job       each message follows 'priority delay ttr flags expires ' (jobs.lua); the values are ids of jobs; with
--             `unique`, for a job that is queued already the id of that one
--   by        each job follows 'n ' and a key of n bytes, which makes it unique in a queue of unique jobs
--   wait      wait for room, even if the queue's overflow is not block
--   now       never wait for room
--   overfill  put even if there is no room
--   goes_round  the message has just been taken from the same queue (move.lua)
--   overwrite  make room: drop the oldest messages. Without `unique`, the values are how many each command drops
--   offset    the values are the offsets of each command's first message; only for logs
--   once      the first message of each command is 'seconds most id': a transaction id, and for how long and for how
--             many puts the outcome is kept at least (once.lua)
--
-- If there is no room, the queue's overflow applies, unless an option overrides it:
--   error    a command is accepted whole or not at all; the value of a refused command is -1
--   block    messages are accepted one by one. If not all fit, the value is { 'part', done, new, values }:
--            the values of the finished commands; and for the next command, how many of its messages are done
--            and how many of these were new
--   overwrite  all messages are accepted, and the oldest ones dropped
--
-- Touches  as the queue's kind puts, and :not_full

local room = require 'core/room'
local records = require 'core/records'
local once = require 'core/once'
local life = require 'core/life'
local marks = require 'kinds/marks'
local mirror = require 'kinds/mirror'
local jobs = require 'kinds/jobs'

local put = { FULL = -1 }
local FULL = put.FULL
-- Messages that a put drops in addition to the number that it puts. There are more if a limit was lowered, or a message is
-- as large as thousands of others.
local DROPPED_AT_ONCE = 1000

-- Return why nothing can be put, or nil; create the queue if that is allowed. Roles come later, because a full queue
-- takes precedence. CREATING: the native client that creates the queue has yet to push :not_full.
function put.refusal(options)
  if not queue.bound then
    if the_call.arguments[HEADER_BOUND] == '' or options.existing then
      return { err = 'NOQUEUE' }
    end
    local made = life.create_for_put()
    if made ~= 1 then return made end
  end
  if queue.is_closed() then
    return { err = 'CLOSED' }
  elseif not queue.producer and not queue.consumer and not queue.word
    and not queue.has_token() then
    return { err = 'CREATING' }
  end
end

-- Return how many of `wanted` messages may be put now. Note whether the oldest ones must be dropped for that. If a native
-- consumer has taken a message from a full queue, the queue counts as full until the consumer has pushed :not_full.
local function space_for(self, wanted)
  local options = self.options
  self.overwrites = false
  if options.overfill or not room.may_be_full() then return math.huge end
  local space = 0
  if queue.has_token() or queue.is_free('consumer') then
    if room.is_full() then queue.kind.drop_expired() end
    space = queue.bound == 0 and math.huge or math.max(0, queue.bound - queue.length)
    if room.is_heavy() then space = 0 end
  end
  self.overwrites = wanted > space and (options.overwrite or not options.wait and queue.overflow() == 'overwrite')
  return self.overwrites and math.huge or space
end

-- Drop the oldest messages; of jobs those that are ready, which may be fewer.
local function drop(count)
  local before = queue.length
  queue.kind.drop_oldest(count)
  call('HINCRBY', queue.base .. ':ext:settings', 'dropped', before - queue.length)
end

-- Drop the oldest messages if the queue overwrites, and the put has exceeded its bound or its limit of bytes.
local function drop_excess(self, accepted)
  if self.overwrites and queue.bound > 0 and queue.length > queue.bound then
    drop(math.min(queue.length - queue.bound, accepted + DROPPED_AT_ONCE))
  end
  local left = self.overwrites and accepted + DROPPED_AT_ONCE or 0
  while left > 0 and queue.kind.droppable() > 1 and room.is_heavy() do
    drop(1)
    left = left - 1
  end
end

local function may_wait(options)
  return block.patient and not options.now and (options.wait or queue.overflow() == 'block')
end

-- Return whether messages are put one by one when there is room.
local function waits_for_room(options)
  return not options.once and may_wait(options)
end

-- Put messages, for which there is room. Return their ids if they are jobs; and for each 1 if it is new, else 0, or nil
-- if all are.
local function push(self, messages, marks_of)
  local ids, is_new
  if #messages > 0 then ids, is_new = queue.kind.push(self, messages, marks_of) end
  if self.options.goes_round then records.note_held() end
  room.settle()
  -- The messages have been put: from here on, an error must not refuse the put.
  if self.overwrites then pcall(drop_excess, self, #messages) end
  return ids, is_new
end

local function sizes_of(text, messages)
  local sizes = {}
  if text == '' then
    for i = 1, #messages do sizes[i] = 1 end
  else
    for size in string.gmatch(text, '%d+') do sizes[#sizes + 1] = tonumber(size) end
  end
  return sizes
end

local put_plain, put_new

-- Return how many of the messages from `first` to `last` are new; is_new has 1 or 0 for each, or is nil if all are.
local function count_new(is_new, first, last)
  local count = is_new and 0 or last - first + 1
  for i = first, is_new and last or 0 do count = count + is_new[i] end
  return count
end

-- Return the value { 'part', … } after `done` messages, and the function that continues. is_new is as in `count_new`.
-- `before` is the queue's length, if the commands' values are lengths.
local function part(self, sizes, messages, done, is_new, before)
  local values, at = {}, 0
  for i = 1, #sizes do
    if at + sizes[i] > done then break end
    at = at + sizes[i]
    values[i] = before and before + at or count_new(is_new, at - sizes[i] + 1, at)
  end
  local rest_sizes, rest = commands.slice(sizes, #values + 1, #sizes), commands.slice(messages, done + 1, #messages)
  rest_sizes[1] = (rest_sizes[1] or 0) - (done - at)
  return { 'part', done - at, count_new(is_new, at + 1, done), values }, function()
    local refusal = not queue.bound and { err = 'NOQUEUE' } or put.refusal(self.options)
    if refusal then return refusal, 0 end
    if self.marks then self.marks = commands.slice(self.marks, done + 1, #self.marks) end
    return (self.is_add and put_new or put_plain)(self, table.concat(rest_sizes, ' '), rest)
  end
end

-- Accept the commands that fit, each whole. Return their messages, and the length after each command.
local function fit_whole(sizes, messages, space)
  local accepted, lengths, at = {}, {}, 1
  for i, size in ipairs(sizes) do
    if size <= space then
      for j = at, at + size - 1 do accepted[#accepted + 1] = messages[j] end
      space = space - size
      lengths[i] = queue.length + #accepted
    else
      lengths[i] = FULL
    end
    at = at + size
  end
  return accepted, lengths
end

-- Return the values of all commands if there is no room.
local function all_full(sizes_text, messages)
  return select(2, fit_whole(sizes_of(sizes_text, messages), messages, 0))
end

-- Return a result with new values for the commands that were accepted. value_of(i) is called for each, in order.
local function with_values(result, sizes, value_of)
  local is_list = type(result) == 'table'
  local values = is_list and (result[1] == 'part' and result[4] or result) or {}
  for i = 1, is_list and #values or #sizes do
    if values[i] ~= FULL then values[i] = value_of(i) end
  end
  return is_list and result or values
end

-- Return the value of each command in a queue that overwrites: with the option, how many messages it has dropped, else
-- the length after it. `before` is the length before the first.
local function values_after_drop(self, sizes, before)
  local values, length = {}, before
  for i, size in ipairs(sizes) do
    local after = math.min(length + size, queue.length)
    values[i] = self.options.overwrite and length + size - after or after
    length = after
  end
  return values
end

-- Return the commands' values in place of lengths, if the options or the queue say so. `offset` is that of the first
-- message; `ids` and is_new are as in `push`.
local function values_of(self, result, sizes_text, messages, before, offset, ids, is_new)
  local options = self.options
  if options.job then
    local at = 0
    return ids and with_values(result, ids, function()
      at = at + 1
      return ids[at]
    end) or result
  elseif options.offset then
    local sizes = sizes_of(sizes_text, messages)
    return with_values(result, sizes, function(i)
      offset = offset + sizes[i]
      return offset - sizes[i]
    end)
  elseif options.overwrite or self.overwrites then
    return values_after_drop(self, sizes_of(sizes_text, messages), before)
  elseif is_new then
    local sizes, at, length = sizes_of(sizes_text, messages), 0, before
    return with_values(result, sizes, function(i)
      length, at = length + count_new(is_new, at + 1, at + sizes[i]), at + sizes[i]
      return length
    end)
  end
  return result
end

-- Return the refusal of a role that the put needs, or nil; and for how many messages there is space.
local function refusal_and_space(self, wanted)
  local kind, space = queue.kind, space_for(self, wanted) -- this may drop expired messages
  local refusal = kind.in_use('producer') or self.overwrites and kind.in_use('consumer')
  if not refusal and space > 0 then kind.act_as('producer') end
  return refusal, space
end

-- Return the previous length if all messages are accepted; else the length after each command.
function put_plain(self, sizes_text, messages)
  local refusal, space = refusal_and_space(self, #messages)
  if refusal and space > 0 then return refusal, 0 end
  local before, offset = queue.length, queue.consumed + queue.length
  local accepted, result, go_on = messages, before, nil
  if #messages > space then
    local sizes = sizes_of(sizes_text, messages)
    if waits_for_room(self.options) then
      accepted = commands.slice(messages, 1, space)
      result, go_on = part(self, sizes, messages, space, nil, before)
    else
      accepted, result = fit_whole(sizes, messages, space)
    end
  end
  if refusal then
    return result, 0, go_on -- a native producer holds the role, possibly because it waits for room, too
  end
  local ids, is_new = push(self, accepted, self.marks)
  return values_of(self, result, sizes_text, messages, before, offset, ids, is_new), 0, go_on
end

-- Accept one command after the other, each whole or not at all.
local function add_whole(sizes, messages, space)
  local found, decided = queue.kind.queued(messages, true)
  local accepted, counts, chosen = {}, {}, {}
  local at = 1
  for i, size in ipairs(sizes) do
    local last = at + size - 1
    if last > decided then
      if i == 1 then mirror.hurry() end
      break
    end
    local count = 0
    for j = at, last do
      local message = messages[j]
      if found[j] ~= 1 and not chosen[message] then
        chosen[message] = i
        count = count + 1
      end
    end
    local accept = count <= space
    for j = at, last do
      if chosen[messages[j]] == i then
        if accept then accepted[#accepted + 1] = messages[j] end
        chosen[messages[j]] = accept or nil
      end
    end
    if accept then space = space - count end
    counts[i] = accept and count or FULL
    at = last + 1
  end
  return accepted, counts, #sizes - #counts
end

-- Return how many messages are done, up to the first that does not fit; those of them that are new; for each whether it
-- is new; and whether the call could not decide that of the next one.
local function fit_in_order(messages, space)
  local accepted, chosen, is_new, done = {}, {}, {}, 0
  while done < #messages do
    local ahead = { unpack(messages, done + 1, math.min(#messages, done + math.max(1, math.min(space, commands.CHUNK)))) }
    local found, decided = queue.kind.queued(ahead, true)
    for j = 1, decided do
      local is_queued = found[j] == 1 or chosen[ahead[j]]
      if not is_queued and space == 0 then
        return done, accepted, is_new, false
      elseif not is_queued then
        chosen[ahead[j]] = true
        accepted[#accepted + 1] = ahead[j]
        space = space - 1
      end
      done = done + 1
      is_new[done] = is_queued and 0 or 1
    end
    if decided < #ahead then return done, accepted, is_new, true end
  end
  return done, accepted, is_new, false
end

-- Accept one message after the other, up to the first that does not fit.
local function add_in_order(self, sizes, messages, space)
  local done, accepted, is_new, undecided = fit_in_order(messages, space)
  if undecided and done == 0 then mirror.hurry() end
  local result, go_on = part(self, sizes, messages, done, is_new)
  if done == #messages then return accepted, result[4], 0 end
  if undecided then return accepted, result, #sizes - #result[4] end
  return accepted, result, 0, go_on
end

-- Put the accepted messages. `marks` has the marks of all `messages`; it is nil if none has any.
local function push_new(self, accepted, messages, marks)
  mirror.add(accepted)
  local marks_of, marks_of_accepted = {}, marks and {}
  for i = marks and #messages or 0, 1, -1 do marks_of[messages[i]] = marks[i] end
  for i = 1, marks and #accepted or 0 do marks_of_accepted[i] = marks_of[accepted[i]] end
  push(self, accepted, marks_of_accepted)
end

-- Put one command after the other into a queue that overwrites: what one of them drops, the next may put again.
local function add_to_ring(self, sizes, messages)
  local counts, at = {}, 1
  for i, size in ipairs(sizes) do
    local some = commands.slice(messages, at, at + size - 1)
    local accepted, count = add_whole({ size }, some, math.huge)
    if not count[1] then break end
    push_new(self, accepted, some, self.marks and commands.slice(self.marks, at, at + size - 1))
    counts[i], at = count[1], at + size
    the_call.work = the_call.work + the_call.BLOCK
    if block.patient and the_call.is_long_enough() then break end
  end
  return counts, #sizes - #counts
end

-- Put only messages that are not queued. Return how many messages of each command were new.
function put_new(self, sizes_text, messages)
  local refusal, space = refusal_and_space(self, #messages)
  local sizes = sizes_of(sizes_text, messages)
  if refusal then
    if space > 0 then return refusal, 0 end
    -- As in `put_plain`. Messages that are queued already wait, too, because only the role allows an answer.
    if waits_for_room(self.options) then
      local result, go_on = part(self, sizes, messages, 0, {})
      return result, 0, go_on
    end
    return all_full(sizes_text, messages), 0
  end
  if self.overwrites then return add_to_ring(self, sizes, messages) end
  local accepted, result, left, go_on
  if #messages > space and waits_for_room(self.options) then
    accepted, result, left, go_on = add_in_order(self, sizes, messages, space)
  else
    accepted, result, left = add_whole(sizes, messages, space)
  end
  push_new(self, accepted, messages, self.marks)
  return result, left, go_on
end

-- Make this a queue of jobs, because a put needs that. Return an error, or nil; or a result, if there is no room.
local function convert(self, sizes_text, messages)
  local refusal = jobs.refusal_to_convert() or self.options.by and { err = 'TYPE not-unique' }
  if not refusal and space_for(self, 1) == 0 and not waits_for_room(self.options) then
    return all_full(sizes_text, messages) -- nothing is changed
  end
  return refusal or jobs.convert()
end

local function put_any(self, sizes_text, messages)
  local options = self.options
  local refusal = put.refusal(options)
  local needs_jobs = options.job or options.flags and queue.kind.become_jobs
  if not refusal and needs_jobs and not queue.kind.has_deliveries then
    refusal = convert(self, sizes_text, messages)
  end
  refusal = refusal or queue.kind.refusal_to_put(options)
  if refusal then
    return refusal, 0
  elseif not queue.kind.is_ready_for_put(options, messages) then
    return {}, #sizes_of(sizes_text, messages)
  end
  if options.flags then
    if queue.kind.has_marks then marks.present(true) end
    local marked = messages
    messages, self.marks = {}, {}
    for i, one in ipairs(marked) do messages[i], self.marks[i] = marks.unmark(one) end
  end
  self.is_add = options.unique and not options.job
  return (self.is_add and put_new or put_plain)(self, sizes_text, messages)
end

function put.put(options, sizes_text, messages)
  local self = { options = options, marks = nil, overwrites = false, is_add = false }
  if options.once then
    return once.put(self, sizes_of(sizes_text, messages), messages, { any = put_any, may_wait = may_wait, FULL = FULL })
  end
  return put_any(self, sizes_text, messages)
end

return put
