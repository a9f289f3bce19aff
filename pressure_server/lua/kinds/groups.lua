-- Groups: each reads all messages of a log, in order, by the queue `log+group`. That is a queue of jobs, which are made
-- of the log's next messages (docs/internals/logs.md#groups). It has passed a message when the job is gone or buried.
--
-- Touches  those of group.lua, and the log

local life = require 'core/life'
local group = require 'kinds/group'
local jobs = require 'kinds/jobs'
local job_puts = require 'kinds/job_puts'

local groups = {}
-- Bytes of messages of which one call makes jobs.
local FILLED_BYTES = 1048576
-- Messages that are read at first, when it is not known how large they are.
local FIRST = 16
-- Messages that one call drops from a log in addition to its other work.
local DROPPED_AT_ONCE = 1000

-- Return the log's next messages, at most `wanted` and about `bytes`, but at least one; and the offset of the first.
function groups.look_ahead(wanted, bytes)
  local state, messages, seen = queue.jobs, {}, 0
  local most = math.min(wanted, state.lag)
  repeat
    -- Assume that the next messages are as large as those before.
    local left = math.max(1, math.floor((bytes - seen) / (seen / math.max(1, #messages) + 1)))
    local some = group.messages_ahead(#messages, math.min(most - #messages, #messages == 0 and FIRST or left))
    for i = 1, #some do messages[#messages + 1] = some[i] end
    seen = seen + commands.sum_of_bytes(some)
  until #messages == most or seen >= bytes
  return messages, math.max(state.next, state.head)
end

-- Note that the log's next messages are jobs now; the first has this offset. The jobs come first, so an error loses none.
function groups.note_taken(messages, first)
  local state = queue.jobs
  if first > state.next then
    call('HINCRBY', queue.key_of('settings'), 'missed', string.format('%.0f', first - state.next))
  end
  queue.count_as('produced', #messages, commands.sum_of_bytes(messages))
  queue.length, state.lag = queue.length - #messages, state.lag - #messages
  group.set_next(first + #messages)
end

-- Make jobs of messages of the log; offset_of(i) is the offset of each.
local function make_jobs(messages, marks_of, offset_of)
  local places = {}
  for i, id in ipairs(job_puts.store(messages, marks_of)) do
    places[2 * i - 1], places[2 * i] = string.format('%.0f', offset_of(i)), id
  end
  commands.with_all('ZADD', queue.key_of('offsets'), places)
  the_call.work = the_call.work + 4 * the_call.MESSAGE * #messages
end

-- Make jobs of the log's next messages until `wanted` ready jobs come before the messages that are left in the log.
function groups.fill(wanted)
  local state = queue.jobs
  local ready = state.lag > 0 and state.ready > 0 and call('ZCOUNT', queue.key_of('ready'), '-inf', JOB_DEFAULT_PRIORITY) or 0
  local count = math.min(wanted - ready, state.lag, jobs.AT_ONCE)
  if count <= 0 or not the_call.has_records() then return end
  local messages, first = groups.look_ahead(count, FILLED_BYTES)
  make_jobs(messages, group.marks_ahead(messages, first), function(i) return first + i - 1 end)
  groups.note_taken(messages, first)
end

-- Give each group of the present log a job for each of these messages. They had been taken from the log before it had
-- groups, and come back; a log with groups has no place for them. marks_of[i][3] is an offset.
function groups.take_back(messages, marks_of)
  local home, bytes = queue.base, commands.sum_of_bytes(messages)
  for _, key in ipairs(call('ZRANGE', group.key_of(home), 0, -1)) do
    queue.enter(key)
    make_jobs(messages, marks_of, function(i) return marks_of[i][3] end)
    queue.count_as('produced', #messages, bytes)
    group.note_passed()
  end
  queue.enter(home)
end

-- Drop the messages of the present log that all groups have passed.
function groups.drop_passed()
  local slowest = tonumber(call('ZRANGE', group.key_of(queue.base), 0, 0, 'WITHSCORES')[2]) or 0
  local count = math.min(slowest - queue.consumed, queue.length, DROPPED_AT_ONCE)
  if count > 0 and not queue.in_use('consumer') then queue.kind.drop_oldest(count) end
end

-- Do the same for a group's log without entering it, if it has no bound, no limit of bytes, no mirror and no marks.
-- Return whether that was possible.
local function drop_passed_of(source)
  local slowest = tonumber(call('ZRANGE', group.key_of(source), 0, 0, 'WITHSCORES')[2])
  local count = math.min((slowest or 0) - queue.jobs.head, DROPPED_AT_ONCE)
  if count <= 0 then
    return true
  elseif call('GET', source .. ':bound') ~= '0' or call('HEXISTS', source .. ':ext:settings', 'max_bytes') == 1
    or call('EXISTS', source .. ':consumer_free') == 0
    or call('EXISTS', source .. ':ext:index', source .. ':ext:members', source .. ':ext:copies', source .. ':ext:marks') > 0 then
    return false
  end
  call('INCRBY', source .. ':stats:consumed_messages', count) -- first: an error before the drop loses nothing
  local dropped = call('RPOP', source, count)
  call('INCRBY', source .. ':stats:consumed_bytes', commands.sum_of_bytes(dropped))
  call('SET', source .. ':consumer', the_call.identity)
  return true
end

-- Drop what all groups have passed from the log of the present group.
function groups.settle_group()
  local home, source = queue.base, queue.jobs.source
  if queue.jobs.has_passed then
    queue.jobs.has_passed = nil
    if not drop_passed_of(source) then
      queue.enter(source)
      queue.enter(home)
    end
  end
end

-- Return the offset that a word names, and nil; or nil and an error.
local function offset_of(word)
  local head, tail = queue.consumed, queue.consumed + queue.length
  local offset = word == 'head' and head or word == 'tail' and tail or tonumber(word)
  if offset > tail then return nil, { err = string.format('AHEAD %.0f', tail) } end
  if offset < head then return nil, { err = string.format('GONE %.0f', head) } end
  return offset
end

-- Enter the queue of a group of the present log. Return whether there is one.
local function enter_group(key)
  if not call('ZSCORE', group.key_of(queue.base), key) then return false end
  queue.enter(key)
  return true
end

local actions = {}

function actions.create(key, word)
  local home, offset, refusal = queue.base, offset_of(word)
  if refusal or queue.returned > 0 then return refusal or { err = 'TYPE has-returned' } end
  local is_closed = queue.is_closed()
  queue.enter(key)
  local made = life.create('0', '', '', 'type', 'group', 'source', home, 'max_bytes', '')
  if made == 1 then
    call('ZADD', queue.key_of('offsets'), 'inf', '-')
    group.set_next(offset)
    group.note_passed()
    if is_closed then call('LPUSH', key .. ':closed', 0, 0) end
  end
  queue.enter(home)
  return made
end

function actions.delete(key)
  local home = queue.base
  if not enter_group(key) then return { err = 'NOGROUP' } end
  life.delete()
  queue.enter(home)
  return 1
end

-- Continue from another offset. Ready jobs are dropped: they are made again if the group comes to them.
function actions.seek(key, word)
  local home, offset, refusal = queue.base, offset_of(word)
  if refusal then return refusal end
  if not enter_group(key) then return { err = 'NOGROUP' } end
  local ids
  repeat
    ids = call('ZRANGE', queue.key_of('ready'), 0, jobs.AT_ONCE - 1)
    jobs.happen('delete', jobs.read_in('ready', ids))
  until #ids == 0
  group.set_next(offset)
  group.note_passed()
  queue.try_waiting() -- a message that the group had passed may be ahead again
  queue.enter(home)
  return 1
end

-- Return for each group { base key, the offset of the first message that it has not passed, how many messages it has not
-- taken yet, how many are reserved, how many are buried, how many it has missed }.
function actions.list()
  local found = {}
  local places = call('ZRANGE', group.key_of(queue.base), 0, -1, 'WITHSCORES')
  for i = 1, #places, 2 do
    local key = places[i]
    local following, missed, ranged = unpack(call('HMGET', key .. ':ext:settings', 'next', 'missed', 'ranged'))
    following, missed = tonumber(following), tonumber(missed or 0)
    local ahead = queue.consumed + queue.length - math.max(following, queue.consumed)
    found[#found + 1] = {
      key, tonumber(places[i + 1]), ahead + call('ZCARD', key .. ':ext:ready') + call('ZCARD', key .. ':ext:delayed'),
      call('ZCARD', key .. ':ext:reserved') + tonumber(ranged or 0), call('ZCARD', key .. ':ext:buried'),
      missed + math.max(0, queue.consumed - following),
    }
  end
  return found
end

-- Takes    create, delete, seek or list; the base key of the group's queue; and head, tail or an offset
function groups.group(action, key, word)
  if not queue.kind.has_groups then return { err = 'TYPE no-groups' } end
  block.changed = block.changed or action ~= 'list'
  return actions[action](key, word)
end

return groups
