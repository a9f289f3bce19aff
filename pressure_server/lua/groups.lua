-- Groups: each reads all messages of a log, in order, and has the queue `log+group` for it. That queue is one of
-- jobs: what its clients take, reserve, acknowledge, release and bury are jobs, which it makes of the next messages
-- of the log. A group has passed a message when its job is deleted or buried. What all groups have passed leaves
-- the log.
--
-- A group's queue has a ready job whenever the log has more for it. Clients that wait for a job, and scripts that
-- look for one, therefore need not know about the log: a put into the log makes a job for each group that has
-- none, and whoever takes jobs makes as many as are wanted, and one more.
--
-- Touches  :ext:groups     of the log, a sorted set: the base key of each group's queue, with the offset of the
--                          first message that it has not passed
--          :ext:offsets    of a group's queue, a sorted set: the ids of its jobs, with the offsets of their messages;
--                          and '-' with the score inf, so that the key tells that this is a group
--          :ext:settings   of a group's queue, 'source': the base key of the log; 'next': the offset of the message
--                          that it makes a job of next; 'missed': how many messages had been dropped from the log
--                          before the group came to them

local function groups_of(log)
  return log .. ':ext:groups'
end

-- Read how far the log is ahead of the group whose queue the script works on; `following` is its 'next'.
local function read_source(following)
  local jobs = queue.jobs
  local source = jobs.source
  local bound, consumed = unpack(call('MGET', source .. ':bound', source .. ':stats:consumed_messages'))
  jobs.head = tonumber(consumed or 0) or 0
  local tail = jobs.head + (bound and call('LLEN', source) or 0)
  jobs.next = tonumber(following) or tail
  jobs.lag = math.max(0, tail - math.max(jobs.next, jobs.head))
end

-- Note from which offset on the group needs the messages of the log.
local function note_passed()
  local jobs = queue.jobs
  local first = tonumber(call('ZRANGE', base .. ':ext:offsets', 0, 0, 'WITHSCORES')[2])
  call('ZADD', groups_of(jobs.source), string.format('%.0f', math.min(first, jobs.next)), base)
  jobs.has_passed = true
end

-- Note that the group has passed the messages of these jobs.
local function pass(ids)
  if #ids > 0 and call_with_all('ZREM', base .. ':ext:offsets', ids) > 0 then note_passed() end
end

local function set_next(offset)
  queue.jobs.next = offset
  call('HSET', base .. ':ext:settings', 'next', string.format('%.0f', offset))
end

-- Return the next messages of the log that the group has no jobs for: `count` of them, after `skipped` others.
local function messages_ahead(skipped, count)
  if count <= 0 then
    return {}
  end
  local first = math.max(queue.jobs.next, queue.jobs.head) - queue.jobs.head + skipped
  local newest_first, messages = call('LRANGE', queue.jobs.source, -first - count, -first - 1), {}
  for i = #newest_first, 1, -1 do messages[#messages + 1] = newest_first[i] end
  return messages
end

-- Return the flags and expiry of the log's messages from an offset on.
local function marks_ahead(messages, offset)
  local source, home, found = queue.jobs.source, base, {}
  if call('EXISTS', source .. ':ext:marks') == 1 then
    base = source
    local marks = make_marks()
    for i, message in ipairs(messages) do found[i] = marks.look(message, offset + i - 1) end
    base = home
  end
  return found
end

-- Pass the messages of the log that the group has no jobs for yet. Return how many.
local function skip_lag()
  local jobs = queue.jobs
  local count = jobs.lag
  set_next(math.max(jobs.next, jobs.head) + count)
  queue.length, jobs.lag = queue.length - count, 0
  note_passed()
  return count
end

-- Make jobs of the log's next messages until the group has `wanted` ready ones.
function fill_group(wanted)
  local jobs = queue.jobs
  local count = math.min(wanted - jobs.ready, jobs.lag, JOBS_AT_ONCE)
  if count <= 0 or not has_records then
    return
  end
  if count > 1 then
    count = math.min(count, math.max(1, math.floor(GET_BYTES / math.max(1, #messages_ahead(0, 1)[1]))))
  end
  local messages, first = messages_ahead(0, count), math.max(jobs.next, jobs.head)
  if first > jobs.next then call('HINCRBY', base .. ':ext:settings', 'missed', string.format('%.0f', first - jobs.next)) end
  local places = {}
  for i, id in ipairs(job_puts().store(job_puts().as_jobs(messages, marks_ahead(messages, first)))) do
    places[2 * i - 1], places[2 * i] = string.format('%.0f', first + i - 1), id
  end
  call('ZADD', base .. ':ext:offsets', unpack(places))
  count_as('produced', count, sum_of_bytes(messages))
  queue.length, jobs.lag = queue.length - count, jobs.lag - count
  set_next(first + count)
  work = work + 4 * MESSAGE * count
end

-- Drop the messages of the log that the script works on which all groups have passed.
function drop_passed()
  local slowest = tonumber(call('ZRANGE', groups_of(base), 0, 0, 'WITHSCORES')[2]) or 0
  local count = math.min(slowest - queue.consumed, queue.length, DROPPED_AT_ONCE)
  if count > 0 and not in_use('consumer') then gets.drop_oldest(count) end
end

-- Do the same for the log of a group, without turning to it, if it has neither a bound or a limit of bytes nor an
-- index of its messages.
-- Return whether that was possible.
local function drop_passed_of(source)
  local slowest = tonumber(call('ZRANGE', groups_of(source), 0, 0, 'WITHSCORES')[2])
  local count = math.min((slowest or 0) - queue.jobs.head, DROPPED_AT_ONCE)
  if count <= 0 then
    return true
  elseif call('GET', source .. ':bound') ~= '0' or call('HEXISTS', source .. ':ext:settings', 'max_bytes') == 1
    or call('EXISTS', source .. ':consumer_free') == 0
    or call('EXISTS', source .. ':ext:index', source .. ':ext:members', source .. ':ext:copies', source .. ':ext:marks') > 0 then
    return false
  end
  local dropped = call('RPOP', source, count)
  call('INCRBY', source .. ':stats:consumed_messages', #dropped)
  call('INCRBY', source .. ':stats:consumed_bytes', sum_of_bytes(dropped))
  call('SET', source .. ':consumer', identity)
  return true
end

-- Before the script turns from a queue to another: give the groups of a log what has been put into it; drop from
-- the log of a group what all groups have passed.
function settle_groups()
  local home, jobs = base, queue.jobs
  if queue.has_new then
    queue.has_new = nil
    for _, key in ipairs(call('ZRANGE', groups_of(home), 0, -1)) do
      if call('EXISTS', key .. ':ext:ready') == 0 then enter(key) end
    end
    enter(home)
  elseif jobs and jobs.has_passed then
    jobs.has_passed = nil
    if not drop_passed_of(jobs.source) then
      enter(jobs.source)
      enter(home)
    end
  end
end

local groups = {}
do
  local operations = groups

  -- Return the offset that a word names, and nil; or nil and an error.
  local function offset_of(word)
    local head, tail = queue.consumed, queue.consumed + queue.length
    local offset = word == 'head' and head or word == 'tail' and tail or tonumber(word)
    if offset > tail then
      return nil, { err = string.format('AHEAD %.0f', tail) }
    elseif offset < head then
      return nil, { err = string.format('GONE %.0f', head) }
    end
    return offset
  end

  local function create(key, word)
    local home, offset, refusal = base, offset_of(word)
    if refusal or queue.returned > 0 then
      return refusal or { err = 'TYPE has messages that came back to it: take these first, then add groups' }
    end
    enter(key)
    local made = life.create('0', '', '', 'type', 'group', 'source', home)
    if made == 1 then
      call('ZADD', base .. ':ext:offsets', 'inf', '-')
      set_next(offset)
      note_passed()
    end
    enter(home)
    queue.has_new = true
    return made
  end

  -- Turn to the queue of a group of the present log; return whether there is one.
  local function enter_group(key)
    if not call('ZSCORE', groups_of(base), key) then
      return false
    end
    enter(key)
    return true
  end

  local function delete(key)
    local home = base
    if not enter_group(key) then
      return { err = 'NOGROUP' }
    end
    life.delete()
    enter(home)
    return 1
  end

  -- Continue from another offset. Jobs that nobody has reserved yet are dropped: they are made again if need be.
  local function seek(key, word)
    local home, offset, refusal = base, offset_of(word)
    if refusal then
      return refusal
    elseif not enter_group(key) then
      return { err = 'NOGROUP' }
    end
    local jobs = queue.jobs
    while jobs.ready > 0 do
      jobs.happen('delete', jobs.jobs_in('ready', call('ZRANGE', base .. ':ext:ready', 0, JOBS_AT_ONCE - 1)))
    end
    set_next(offset)
    note_passed()
    enter(home)
    queue.has_new = true
    return 1
  end

  -- Return { base key, the offset of the first message that it has not passed, how many messages the group has not taken yet, how many jobs are reserved, and
  -- buried, how many messages it has missed } for each group.
  local function list()
    local found = {}
    local groups = call('ZRANGE', groups_of(base), 0, -1, 'WITHSCORES')
    for i = 1, #groups, 2 do
      local key = groups[i]
      local following, missed = unpack(call('HMGET', key .. ':ext:settings', 'next', 'missed'))
      following, missed = tonumber(following), tonumber(missed or 0)
      local ahead = queue.consumed + queue.length - math.max(following, queue.consumed)
      found[#found + 1] = {
        key, tonumber(groups[i + 1]), ahead + call('ZCARD', key .. ':ext:ready') + call('ZCARD', key .. ':ext:delayed'),
        call('ZCARD', key .. ':ext:reserved'), call('ZCARD', key .. ':ext:buried'),
        missed + math.max(0, queue.consumed - following),
      }
    end
    return found
  end

  local actions = { create = create, delete = delete, seek = seek, list = list }

  -- Takes    create, delete, seek or list; the base key of the group's queue; and head, tail or an offset
  function operations.group(action, key, word)
    if queue.kind ~= 'log' then
      return { err = 'TYPE has no groups: they need a queue of the type log' }
    end
    changed = changed or action ~= 'list'
    return actions[action](key, word)
  end
end
