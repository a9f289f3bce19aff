-- Jobs: messages that stay with their queue until a client deletes them. A job has an id, a priority, a delay
-- and a time to run. All messages of a queue of the kind `jobs` are jobs. In a queue of the kind `reserved` a
-- message becomes a job while a client has it reserved, and goes back to the head of the list if the client
-- gives it up.
--
-- This file has the states of jobs and the transitions between them. job_times.lua has what is due, job_puts.lua makes
-- jobs of messages, job_gets.lua takes and reserves them, job_verbs.lua has the other events, and job_queue.lua is the
-- kind of queue. Ids are in job_ids.lua, and unique jobs in job_index.lua.
--
-- An id is a number of 13 hexadecimal digits here, so that jobs with equal scores are in the order in which they
-- were put; and a decimal number for clients.
--
-- Touches  :ext:jobs      a hash: id -> 'made priority delay ttr flags expires message', as it was put
--                         (`made`: new_stamp in job_ids.lua);
--                         'id:' -> its state (JobField in layout.py), packed, unless nothing has happened to the
--                         job since it was put; and 'id#' -> what makes it unique, if that is not its message
--          :ext:ready     for each state a sorted set of ids, with the score: the job's priority;
--          :ext:delayed   when it becomes ready;
--          :ext:reserved  when its reservation ends, inf for never;
--          :ext:buried    the number of jobs buried before
--          :ext:settings  'paused': until when no job is reserved; 'type': the type that the queue was created
--                         with; 'max_deliveries', 'dead_letter': after how many reservations a job goes to the
--                         queue with that base key. Counts: 'buried', 'timeouts' of reservations, 'deliveries'
--                         (reservations), 'dead_letters' that have left the queue
--          :ext:due       when the first delay, reservation or pause ends, and servers try waiting operations again:
--                         maybe too early, never too late. Servers watch it
--          ${PREFIX}!due  a sorted set: queues that have dead letters, by the same time, at which servers use them
--          j<base key>    a field of the records of a server: its clients may have reserved jobs of that queue
--
-- Times are in milliseconds since 1970 by the backend's clock; delays and times to run in milliseconds.
--
-- The owner of a reserved job is 'server token': the end of a server's identity, and one of its clients. The
-- server is empty if the reservation outlives its connection.

local the_call = require 'core/call'
local block = require 'core/blocks'
local commands = require 'core/commands'
local queue = require 'core/queue'
local room = require 'core/room'
local job_index = require 'kinds/job_index'
local group = require 'kinds/group'

local jobs = {
  DEFAULT_PRIORITY = 1024,
  -- Jobs that are read at once; delays, and reservations, that end when a block begins.
  AT_ONCE = 500,
  -- Jobs that one call deletes at most, unless it must not leave anything.
  DELETED_AT_ONCE = 1000,
}
-- The estimated work to move one job to the queue for dead letters, in microseconds (call.lua).
local DEAD_LETTER = 5
local STATES = { 'ready', 'delayed', 'reserved', 'buried' }
-- What happens to a job: the state to which each event leads. Anything else is refused (beanstalkd,
-- protocol.txt, Job Lifecycle). Only its owner ends or extends a reservation, apart from
-- WITHOUT_OWNER.
local TRANSITIONS = {
  ['ready reserve'] = 'reserved',
  ['ready reserve_any'] = 'reserved',
  ['delayed reserve_any'] = 'reserved',
  ['buried reserve_any'] = 'reserved',
  ['reserved touch'] = 'reserved',
  ['reserved release'] = 'ready', ['reserved release_later'] = 'delayed',
  ['reserved give_up'] = 'ready', ['reserved time_out'] = 'ready',
  ['reserved bury'] = 'buried',
  ['buried kick'] = 'ready', ['delayed kick'] = 'ready',
  ['ready delete'] = 'gone', ['delayed delete'] = 'gone',
  ['reserved delete'] = 'gone', ['buried delete'] = 'gone',
  ['ready purge'] = 'gone', ['delayed purge'] = 'gone',
  ['reserved purge'] = 'gone', ['buried purge'] = 'gone',
}
local WITHOUT_OWNER = { time_out = true, purge = true }
-- These events are counted.
local COUNTED = {
  reserve = JOB_RESERVES, reserve_any = JOB_RESERVES, time_out = JOB_TIMEOUTS, release = JOB_RELEASES,
  release_later = JOB_RELEASES, bury = JOB_BURIES, kick = JOB_KICKS,
}

local key_of = queue.key_of

-- The state of the queue's jobs, which is queue.jobs while the call works on a queue that has any. One table: a new one
-- for each queue takes a microsecond.
local state = { settings = {}, indexed = {}, first = {} }

-- Turn to the jobs of the queue, which need not have any.
function jobs.open()
  if queue.jobs then
    return
  end
  queue.jobs = state
  state.ready = 0 -- how many jobs are ready
  state.last_id = nil -- the last id that the queue has given
  state.spent = nil -- the ids of jobs that go to the dead letters
  state.has_due = nil -- whether more jobs are due than the block has promoted
  state.has_ended = nil -- whether jobs have been deleted or buried
  state.is_due_now = nil -- whether waiting operations are to be tried at once
  state.has_unadopted = nil -- whether messages of the list are not jobs yet
  -- Of a group (group.lua): the base key of its log, how many messages it has not made jobs of yet, the offset of
  -- the next one and of the log's head; and whether it has passed any.
  state.source, state.lag, state.next, state.head, state.has_passed = nil, 0, nil, nil, nil
  -- By state, when its first job is due, if that is known; inf for never.
  state.first.delayed, state.first.reserved = nil, nil
  state.indexed.equal, state.indexed.single = nil, nil -- how far each index is complete (complete_index)
  local settings = state.settings
  settings.paused, settings.unique, settings.max_deliveries, settings.dead_letter, settings.type = nil, nil, nil, nil, nil
end

-- Read the settings of the queue. If it is that of a group, return the base key of the log and the group's place there.
function jobs.read_settings()
  local noted = call('HMGET', key_of('settings'), 'paused', 'indexed_equal', 'unique', 'max_deliveries', 'dead_letter', 'type',
    'source', 'next', 'indexed_single', 'max_bytes', 'id')
  local settings = state.settings
  state.indexed.equal, state.indexed.single = noted[2], noted[9]
  settings.paused, settings.unique, settings.max_deliveries = tonumber(noted[1] or nil), noted[3], tonumber(noted[4] or nil)
  settings.dead_letter, settings.type = noted[5], noted[6] or 'jobs'
  queue.max_bytes, state.last_id = tonumber(noted[10] or nil) or false, tonumber(noted[11] or 0)
  return noted[7], noted[8]
end

-- Return the jobs with these ids; false in place of a job that does not exist. A job that occurs twice is the
-- same table. Its `state` is nil if that takes another look (state_of).
function jobs.read(ids)
  local fields, found, known = {}, {}, {}
  for i, id in ipairs(ids) do fields[2 * i - 1], fields[2 * i] = id, id .. ':' end
  local values = commands.values_of('HMGET', key_of('jobs'), fields)
  for i, id in ipairs(ids) do
    local job, value, packed = known[id], values[2 * i - 1], values[2 * i]
    if not job and value then
      -- All fields at once: a table that grows takes twice as long.
      job = {
        id = id, value = value, about = packed and cmsgpack.unpack(packed), state = nil,
        made = nil, ttr = nil, flags = nil, expires = nil, first = nil,
      }
      if packed and job.about[JOB_OWNER] ~= '' then job.state = 'reserved' end
      known[id] = job
    end
    found[i] = job or false
  end
  the_call.work = the_call.work + 4 * the_call.MESSAGE * #ids
  return found
end

-- Return the jobs with these ids, which a set of a state has. An id without a job is dropped.
function jobs.read_in(state, ids)
  local found, stray = {}, {}
  for i, job in ipairs(jobs.read(ids)) do
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
local function parse(job)
  if not job.first then
    local priority, delay
    job.made, priority, delay, job.ttr, job.flags, job.expires, job.first = string.match(job.value,
      '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
    job.about = job.about or { tonumber(priority), tonumber(delay), 0, 0, 0, 0, 0, '' }
  end
  return job
end
jobs.parse = parse

function jobs.bytes_of(job)
  return #job.value - (job.first or string.match(job.value, '^%d+ %d+ %d+ %d+ %d+ %d+ ()')) + 1
end

function jobs.message_of(job)
  return string.sub(job.value, parse(job).first)
end

function jobs.ttr_of(job)
  return job.about[JOB_OWN_TTR] or tonumber(parse(job).ttr)
end

-- Return whether this owner has reserved the job.
function jobs.is_owned(job, owner)
  return parse(job).about[JOB_OWNER] == owner
end

-- Return the state of a job that exists. A job without a place is ready: this mends an interrupted change.
function jobs.state_of(job)
  for i = 1, job.state and 0 or #STATES do
    if call('ZSCORE', key_of(STATES[i]), job.id) then
      job.state = STATES[i]
      break
    end
  end
  if not job.state then
    call('ZADD', key_of('ready'), parse(job).about[JOB_PRIORITY], job.id)
    job.state = 'ready'
  end
  return job.state
end

-- Note that jobs have come into a state; `places` are their scores, each followed by an id.
function jobs.note_come(state, places)
  local first = queue.jobs.first[state]
  for i = 1, first and #places or 0, 2 do first = math.min(first, tonumber(places[i])) end
  queue.jobs.first[state] = first
end

local function score_in(state, job)
  if state == 'ready' then
    return job.about[JOB_PRIORITY]
  elseif state == 'delayed' then
    return the_call.clock() + job.about[JOB_DELAY]
  elseif state == 'reserved' then
    local ttr = jobs.ttr_of(job)
    return ttr > 0 and the_call.clock() + ttr or 'inf'
  end
  return call('HINCRBY', key_of('settings'), 'buried', 1)
end

-- Put the messages of jobs back at the head of the list: a queue that is a list has no ready jobs.
local function return_to_list(some)
  table.sort(some, function(one, other) return one.id < other.id end)
  local messages, marks_of = {}, {}
  for i, job in ipairs(some) do
    messages[i] = jobs.message_of(job)
    marks_of[i] = (job.flags ~= '0' or job.expires ~= '0') and { job.flags, tonumber(job.expires) } or nil
  end
  queue.kind.restore(messages, marks_of)
end

-- Note in an index that a job goes from one state to another.
local function note_in_index(name, job, from, to)
  local all = name == 'single' and queue.jobs.settings.unique == 'unfinished'
  local function is_in(state)
    return state == 'ready' or state == 'delayed' or all and state ~= 'gone'
  end
  if is_in(from) ~= is_in(to) then
    local text = name == 'single' and call('HGET', key_of('jobs'), job.id .. '#') or jobs.message_of(job)
    job_index.note(name, text, job.id, is_in(to))
  end
end

-- Enter more of the jobs that were there before an index was used. Return whether all have been entered.
function jobs.complete_index(name)
  local indexed = queue.jobs.indexed
  while indexed[name] ~= 'all' do
    if not indexed[name] then
      indexed[name] = '0'
      job_index.drop_earlier(name)
    end
    local cursor, found = unpack(call('HSCAN', key_of('jobs'), indexed[name], 'COUNT', 1000))
    local ids = {}
    for i = 1, #found, 2 do
      if string.match(found[i], '^%x+$') then ids[#ids + 1] = found[i] end
    end
    for _, job in ipairs(jobs.read(ids)) do
      note_in_index(name, job, 'gone', jobs.state_of(job))
    end
    indexed[name] = cursor == '0' and 'all' or cursor
    call('HSET', key_of('settings'), 'indexed_' .. name, indexed[name])
    if block.patient then break end
  end
  return indexed[name] == 'all'
end

-- Note that a job of a queue of jobs goes from one state to another, in what is counted and indexed.
function jobs.count(job, from, to)
  local state = queue.jobs
  if from == to then
    return
  end
  local was_queued, is_queued = from == 'ready' or from == 'delayed', to == 'ready' or to == 'delayed'
  if room.max_bytes() then
    local change = (is_queued or to == 'gone') and 0 or jobs.bytes_of(job)
    if not was_queued and from ~= 'gone' then change = change - jobs.bytes_of(job) end
    if change ~= 0 and call('HINCRBY', key_of('settings'), 'held_bytes', change) < 0 then
      call('HSET', key_of('settings'), 'held_bytes', 0) -- the job was reserved before they were counted
    end
  end
  if from == 'ready' then state.ready = state.ready - 1 end
  if to == 'ready' then state.ready = state.ready + 1 end
  if was_queued then queue.length = queue.length - 1 end
  if is_queued then queue.length = queue.length + 1 end
  if state.indexed.equal then note_in_index('equal', job, from, to) end
  if state.settings.unique then
    if state.indexed.single then note_in_index('single', job, from, to) end
    if to == 'gone' then call('HDEL', key_of('jobs'), job.id .. '#') end
  end
end

-- Return the state to which an event leads a job, or nil if the event is refused. A job that has been
-- reserved often enough is buried instead of becoming ready, and goes to the dead letters.
local function next_state(job, event, owner)
  local from, state = jobs.state_of(job), queue.jobs
  local to = TRANSITIONS[from .. ' ' .. event]
  if not to or (from == 'reserved' and not WITHOUT_OWNER[event] and not jobs.is_owned(job, owner)) then
    return nil
  end
  local most = state.settings.max_deliveries
  if most and from == 'reserved' and (to == 'ready' or to == 'delayed') and job.about[JOB_RESERVES] >= most then
    if state.settings.dead_letter then
      state.spent = state.spent or {}
      table.insert(state.spent, job.id)
      the_call.work = the_call.work + DEAD_LETTER
    end
    return 'buried'
  end
  return to
end

-- Return the packed state of a job that stays with the queue, and goes to a state by an event.
local function state_after(event, job, to, owner)
  local about, counter = parse(job).about, COUNTED[event]
  if counter then about[counter] = about[counter] + 1 end
  about[JOB_OWNER] = to == 'reserved' and owner or ''
  if to ~= 'reserved' then about[JOB_OWN_TTR] = nil end
  if to == 'buried' and queue.jobs.source then
    about[JOB_OFFSET] = call('ZSCORE', key_of('offsets'), job.id) or about[JOB_OFFSET]
  end
  return cmsgpack.pack(about)
end

-- Write to which states jobs go; see `happen`.
local function write(event, is_list, into, left, written, gone, returned)
  local state, key = queue.jobs, key_of('jobs')
  if #written > 0 then commands.with_all('HSET', key, written) end
  for name, places in pairs(into) do
    commands.with_all('ZADD', key_of(name), places)
    jobs.note_come(name, places)
  end
  if event == 'touch' then state.first.reserved = nil end
  if into.reserved and event ~= 'touch' then call('HSET', the_call.records, 'j' .. queue.base, 1) end
  if #returned > 0 then return_to_list(returned) end
  for name, ids in pairs(left) do
    commands.with_all('ZREM', key_of(name), ids)
    state.first[name] = nil
  end
  if #gone > 0 then commands.with_all('HDEL', key, gone) end
  if left.reserved and the_call.has_records() then
    local due = call('ZRANGE', key_of('reserved'), 0, 0, 'WITHSCORES')[2]
    state.first.reserved = tonumber(due or nil) or math.huge
    if not due then call('HDEL', the_call.records, 'j' .. queue.base) end
  end
  if is_list and queue.word == 'reserved' and call('EXISTS', key) == 0 then
    queue.set_kind(room.max_bytes() and 'limited' or nil)
  end
  state.has_ended = state.has_ended or #gone > 0 or into.buried ~= nil
  block.changed = block.changed or next(left) ~= nil or next(into) ~= nil
end

-- Let an event happen to jobs, each with its owner. They enter their new states before they leave the old
-- ones, so that an error in between loses nothing.
--
-- Returns  for each 1, or 0 if the event is refused
function jobs.happen(event, some, owners)
  local done, passed, consumed, bytes = {}, queue.jobs.source and {}, 0, 0
  -- By state, the places of jobs that enter it, and the ids of those that leave it; fields that are written or deleted;
  -- jobs that go back to the list.
  local into, left, written, gone, returned = {}, {}, {}, {}, {}
  local is_list = queue.word ~= 'jobs'
  for i, job in ipairs(some) do
    local owner = owners and owners[i]
    local to = job and next_state(job, event, owner)
    done[i] = to and 1 or 0
    if to then
      local from = job.state
      if passed and (to == 'gone' or to == 'buried') then passed[#passed + 1] = job.id end
      if from ~= to then
        local ids = left[from] or {}
        left[from], ids[#ids + 1] = ids, job.id
      end
      if to == 'gone' or to == 'ready' and is_list then
        local n = #gone
        gone[n + 1], gone[n + 2] = job.id, job.id .. ':'
        if to == 'ready' then
          returned[#returned + 1] = job
        else
          consumed, bytes = consumed + 1, bytes + jobs.bytes_of(job)
        end
      else
        local n, packed, places = #written, state_after(event, job, to, owner), into[to] or {}
        written[n + 1], written[n + 2] = job.id .. ':', packed
        local at = #places
        into[to], places[at + 1], places[at + 2] = places, score_in(to, job), job.id
      end
      if not is_list then jobs.count(job, from, to) end
      job.state = to
    end
  end
  write(event, is_list, into, left, written, gone, returned)
  if passed then group.pass(passed) end
  if not is_list then
    if consumed > 0 then queue.count_as('consumed', consumed, bytes) end
    if event == 'time_out' then call('HINCRBY', key_of('settings'), 'timeouts', #some) end
  end
  return done
end

-- Delete jobs by their ids, some at a time.
function jobs.delete(ids)
  for first = 1, #ids, jobs.AT_ONCE do
    jobs.happen('delete', jobs.read({ unpack(ids, first, math.min(first + jobs.AT_ONCE - 1, #ids)) }))
  end
end

-- Delete jobs in a state, or as many as one call may. Return how many; and whether there are more.
function jobs.purge(state)
  local count, ids = 0, nil
  repeat
    ids = call('ZRANGE', key_of(state), 0, jobs.AT_ONCE - 1)
    for _, is_done in ipairs(jobs.happen('purge', jobs.read_in(state, ids))) do count = count + is_done end
  until #ids < jobs.AT_ONCE or block.patient and count >= jobs.DELETED_AT_ONCE
  return count, call('EXISTS', key_of(state)) == 1
end

-- Return the ids of the ready jobs from position `first` to `last` in the order in which they are taken. The set
-- has the jobs of each priority in the order of the puts; in a lifo, they are read backwards, priority by priority.
function jobs.ready_ids(first, last)
  local key = key_of('ready')
  if queue.jobs.settings.type ~= 'lifo' then
    return call('ZRANGE', key, first, last)
  end
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

-- Return the ids of the next jobs to take.
function jobs.next_ids(count)
  if queue.jobs.settings.type == 'random' then
    return call('ZRANDMEMBER', key_of('ready'), count)
  end
  return jobs.ready_ids(0, count - 1)
end

-- Return how many jobs are in each state.
function jobs.counts()
  local found = {}
  for i, state in ipairs(STATES) do found[i] = call('ZCARD', key_of(state)) end
  return found
end

return jobs
