-- A group's place in its log: which messages it has passed, and which are ahead. groups.lua says what groups are.
--
-- Touches  :ext:groups of the log; :ext:offsets, and 'source', 'next' and 'missed' in :ext:settings, of a group's
--          queue: docs/internals/logs.md#groups

local marks = require 'kinds/marks'

local group = {}

-- Return the key of the groups that read a log.
function group.key_of(log) return log .. ':ext:groups' end

-- Read how far the log is ahead of the present group, whose 'next' is `following`.
function group.read_source(source, following)
  local state = queue.jobs
  local bound, consumed = unpack(call('MGET', source .. ':bound', source .. ':stats:consumed_messages'))
  state.source, state.head = source, tonumber(consumed or 0) or 0
  local tail = state.head + (bound and call('LLEN', source) or 0)
  state.next = tonumber(following) or tail
  state.lag = math.max(0, tail - math.max(state.next, state.head))
end

-- Store from which offset on the group needs the messages of the log.
function group.note_passed()
  local state = queue.jobs
  local first = tonumber(call('ZRANGE', queue.key_of('offsets'), 0, 0, 'WITHSCORES')[2])
  call('ZADD', group.key_of(state.source), string.format('%.0f', math.min(first, state.next)), queue.base)
  state.has_passed = true
end

-- Note that the group has passed the messages of these jobs.
function group.pass(ids)
  if #ids > 0 and commands.with_all('ZREM', queue.key_of('offsets'), ids) > 0 then group.note_passed() end
end

-- Let the group continue from an offset.
function group.set_next(offset)
  queue.jobs.next = offset
  call('HSET', queue.key_of('settings'), 'next', string.format('%.0f', offset))
end

-- Return the next messages of the log that the group has no jobs for: `count` of them, after `skipped` others.
function group.messages_ahead(skipped, count)
  if count <= 0 then return {} end
  local state = queue.jobs
  local first = math.max(state.next, state.head) - state.head + skipped
  return commands.reversed(call('LRANGE', state.source, -first - count, -first - 1))
end

-- Return `count` messages of the log from an offset on. A message that the log has dropped is nil.
function group.messages_at(offset, count)
  local state, found = queue.jobs, {}
  local gone = math.max(0, state.head - offset)
  if gone < count then
    local first = offset + gone - state.head
    local newest_first = call('LRANGE', state.source, -first - (count - gone), -first - 1)
    for i, message in ipairs(commands.reversed(newest_first)) do found[gone + i] = message end
  end
  return found
end

-- Return the flags and expiry of the log's messages from an offset on.
function group.marks_ahead(messages, offset)
  local source, home, found = queue.jobs.source, queue.base, {}
  if group.has_marks() then
    queue.base = source
    local noted = marks.open(source)
    found = marks.look(noted, messages, offset, call('LLEN', source) - (offset - queue.jobs.head))
    queue.base = home
  end
  return found
end

-- Return whether messages of the log may have flags, or expire.
function group.has_marks()
  return call('EXISTS', queue.jobs.source .. ':ext:marks') == 1
end

-- Pass up to `most` messages of the log for which the group has no jobs yet. Return how many.
function group.skip_lag(most)
  local state = queue.jobs
  local count = math.min(most, state.lag)
  group.set_next(math.max(state.next, state.head) + count)
  queue.length, state.lag = queue.length - count, state.lag - count
  group.note_passed()
  return count
end

return group
