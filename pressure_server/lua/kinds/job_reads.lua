-- Reads of jobs: the state of the queue's jobs, and jobs of the backend as tables. jobs.lua says how they are stored.

local job_ids = require 'kinds/job_ids'
local group = require 'kinds/group'
local ranges = require 'kinds/ranges'

local job_reads = {
  -- Jobs that are read at once; delays, and reservations, that are ended when a block begins.
  AT_ONCE = 500,
}
-- The same in bytes of messages: 1 MiB takes the backend 2 milliseconds or more.
local BYTES_AT_ONCE = 2097152
local key_of = queue.key_of
local STATES = { 'ready', 'delayed', 'reserved', 'buried' }

-- The state of the queue's jobs, which is queue.jobs while the present queue has any. One table serves all queues, because
-- a new one takes a microsecond.
local state = { settings = {}, indexed = {}, first = {} }

-- Begin to use the jobs of the queue, which need not have any.
function job_reads.open()
  if queue.jobs then return end
  queue.jobs = state
  state.ready = 0 -- how many jobs are ready
  state.last_id = nil -- the last id that the queue has given
  state.spent = nil -- the ids of jobs that go to the dead letters
  state.has_due = nil -- whether more jobs are due than the block has promoted, or more messages must be adopted first
  state.has_ended = nil -- whether jobs have been deleted or buried
  state.is_due_now = nil -- whether waiting operations are to be tried at once
  state.has_unadopted = nil -- whether messages of the list, or from before the queue had jobs, are not jobs yet
  state.unadopted = 0 -- how many messages are left from before the queue was one of jobs (distinct.lua)
  -- Of a group (group.lua): the base key of its log, how many messages it has not made jobs of yet, the offset of
  -- the next one and of the log's head; and whether it has passed any.
  state.source, state.lag, state.next, state.head, state.has_passed = nil, 0, nil, nil, nil
  state.ranged = 0 -- how many messages ranges have, without the first of each (ranges.lua)
  -- By state, when its first job is due, if that is known; inf for never.
  state.first.delayed, state.first.reserved = nil, nil
  state.indexed.equal, state.indexed.single = nil, nil -- how far each index is complete (complete_index)
  local settings = state.settings
  settings.paused, settings.unique, settings.max_deliveries, settings.dead_letter, settings.type = nil, nil, nil, nil, nil
  settings.ack, settings.policy = nil, nil
end

-- Read the settings of the queue. If it is a group's, return the base key of the log and the group's place in it.
function job_reads.read_settings()
  local noted = call('HMGET', key_of('settings'), 'paused', 'indexed_equal', 'unique', 'max_deliveries', 'dead_letter', 'type',
    'source', 'next', 'indexed_single', 'max_bytes', 'id', 'ranged', 'ack', 'policy')
  local settings = state.settings
  state.indexed.equal, state.indexed.single = noted[2], noted[9]
  settings.paused, settings.unique, settings.max_deliveries = tonumber(noted[1] or nil), noted[3], tonumber(noted[4] or nil)
  settings.dead_letter, settings.type = noted[5], noted[6] or 'jobs'
  queue.max_bytes, state.last_id = tonumber(noted[10] or nil) or false, tonumber(noted[11] or 0)
  state.ranged, settings.ack, settings.policy = tonumber(noted[12] or 0), noted[13], noted[14]
  return noted[7], noted[8]
end

-- Return the job of a message in a range that does not begin with it, or nil; and the range, which may be `cover`.
local function part_of(id, cover, covers)
  local skipped = cover and tonumber(id, 16) - tonumber(cover.id, 16)
  if not cover or skipped < 0 or skipped >= cover.count then
    cover, skipped = ranges.cover_of(id, function(first)
      return covers[first] or job_reads.read({ first }, true, covers)[1]
    end)
  end
  return cover and ranges.part(cover, skipped), cover
end

-- Return the jobs with these ids; false in place of a job that does not exist. Equal ids get the same table. `state` of
-- a job is nil if only another command can tell it (state_of). An id stands for one message of a range, or if `whole`,
-- for the range. `covers` has the ranges that have been read, by their ids: of each there is one table.
function job_reads.read(ids, whole, covers)
  local fields, found, known, cover = {}, {}, {}, nil
  covers = covers or {}
  for i, id in ipairs(ids) do fields[2 * i - 1], fields[2 * i] = id, id .. ':' end
  local values, bytes = commands.values_of('HMGET', key_of('jobs'), fields), 0
  for i, id in ipairs(ids) do
    local job, value, packed = known[id], values[2 * i - 1], values[2 * i]
    if not job and value then
      bytes = bytes + #value
      -- All fields at once: a table that grows takes twice as long.
      job = {
        id = id, value = value, about = packed and cmsgpack.unpack(packed), state = nil,
        made = nil, ttr = nil, flags = nil, expires = nil, first = nil,
      }
      if packed and job.about[JOB_OWNER] ~= '' then job.state = 'reserved' end
      if ranges.is_range(value) then
        cover = covers[id] or ranges.parse(job)
        covers[id] = cover
        job = cover.count > 1 and not whole and ranges.part(cover, 0) or cover
      end
      known[id] = job
    elseif not job and queue.jobs.source and not whole then
      job, cover = part_of(id, cover, covers)
      known[id] = job
    end
    found[i] = job or false
  end
  the_call.work = the_call.work + 4 * the_call.MESSAGE * #ids + the_call.BYTE * bytes
  return found
end

-- Return how many jobs to read at once: `most`, or fewer if the messages of the queue are large.
function job_reads.portion(most)
  local produced, consumed = queue.base .. ':stats:produced_', queue.base .. ':stats:consumed_'
  local stats = call('MGET', produced .. 'messages', produced .. 'bytes', consumed .. 'messages', consumed .. 'bytes')
  for i = 1, 4 do stats[i] = tonumber(stats[i] or 0) or 0 end
  local count, bytes = math.max(1, stats[1] - stats[3]), math.max(1, stats[2] - stats[4])
  return math.min(most, math.floor(BYTES_AT_ONCE * count / bytes) + 1)
end

-- Return the jobs from one id to another. A range is one job if all its messages are among them; else each message that
-- is becomes a job. `covers` is as in `read`.
function job_reads.between(first, last, covers)
  local from, to, found = tonumber(first, 16), tonumber(last, 16), {}
  local ids = { first }
  if queue.jobs.source then
    ids = ranges.ids_between(from + 1, to)
    table.insert(ids, 1, first)
  else
    for number = from + 1, to do ids[#ids + 1] = job_ids.word_of(number) end
  end
  local whole = job_reads.read(ids, true, covers)
  whole[1] = whole[1] or job_reads.read({ first }, false, covers)[1]
  for _, job in ipairs(whole) do
    local cover = job and (job.cover or job)
    local end_of_cover = job and job.count and tonumber(cover.id, 16) + cover.count - 1
    if job and (job.cover or end_of_cover and end_of_cover > to) then
      for number = tonumber(job.id, 16), math.min(to, end_of_cover) do
        found[#found + 1] = ranges.part(cover, number - tonumber(cover.id, 16))
      end
    elseif job then
      found[#found + 1] = job
    end
  end
  return found
end

-- Return the jobs with these ids, which are in the sorted set of a state. An id without a job is dropped.
function job_reads.read_in(state, ids)
  local found, stray = {}, {}
  for i, job in ipairs(job_reads.read(ids, true)) do
    if job then
      job.state = state
      found[#found + 1] = job
    else
      stray[#stray + 1] = ids[i]
    end
  end
  if #stray > 0 then
    commands.with_all('ZREM', key_of(state), stray)
    queue.jobs.first[state] = nil
    if state == 'ready' then queue.jobs.ready, queue.length = queue.jobs.ready - #stray, queue.length - #stray end
  end
  return found
end

-- Read the job as it was put: made, ttr, flags, expires, and where its message begins. Return the job.
function job_reads.parse(job)
  if not job.first and not job.count then
    local priority, delay
    job.made, priority, delay, job.ttr, job.flags, job.expires, job.first = string.match(job.value,
      '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
    job.about = job.about or { tonumber(priority), tonumber(delay), 0, 0, 0, 0, 0, '' }
  end
  return job
end

function job_reads.bytes_of(job)
  if job.count then return job.bytes or #job_reads.message_of(job) end
  return #job.value - (job.first or string.match(job.value, '^%d+ %d+ %d+ %d+ %d+ %d+ ()')) + 1
end

-- Return the message of a job, or the first one of a range; '' if the log has dropped it.
function job_reads.message_of(job)
  if job.count then return group.messages_at(job.offset, 1)[1] or '' end
  return string.sub(job.value, job_reads.parse(job).first)
end

function job_reads.ttr_of(job)
  return job.about[JOB_OWN_TTR] or tonumber(job_reads.parse(job).ttr)
end

function job_reads.is_owned(job, owner)
  return (job.about or job_reads.parse(job).about)[JOB_OWNER] == owner
end

-- Return the state of a job that exists. A job in no set becomes ready: this repairs an interrupted change.
function job_reads.state_of(job)
  for i = 1, job.state and 0 or #STATES do
    if call('ZSCORE', key_of(STATES[i]), job.id) then
      job.state = STATES[i]
      break
    end
  end
  if not job.state then
    call('ZADD', key_of('ready'), job_reads.parse(job).about[JOB_PRIORITY], job.id)
    job.state = 'ready'
  end
  return job.state
end

-- Note that jobs have entered a state; `places` has their scores, each followed by an id.
function job_reads.note_come(state, places)
  local first = queue.jobs.first[state]
  for i = 1, first and #places or 0, 2 do first = math.min(first, tonumber(places[i])) end
  queue.jobs.first[state] = first
end

-- Return the first of these jobs: as many as one call works on. A range counts by its messages.
function job_reads.at_once(some)
  local found, count = {}, 0
  for i, job in ipairs(some) do
    if count >= job_reads.AT_ONCE then break end
    found[i], count = job, count + (job.count or 1)
  end
  return found
end

-- Return the ids of the ready jobs from position `first` to `last`, in the order in which they are taken. The set has the
-- jobs of each priority in the order of the puts; in a lifo, each priority is read backwards.
function job_reads.ready_ids(first, last)
  local key = key_of('ready')
  if queue.jobs.settings.type ~= 'lifo' then return call('ZRANGE', key, first, last) end
  local found, at, count = {}, first, call('ZCARD', key)
  local places = call('ZRANGE', key, first, last, 'WITHSCORES')
  while #found < #places / 2 do
    -- The jobs of this priority are at the positions from `above` to `below` - 1, in either direction.
    local priority = places[2 * #found + 2]
    local above, below = call('ZCOUNT', key, '-inf', '(' .. priority), call('ZCOUNT', key, '-inf', priority)
    local from_end = count - above - below
    for _, id in ipairs(call('ZRANGE', key, from_end + at, from_end + math.min(last, below - 1), 'REV')) do
      found[#found + 1] = id
    end
    at = first + #found
  end
  return found
end

-- Return the ids of the next jobs to take. If a group's log has more messages, only jobs that come before these.
function job_reads.next_ids(count)
  if queue.jobs.lag > 0 then
    return call('ZRANGE', key_of('ready'), '-inf', JOB_DEFAULT_PRIORITY, 'BYSCORE', 'LIMIT', 0, count)
  end
  if queue.jobs.settings.type == 'random' then
    return call('ZRANDMEMBER', key_of('ready'), count)
  end
  return job_reads.ready_ids(0, count - 1)
end

function job_reads.counts()
  local found = {}
  for i, state in ipairs(STATES) do found[i] = call('ZCARD', key_of(state)) + (state == 'reserved' and queue.jobs.ranged or 0) end
  return found
end

return job_reads
