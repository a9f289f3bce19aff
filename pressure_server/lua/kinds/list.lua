-- Lists: queues that keep their messages in the list of the protocol. All kinds have the functions of this one: those of
-- log.lua, distinct.lua and job_queue.lua, too.
--
--   begin       when the call enters the queue; before it leaves it: settle, which may enter other queues, and leave
--   in_use      an error if a native client holds the role that the operation needs; act_as: note the role's holder
--   available   how many messages can be taken now; pop: take some; restore: put back what was not delivered
--   push        put messages, for which there is room; drop_expired, drop_oldest: make room
--   queued      which messages are in the queue (mirror.lua)
--   is_behind   whether messages must be adopted before anything is done; adopt: adopt those that native clients have
--               put, if the kind keeps its messages elsewhere
--   outstanding, held_bytes   how many jobs are neither queued nor consumed, and their bytes
--   refusal_to_put, …         why an operation is refused, or nil
--   do_worker_block           in this kind only: do a block on the fast path (list_worker.lua)
--   the verbs of verbs.lua that depend on the kind, and what move.lua and life.lua need
--
-- Only lists and logs have roles, a mirror (mirror.lua) and marks (marks.lua). A list of which clients have reserved
-- messages has jobs, too (jobs.lua).

local room = require 'core/room'
local records = require 'core/records'
local taking = require 'core/taking'
local marks = require 'kinds/marks'
local mirror = require 'kinds/mirror'
local jobs = require 'kinds/jobs'
local job_times = require 'kinds/job_times'
local job_gets = require 'kinds/job_gets'
local dead_letters = require 'kinds/dead_letters'
local reads = require 'kinds/list_reads'
local list_worker = require 'kinds/list_worker'

local function nothing() end

local function zero() return 0 end

local list = {
  type = 'fifo', has_marks = true,
  in_use = queue.in_use, act_as = queue.act_as,
  available = reads.length, droppable = reads.length,
  outstanding = zero, held_bytes = zero, -- reserved messages of a list count as consumed
  adopt = nothing, settle = nothing, refusal_to_take = nothing, refusal_to_reserve = nothing,
  length = reads.length, queued = reads.queued, contains = reads.contains, range = reads.range, scan = reads.scan,
  sample = reads.sample, peek = reads.peek, positions = reads.positions, at = reads.at, from = reads.from, offsets = reads.offsets,
  version = reads.version, bytes_queued = reads.bytes_queued, do_worker_block = list_worker.do_block,
}

function list.begin()
  if queue.index and queue.bound then mirror.load() end
  if queue.word == 'reserved' or queue.word == 'kept' then
    jobs.open()
    jobs.read_settings()
    job_times.promote(call('ZCARD', queue.key_of('delayed')))
    dead_letters.move()
  end
end

-- Return what note_due does (job_times.lua); nil without jobs.
function list.leave()
  mirror.save()
  if queue.jobs then return job_times.note_due() end
end

-- Read settings that have changed (life.lua).
function list.altered(new)
  if new.ack then
    local is_plain = call('EXISTS', queue.key_of('jobs')) == 0
    queue.set_kind(new.ack ~= '' and 'kept' or not is_plain and 'reserved' or room.max_bytes() and 'limited' or nil)
    if new.ack ~= '' then jobs.open() end
  end
  if queue.jobs then jobs.read_settings() end
end

-- Let messages leave the head of the list. If they are `taken` for a client, an error puts them back. Return them, the
-- position of the first, and the marks of each that has any.
local function leave_head(count, taken)
  local noted, position = marks.present(), queue.consumed
  local some = call('RPOP', queue.base, count)
  if taken then records.note_popped(some) end
  queue.length = queue.length - #some
  queue.count_as('consumed', #some, commands.sum_of_bytes(some))
  mirror.note_taken(some)
  return some, position, noted and marks.take(noted, some, position) or nil
end

-- Take up to `count` messages from the head of the list, about `most` bytes. Return what `leave_head` does.
function list.pop_head(count, most)
  if count > 1 then
    -- Estimate by the oldest message. If later ones are larger, the caller stops after the next round.
    local weight = math.max(1, #call('LINDEX', queue.base, -1))
    count = math.max(1, math.min(count, math.floor(most / weight)))
  end
  return leave_head(count, true)
end

-- Take messages, as `pop_head`. Return them, and how many have expired.
function list.pop(self, count, most)
  local some, _, marks_of = list.pop_head(count, most)
  local dropped = 0
  if marks_of then some, marks_of, dropped = taking.unexpired(self, some, marks_of) end
  if self.claims and #some > 0 then some = job_gets.hold(some, marks_of or {}, self.claims) end
  return some, dropped
end

-- Put messages; marks_of has the marks of each, or is nil.
function list.push(self, messages, marks_of)
  queue.length = queue.length + #messages
  if marks_of then list.note_marks(messages, marks_of) end -- first: after a message is queued, no error may refuse it
  commands.with_all('LPUSH', queue.base, messages)
  queue.count_as('produced', #messages, commands.sum_of_bytes(messages))
  if not self.is_add then mirror.note_put(messages) end -- else they are in the mirror already
end

-- Store the marks of messages that are about to be put. A native consumer counts a message only after it has taken it:
-- the number of produced messages tells whether the last one is not counted yet.
function list.note_marks(messages, marks_of)
  local last = queue.consumed + queue.length
  if not queue.is_free('consumer') then
    local produced = try('GET', queue.base .. ':stats:produced_messages')
    produced = (tonumber(type(produced) == 'string' and produced or 0) or 0) + #messages
    last = produced == last + 1 and last + 1 or last
  end
  marks.note(messages, marks_of, last - #messages)
end

-- Drop expired messages from the head, unless a native client holds the consumer role. Return how many.
function list.drop_expired()
  local noted, changed_before = marks.present(), block.changed
  if not noted or queue.length == 0 or queue.in_use('consumer') then return 0 end
  local expired, _, mark = reads.first_unexpired(noted, block.patient and taking.EXPIRED or math.huge)
  if expired > 0 then list.drop_oldest(expired) end
  block.changed = changed_before
  room.note_expiry(mark and mark[2] or 0)
  return expired
end

-- Drop the oldest messages. They count as consumed, like all that leave the queue.
function list.drop_oldest(count)
  while count > 0 do count = count - #leave_head(math.min(count, commands.CHUNK), false) end
  queue.act_as('consumer')
  room.settle()
end

function list.drop_newest(count)
  local noted = marks.present()
  while count > 0 do
    local some = call('LPOP', queue.base, math.min(count, commands.CHUNK))
    queue.length = queue.length - #some
    if noted then
      local places = {}
      for i = 1, #some do places[i] = queue.consumed + queue.length + i - 1 end
      marks.remove(noted, some, places)
    end
    queue.count_as('consumed', #some, commands.sum_of_bytes(some))
    count = count - #some
  end
  mirror.start_over()
end

-- Drop all messages. Return their number, or an error.
function list.flush()
  local count = queue.length
  local refusal = count > 0 and queue.in_use('consumer')
  if refusal or count == 0 then return refusal or 0 end
  local base = queue.base
  call('UNLINK', base, base .. ':ext:marks')
  queue.length, queue.marks = 0, false
  local stats = call('MGET', base .. ':stats:produced_bytes', base .. ':stats:consumed_bytes')
  queue.count_as('consumed', count, math.max(0, (tonumber(stats[1]) or 0) - (tonumber(stats[2]) or 0)))
  queue.act_as('consumer')
  mirror.start_over()
  room.settle()
  return count
end

-- Drop the messages in a state (life.lua). Return how many, or an error; and whether there are more.
function list.purge(state)
  if state == 'ready' then return queue.kind.flush(), false end
  if queue.jobs then return jobs.purge(state) end
  return 0, false
end

-- Takes    undelivered messages, oldest first; and their marks, by index, if any
-- Returns  1. This needs no role: for other clients it is as if the messages had never left
function list.restore(messages, marks_of)
  marks_of = marks_of or {}
  local noted = marks.present(next(marks_of) ~= nil)
  commands.with_all('RPUSH', queue.base, commands.reversed(messages))
  queue.length = queue.length + #messages
  queue.count_as('consumed', -#messages, -commands.sum_of_bytes(messages))
  -- The messages are back: an error from here on must not put them back again.
  mirror.note_back(messages)
  if noted then pcall(marks.restore, noted, messages, marks_of) end
  pcall(room.settle)
  return 1, 0
end

function list.refusal_to_put(options)
  return options.offset and { err = 'TYPE no-offsets' } or nil
end

function list.is_ready_for_put() return true end

-- Return why messages cannot be removed, or nil; `newest` says that some of them are not the oldest ones.
function list.refusal_to_remove() return queue.in_use('consumer') end

-- Remove all copies of a message if `wanted` is 0; else at most that number of the oldest ones, or of the newest ones if
-- it is negative. Return how many have been removed. The list begins with the newest message.
local function remove_copies(wanted, message)
  the_call.work = the_call.work + the_call.ENTRY * queue.length
  local noted, places = marks.present(), {}
  if noted then
    local found = call('LPOS', queue.base, message, 'RANK', wanted > 0 and -1 or 1, 'COUNT', math.abs(wanted))
    for i, index in ipairs(found) do places[i] = queue.consumed + queue.length - 1 - index end
  end
  -- Redis 7.0 would get -0 as an argument, and refuse it.
  local count = call('LREM', queue.base, 0 - wanted, message)
  if count > 0 then
    queue.act_as('consumer')
    queue.length = queue.length - count
    if noted then marks.remove(noted, { message }, places) end
    queue.count_as('consumed', count, count * #message)
  end
  return count
end

-- A removal from a list with marks writes all gaps. That takes as long as a walk over this many entries.
local MARKED = 50000

-- Takes    messages
-- Returns  for each 1 if it was queued, else 0; and how many are left for another call
function list.remove(messages)
  local refusal = queue.length > 0 and queue.kind.refusal_to_remove(true)
  if refusal then return refusal, 0 end
  local removed, walked, taken = {}, 0, 0
  for i, message in ipairs(messages) do
    if block.patient and walked > mirror.SCAN then break end
    local is_queued, decided = { 1 }, 1
    if queue.length > 0 and queue.mirror then is_queued, decided = mirror.queued({ message }) end
    if decided == 0 then
      break -- this call has extended the mirror instead
    end
    removed[i] = 0
    if queue.length > 0 and is_queued[1] == 1 then
      local unmirrored, in_head = queue.mirror and queue.mirror.unmirrored or 0, 0
      if unmirrored > 0 then
        in_head = #call('LPOS', queue.base, message, 'RANK', -1, 'COUNT', 0, 'MAXLEN', unmirrored)
      end
      walked = walked + queue.length + (marks.present() and MARKED or 0)
      local count = remove_copies(0, message)
      if count > 0 then
        taken, removed[i] = taken + count, 1
        mirror.forget_all(message, in_head)
      end
    end
  end
  -- If nothing was taken, a native producer may be about to push the missing token.
  if taken > 0 then room.settle() end
  return removed, #messages - #removed
end

-- Remove copies of a message, as the function above. Return { how many have been removed }, or an error; and 0.
function list.remove_copies(wanted, message)
  local refusal = queue.length > 0 and queue.kind.refusal_to_remove(true)
  if refusal then return refusal, 0 end
  local count = remove_copies(tonumber(wanted), message)
  if count > 0 then
    mirror.start_over()
    room.settle()
  end
  return { count }, 0
end

-- Keep the messages from position `first` to `last`, which are in the queue, or none if `last` is before `first`.
function list.keep(first, last)
  local count = queue.length
  if last < count - 1 then list.drop_newest(count - 1 - last) end
  if first > 0 then list.drop_oldest(math.min(first, queue.length)) end
  if queue.length < count then queue.act_as('consumer') end
end

-- Return the message that is moved (move.lua), or nil; and the id of its job, if it is one.
function list.next_to_move() return call('LINDEX', queue.base, -1) or nil end

-- Take a message that has been put into another queue.
function list.take_moved(wanted)
  if wanted then
    list.remove({ wanted })
    return
  end
  list.pop_head(1, taking.BYTES)
  queue.act_as('consumer')
  mirror.extend()
  room.settle()
end

queue.kinds[''], queue.kinds.limited, queue.kinds.reserved, queue.kinds.kept = list, list, list, list

return list
