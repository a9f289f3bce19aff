-- Logs: queues whose messages have offsets, so nothing may leave from the middle (docs/internals/logs.md). A message
-- that could not be delivered does not go back to the list: it waits in :ext:ready, and is the next to be taken.
--
-- Touches  :ext:ready   a sorted set: 'flags expires message' with its offset before it, for each message that has
--                       come back; the score is the offset. Clients that wait for a message watch this key
--          :ext:groups  the groups that read the log (groups.lua)

local records = require 'core/records'
local taking = require 'core/taking'
local marks = require 'kinds/marks'
local groups = require 'kinds/groups'
local list = require 'kinds/list'
local list_reads = require 'kinds/list_reads'

local log = {
  type = 'log', has_groups = true,
  -- The functions that a log has in common with a list:
  settle = list.settle, leave = list.leave, altered = list.altered,
  held_bytes = list.held_bytes, outstanding = list.outstanding, drop_expired = list.drop_expired,
  drop_oldest = list.drop_oldest, droppable = list.droppable, drop_newest = list.drop_newest, purge = list.purge,
  is_ready_for_put = list.is_ready_for_put, remove_copies = list.remove_copies, adopt = list.adopt,
  in_use = list.in_use, act_as = list.act_as, queued = list.queued,
  bytes_queued = list.bytes_queued, has_marks = list.has_marks, push = list.push,
}
-- The most messages, and about the most bytes, of one answer of `from` and `at`.
local AT_MESSAGES, AT_BYTES = 1000, 1048576

-- Begin to use a log: count the messages that have come back, and drop what all groups have passed.
function log.begin()
  list.begin()
  queue.returned = call('ZCARD', queue.key_of('ready'))
  queue.groups = call('EXISTS', queue.key_of('groups')) == 1
  if queue.groups and the_call.has_records() and not the_call.refusal then groups.drop_passed() end
end

-- Return a message that has come back, and its marks with its offset, from a member of the set.
local function parse(member)
  local offset, flags, expires, first = string.match(member, '^(%d+) (%d+) (%d+) ()')
  return string.sub(member, first), { flags, tonumber(expires), tonumber(offset) }
end

-- Return why nothing can be taken from the log itself, or nil.
function log.refusal_to_take()
  return queue.groups and { err = 'TYPE has-groups' } or nil
end

function log.refusal_to_put() end

function log.refusal_to_remove(newest)
  return log.refusal_to_take() or newest and { err = 'TYPE is-log' } or queue.in_use('consumer')
end

function log.remove() return log.refusal_to_remove(true), 0 end

function log.refusal_to_reserve()
  return log.refusal_to_take() or { err = 'TYPE no-reservations' }
end

function log.length() return queue.length + queue.returned end

log.available = log.length

-- Take at most `count` messages that have come back. Return them, and their marks.
local function take_returned(count)
  local messages, marks_of = {}, {}
  local found = call('ZPOPMIN', queue.key_of('ready'), count)
  for i = 1, #found, 2 do messages[#messages + 1], marks_of[#marks_of + 1] = parse(found[i]) end
  records.note_popped(messages)
  queue.returned = queue.returned - #messages
  block.changed = true
  return messages, marks_of
end

-- Take messages, those that have come back first.
function log.pop(self, count, most)
  local some, marks_of
  if queue.returned > 0 then
    some, marks_of = take_returned(count)
  else
    local position
    some, position, marks_of = list.pop_head(count, most)
    marks_of = marks_of or {}
    for i = 1, #some do
      marks_of[i] = marks_of[i] or { '0', 0 }
      marks_of[i][3] = position + i - 1 -- its offset
    end
  end
  local left, _, dropped = taking.unexpired(self, some, marks_of)
  return left, dropped
end

-- Takes    undelivered messages, and what `pop` noted of each: { flags, expires, offset }
function log.restore(messages, marks_of)
  for i in ipairs(messages) do marks_of[i] = marks_of[i] or { '0', 0, queue.consumed - 1 } end
  if queue.groups then
    groups.take_back(messages, marks_of)
    return 1, 0
  end
  for i, message in ipairs(messages) do
    local mark = marks_of[i]
    call('ZADD', queue.key_of('ready'), mark[3], string.format('%.0f %s %.0f ', mark[3], mark[1], mark[2]) .. message)
  end
  queue.returned = queue.returned + #messages
  block.changed = true
  return 1, 0
end

local function members(first, last)
  return queue.returned > 0 and first <= last and call('ZRANGE', queue.key_of('ready'), first, last) or {}
end

-- Takes    first, last: positions, as `range` in list_reads.lua; messages that have come back are the oldest
function log.range(first, last)
  if queue.returned == 0 then return list.range(first, last) end
  local count = log.length()
  first = math.max(0, first < 0 and first + count or first)
  last = math.min(count - 1, last < 0 and last + count or last)
  local found = {}
  for i, member in ipairs(members(first, last)) do found[i] = parse(member) end
  if last >= queue.returned then
    for _, message in ipairs(list.range(math.max(0, first - queue.returned), last - queue.returned)) do
      found[#found + 1] = message
    end
  end
  return found
end

-- Takes    an offset; and a count, as `scan` in list_reads.lua
function log.scan(position, count)
  local returned = queue.returned > 0 and position < queue.consumed
    and call('ZRANGEBYSCORE', queue.key_of('ready'), position, '+inf', 'LIMIT', 0, count) or {}
  if #returned == 0 then return list.scan(position, count) end
  local messages, mark = {}, nil
  for i, member in ipairs(returned) do messages[i], mark = parse(member) end
  return { string.format('%.0f', math.min(mark[3] + 1, queue.consumed)), messages }
end

function log.peek()
  local member = members(0, 0)[1]
  if not member then return list.peek() end
  local message, mark = parse(member)
  return { message, mark[1] ~= '0' and mark[1] or '' }
end

function log.contains(messages)
  local found, left = list.contains(messages)
  for _, member in ipairs(members(0, -1 + queue.returned)) do
    local message = parse(member)
    for i = 1, #found do
      if messages[i] == message then found[i] = 1 end
    end
  end
  return found, left
end

function log.flush()
  local count, flushed = log.length(), list.flush()
  if type(flushed) == 'table' then return flushed end
  call('DEL', queue.key_of('ready'))
  queue.returned = 0
  return count
end

-- Keep the messages from position `first` on: nothing leaves the other end.
function log.keep(first)
  local gone = math.min(first, queue.returned)
  if gone > 0 then
    call('ZPOPMIN', queue.key_of('ready'), gone)
    queue.returned = queue.returned - gone
    block.changed = true
  end
  if first > gone then list.keep(first - gone, queue.length - 1) end
end

-- As `list_reads.positions`. Positions in messages that have come back change when these are taken.
function log.positions(...)
  return queue.returned > 0 and { err = 'TYPE no-positions' } or list.positions(...)
end

function log.sample(seed, count)
  local length = log.length()
  if length > 0 and count >= length then return log.range(0, -1) end
  return list_reads.pick(seed, count, length, function(position) return log.range(position, position)[1] end)
end

function log.next_to_move()
  local member = members(0, 0)[1]
  if not member then return list.next_to_move() end
  return (parse(member))
end

function log.take_moved()
  if queue.returned > 0 then
    take_returned(1)
  else
    list.take_moved()
  end
end

-- As list.version. The text changes when all groups have passed a message, but not when it is dropped, maybe later.
function log.version()
  local slowest = queue.groups and call('ZRANGE', queue.key_of('groups'), 0, 0, 'WITHSCORES')[2]
  local tail = queue.consumed + queue.length
  return string.format('log %.0f %.0f %d %d %s', math.min(tail, math.max(queue.consumed, tonumber(slowest) or 0)), tail,
    queue.returned, queue.is_closed() and 1 or 0, queue.made or '')
end

-- Return the offsets of the head and the tail, and how many groups read the log.
function log.offsets()
  local groups_count = call('ZCARD', queue.key_of('groups'))
  return string.format('%.0f', queue.consumed), string.format('%.0f', queue.consumed + queue.length), groups_count
end

-- Takes    an offset, and how many messages from there on
-- Returns  the messages, false for each that is gone; fewer at the end of the log, or if they are large; or an
--          error if the first offset is yet to come. `texts` is as in marks.look
function log.from(offset, count, texts)
  local head, tail = queue.consumed, queue.consumed + queue.length
  if offset >= tail then return { err = string.format('AHEAD %.0f', tail) } end
  local last = math.min(tail, offset + math.min(count, AT_MESSAGES)) - 1
  local found, bytes = {}, 0
  local came_back, noted = {}, marks.present()
  texts = texts or {}
  if offset < head then
    for _, member in ipairs(call('ZRANGEBYSCORE', queue.key_of('ready'), offset, last)) do
      local message, mark = parse(member)
      came_back[mark[3]] = message
    end
  end
  while offset <= last and bytes < AT_BYTES do
    local some = offset >= head and list.range(offset - head, math.min(last, offset + 99) - head)
      or { came_back[offset] or false }
    local marks_of = noted and offset >= head and marks.look(noted, some, offset, tail - offset, texts) or {}
    for i, message in ipairs(some) do
      found[#found + 1] = message and not marks.is_expired(marks_of[i]) and message
      bytes = bytes + (message and #message or 0)
      offset = offset + 1
    end
  end
  return found
end

-- Takes    offsets
-- Returns  for each the message, false if it is gone, or an error if it is yet to come; and how many are left for
--          another call, because the messages are large
function log.at(offsets)
  local found, bytes, texts = {}, 0, {}
  for i, offset in ipairs(offsets) do
    if bytes >= AT_BYTES then return found, #offsets - i + 1 end
    local first = log.from(tonumber(offset), 1, texts)
    found[i] = first.err and first or first[1]
    bytes = bytes + #(found[i] or '')
  end
  return found
end

queue.kinds.log = log

return log
