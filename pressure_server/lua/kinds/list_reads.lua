-- Questions to a list. They need no role and change no message; a search for messages may extend the mirror.

local marks = require 'kinds/marks'
local mirror = require 'kinds/mirror'
local taking = require 'core/taking'

local list_reads = {
  SAMPLE_BYTES = 64 * 1048576,
  -- Added to a cursor of a set (distinct.lua), because it is no cursor for the jobs that the set's messages become.
  SET_CURSOR = 2 ^ 52,
}

function list_reads.length() return queue.length end

-- Return for each message 1 if it is queued, else 0; and how many messages were decided (mirror.lua).
function list_reads.queued(messages)
  mirror.need()
  return mirror.queued(messages)
end

-- Return for each message 1 if it is queued, else 0; and how many are left for another call.
function list_reads.contains(messages)
  local found, decided = queue.kind.queued(messages)
  return found, #messages - decided
end

-- Return the messages between two positions, oldest first; 0 is the oldest, -1 the newest, as with LRANGE.
function list_reads.range(first, last)
  return commands.reversed(call('LRANGE', queue.base, -1 - last, -1 - first)) -- it has the newest first
end

-- Takes    an absolute position (the number of messages consumed before it), and a count
-- Returns  the next position, 0 at the end; then up to `count` messages, oldest first
-- Absolute positions stay valid when messages are taken from the head, so a scan never skips one.
function list_reads.scan(position, count)
  local first = math.max(0, position - queue.consumed)
  local messages = list_reads.range(first, first + count - 1)
  local next_position = first + #messages < queue.length and queue.consumed + first + #messages or 0
  return { string.format('%d', next_position), messages }
end

-- Return the messages at `count` distinct random positions below `length`, or if `count` is negative, at -count
-- positions with repeats; or an error if the repeats make the reply too large.
function list_reads.pick(seed, count, length, message_at)
  local picked, taken, bytes = {}, {}, 0
  if length == 0 then return picked end
  math.randomseed(seed)
  for last = length - math.min(math.abs(count), count > 0 and length or math.huge), length - 1 do
    local position = math.random(0, length - 1)
    if count > 0 then
      -- Robert Floyd's algorithm for a sample without repeats.
      position = math.random(0, last)
      if taken[position] then position = last end
      taken[position] = true
    end
    local message = message_at(position)
    picked[#picked + 1], bytes = message, bytes + #message
    if count < 0 and bytes > list_reads.SAMPLE_BYTES then return { err = 'TOOLARGE' } end
  end
  return picked
end

-- Return messages at random positions, as `pick`.
function list_reads.sample(seed, count)
  if queue.length > 0 and count >= queue.length then return list_reads.range(0, -1) end
  return list_reads.pick(seed, count, queue.length, function(position) return call('LINDEX', queue.base, position) end)
end

-- Return how many messages at the head have expired, up to `most`; then the first other one and its mark, if there is one.
function list_reads.first_unexpired(noted, most)
  local expired, count = 0, 1
  while expired < math.min(queue.length, most) do
    local some = list_reads.range(expired, expired + count - 1)
    local marks_of = noted and marks.look(noted, some, queue.consumed + expired, queue.length - expired) or {}
    for i, message in ipairs(some) do
      if not marks.is_expired(marks_of[i]) then return expired, message, marks_of[i] end
      expired = expired + 1
    end
    -- If later messages are larger, they are too many in one round, but not in the next.
    count = math.min(taking.MESSAGES, math.ceil(taking.BYTES / math.max(1, #some[#some])))
  end
  return math.min(expired, most)
end

-- Return the oldest message that has not expired, and its flags, '' for 0; or an empty list. Expired messages are
-- dropped, because they would wake up waiting clients again and again.
function list_reads.peek()
  queue.kind.drop_expired()
  local _, message, mark = list_reads.first_unexpired(marks.present(), taking.EXPIRED)
  return message and { message, mark and mark[1] or '' } or {}
end

-- Return the positions of a message; the other arguments are those of Redis's LPOS.
function list_reads.positions(message, rank, count, most)
  local rank_from_newest = string.format('%.0f', -tonumber(rank))
  local found = call('LPOS', queue.base, message, 'RANK', rank_from_newest, 'COUNT', count, 'MAXLEN', most)
  the_call.work = the_call.work + the_call.ENTRY * queue.length
  for i, position in ipairs(found) do found[i] = queue.length - 1 - position end
  return found
end

-- Only logs have offsets (log.lua).
function list_reads.at() return { err = 'TYPE no-offsets' } end

list_reads.from = list_reads.at

function list_reads.offsets() return '', '', 0 end

-- Return a text that changes with every put, get, close, delete and create. A native Delete leaves :ext:made, which is
-- therefore used only while the queue exists.
function list_reads.version()
  local stats = call('MGET', queue.base .. ':stats:produced_messages', queue.base .. ':stats:consumed_messages')
  local newest = call('LINDEX', queue.base, 0)
  return string.format('%s %d %s %s %d %s %s', queue.bound and 'is' or 'is not', queue.length, stats[1] or '',
    stats[2] or '', queue.is_closed() and 1 or 0, queue.bound and queue.made or '', newest and redis.sha1hex(newest)
    .. redis.sha1hex(call('LINDEX', queue.base, -1)) or '')
end

-- Return how many bytes of messages are queued; nil if there are more than `most`.
function list_reads.bytes_queued(most)
  local bytes = 0
  for first = 0, queue.length - 1, 1000 do
    bytes = bytes + commands.sum_of_bytes(call('LRANGE', queue.base, first, first + 999))
    if bytes > most then return nil end
  end
  return bytes
end

return list_reads
