-- Distinct messages: queues of the types lifo and random, while no message is queued twice and nothing needs jobs; then
-- they become queues of jobs (docs/internals/jobs.md#orders-without-jobs). list.lua explains the functions of a kind.
--
-- Touches  :ext:ready  a sorted set: the messages, by the order in which they were put
--
-- Native clients put messages into the list; these are adopted when a server uses the queue.

local room = require 'core/room'
local records = require 'core/records'
local jobs = require 'kinds/jobs'
local job_queue = require 'kinds/job_queue'
local list = require 'kinds/list'
local list_reads = require 'kinds/list_reads'

local function nothing() end

local distinct = {
  become_jobs = jobs.convert, refusal_to_reserve = jobs.convert,
  -- As in a queue of jobs, no operation needs a role, and these do not exist.
  in_use = job_queue.in_use, act_as = job_queue.act_as,
  length = job_queue.length, positions = job_queue.positions, bytes_queued = job_queue.bytes_queued,
  altered = nothing, drop_expired = nothing, refusal_to_take = nothing, refusal_to_remove = nothing,
  -- As in a list:
  at = list.at, from = list.from, offsets = list.offsets, contains = list.contains, leave = list.leave,
  held_bytes = list.held_bytes, outstanding = list.outstanding, refusal_to_put = list.refusal_to_put,
}
-- Messages that one call adopts or purges; messages picked at once if a sample may have repeats.
local AT_ONCE, PICKED_AT_ONCE = 1000, 100
-- Of the present queue: how many messages are in the set; and whether more are in the list than one call adopts.
local in_set, has_unadopted = 0, false

local function key() return queue.key_of('ready') end

-- Return the messages that are taken next.
local function next_messages(count)
  if queue.word == 'random' then return call('ZRANDMEMBER', key(), count) end
  return call('ZRANGE', key(), 0, count - 1, 'REV')
end

-- Return for each message whether it is in the set.
local function present(messages)
  return commands.values_of('ZMSCORE', key(), messages)
end

local function has_copies(messages)
  local seen = {}
  for i, is_present in ipairs(present(messages)) do
    if is_present or seen[messages[i]] then return true end
    seen[messages[i]] = true
  end
  return false
end

-- Add messages that are not in the set, the oldest first.
local function add(messages)
  local newest, places = tonumber(call('ZRANGE', key(), -1, -1, 'WITHSCORES')[2] or 0), {}
  for i = 1, #messages do places[2 * i - 1], places[2 * i] = newest + i, messages[i] end
  if #places > 0 then commands.with_all('ZADD', key(), places) end
  in_set, queue.length = in_set + #messages, queue.length + #messages
end

-- Take these messages, which are in the set, out of it.
local function drop(messages)
  if #messages > 0 then
    commands.with_all('ZREM', key(), messages)
    in_set, queue.length = in_set - #messages, queue.length - #messages
    queue.count_as('consumed', #messages, commands.sum_of_bytes(messages))
  end
end

-- Take messages from the list into the set. Return whether some are left.
local function adopt(most)
  if not the_call.has_records() or queue.in_use('consumer') then return false end
  local messages = list_reads.range(0, most - 1)
  if has_copies(messages) then
    jobs.convert()
    return false
  end
  queue.length = queue.length - #messages
  add(messages)
  call('RPOP', queue.base, #messages)
  queue.act_as('consumer')
  block.changed = true
  the_call.work = the_call.work + the_call.MESSAGE * #messages
  return call('EXISTS', queue.base) == 1
end

function distinct.begin()
  local in_list = queue.length
  in_set = call('ZCARD', key())
  queue.length = in_list + in_set
  has_unadopted = in_list > 0 and not the_call.refusal and adopt(AT_ONCE)
end

function distinct.settle()
  if block.changed and queue.bound and room.may_be_full() then room.settle() end
end

function distinct.available() return in_set end

-- Take messages. None has marks.
function distinct.pop(_, count, most)
  if count > 1 then
    local weight = math.max(1, commands.sum_of_bytes(next_messages(1)))
    count = math.max(1, math.min(count, math.floor(most / weight)))
  end
  local some = next_messages(count)
  drop(some)
  records.note_popped(some)
  return some, 0
end

function distinct.push(self, messages, marks_of)
  if not self.is_add and has_copies(messages) then
    jobs.convert()
    queue.kind.adopt()
    return queue.kind.push(self, messages, marks_of)
  end
  add(messages)
  queue.count_as('produced', #messages, commands.sum_of_bytes(messages))
end

-- Older messages come first. A copy makes jobs of all messages; if these are many, other calls do that before the put.
function distinct.is_ready_for_put(options, messages)
  if has_unadopted and block.patient then
    return false
  elseif in_set <= AT_ONCE or not block.patient or options.unique or not has_copies(messages) then
    return true
  end
  jobs.convert()
  return queue.kind.is_ready_for_put(options)
end

function distinct.is_behind() return has_unadopted end

function distinct.drop_oldest(count)
  drop(call('ZRANGE', key(), 0, count - 1))
  room.settle()
end

distinct.droppable = distinct.available

function distinct.purge(state)
  local count, is_more = 0, state == 'ready' and in_set > 0
  while is_more do
    local some = call('ZRANGE', key(), 0, AT_ONCE - 1)
    drop(some)
    count, is_more = count + #some, in_set > 0
    if block.patient then break end
  end
  return count, is_more
end

-- Takes    messages that have not been delivered, in the order in which they were taken
function distinct.restore(messages, marks_of)
  if has_copies(messages) then
    jobs.convert()
    return queue.kind.restore(messages, marks_of)
  end
  add(commands.reversed(messages))
  queue.count_as('consumed', -#messages, -commands.sum_of_bytes(messages))
  pcall(room.settle)
  return 1, 0
end

function distinct.queued(messages)
  queue.kind.adopt()
  if queue.kind.queued ~= distinct.queued then return queue.kind.queued(messages) end
  local found = present(messages)
  for i, is_present in ipairs(found) do found[i] = is_present and 1 or 0 end
  the_call.work = the_call.work + the_call.MESSAGE * #messages
  return found, #messages
end

-- Return the messages between two positions, newest first: as a lifo takes them.
function distinct.range(first, last)
  return call('ZRANGE', key(), first, last, 'REV')
end

-- Takes    0, or a cursor that it returned; and a count
function distinct.scan(position, count)
  position = math.max(0, position - list_reads.SET_CURSOR)
  local cursor, found = unpack(call('ZSCAN', key(), string.format('%.0f', position), 'COUNT', count))
  local messages = {}
  for i = 1, #found, 2 do messages[#messages + 1] = found[i] end
  return { cursor == '0' and cursor or string.format('%.0f', cursor + list_reads.SET_CURSOR), messages }
end

-- See list_reads.lua. The seed is not needed.
function distinct.sample(_, count)
  if count >= 0 then return call('ZRANDMEMBER', key(), count) end
  local picked, bytes = {}, 0
  while #picked < -count and in_set > 0 do
    for _, message in ipairs(call('ZRANDMEMBER', key(), math.max(count + #picked, -PICKED_AT_ONCE))) do
      picked[#picked + 1], bytes = message, bytes + #message
    end
    if bytes > list_reads.SAMPLE_BYTES then return { err = 'TOOLARGE' } end
  end
  return picked
end

function distinct.peek()
  local message = next_messages(1)[1]
  return message and { message, '' } or {}
end

function distinct.remove(messages)
  local found, decided = distinct.queued(messages)
  local some, seen = {}, {}
  for i = 1, decided do
    if seen[messages[i]] then found[i] = 0 end
    if found[i] == 1 then some[#some + 1], seen[messages[i]] = messages[i], true end
  end
  drop(some)
  room.settle()
  return found, #messages - decided
end

function distinct.remove_copies(_, message)
  local removed, left = distinct.remove({ message })
  return left == 0 and { removed[1] } or {}, left
end

function distinct.adopt()
  if has_unadopted then
    has_unadopted = adopt(call('LLEN', queue.base))
    if not queue.kind.become_jobs then queue.kind.adopt() end
  end
end

-- Keep the messages from position `first` to `last`, or none if `last` is before `first`.
function distinct.keep(first, last)
  drop(distinct.range(last + 1, -1))
  if first > 0 then drop(distinct.range(0, first - 1)) end
end

-- Return the message that is moved (move.lua), twice: it takes the place of a job's id, too.
function distinct.next_to_move()
  local message = next_messages(1)[1]
  return message, message
end

function distinct.take_moved(wanted, message)
  drop({ wanted or message })
  records.note_popped({ wanted or message })
  room.settle()
end

function distinct.version()
  local stats = call('MGET', queue.base .. ':stats:produced_messages', queue.base .. ':stats:consumed_messages')
  return string.format('%s %d %s %s %d %s', queue.word, queue.length, stats[1] or '', stats[2] or '',
    queue.is_closed() and 1 or 0, queue.made or '')
end

queue.kinds.lifo, queue.kinds.random = distinct, distinct

return distinct
