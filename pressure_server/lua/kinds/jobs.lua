-- Jobs: messages that stay with their queue until a client deletes them. A job has an id, a priority, a delay and a time
-- to run. All messages of a queue of the kind `jobs` are jobs. In a queue of the kind `reserved` a message is a job while
-- a client has it reserved, and goes back to the head of the list if the client gives it up.
--
-- This file has the states of jobs and the transitions between them. job_reads.lua reads jobs, job_times.lua knows which
-- are due, job_puts.lua makes jobs of messages, job_gets.lua takes and reserves them, job_verbs.lua has the other events,
-- and job_queue.lua is the kind of queue. Ids are in job_ids.lua, and unique jobs in job_index.lua.
--
-- Touches  the keys in docs/internals/jobs.md. 'id:' of :ext:jobs has a job's state (JobField in layout.py), packed, if
--          an event has happened to it since it was put
--          :ext:settings  'paused': until when no job is reserved; 'type': the type that the queue was created
--                         with; 'max_deliveries', 'dead_letter': after how many reservations a job goes to the
--                         queue with that base key. Counts: 'buried', 'timeouts' of reservations, 'deliveries'
--                         (reservations), 'dead_letters' that have left the queue
--          ${PREFIX}!due  queues with dead letters, and groups with max_deliveries, by the time in :ext:due
--          j<base key>    a field of the records of a server: its clients may have reserved jobs of that queue
--
-- Times are in milliseconds since 1970 by the backend's clock; delays and times to run in milliseconds. The owner of a
-- reserved job is 'server token': docs/internals/jobs.md#reservations.

local room = require 'core/room'
local job_reads = require 'kinds/job_reads'
local job_index = require 'kinds/job_index'
local group = require 'kinds/group'
local marks = require 'kinds/marks'
local policy = require 'kinds/policy'
local ranges = require 'kinds/ranges'

local jobs = {
  AT_ONCE = job_reads.AT_ONCE, open = job_reads.open, read_settings = job_reads.read_settings,
  read = job_reads.read, read_in = job_reads.read_in, between = job_reads.between, at_once = job_reads.at_once,
  parse = job_reads.parse, bytes_of = job_reads.bytes_of, message_of = job_reads.message_of, ttr_of = job_reads.ttr_of,
  is_owned = job_reads.is_owned, state_of = job_reads.state_of, note_come = job_reads.note_come,
  portion = job_reads.portion, ready_ids = job_reads.ready_ids, next_ids = job_reads.next_ids, counts = job_reads.counts,
  -- The most jobs that one call deletes, unless it must not leave any.
  DELETED_AT_ONCE = 1000,
}
-- The estimated work to move one job to the queue for dead letters, in microseconds (call.lua).
local DEAD_LETTER = 5
-- By state and event, the state to which the event leads. All other events are refused (beanstalkd, protocol.txt, Job
-- Lifecycle). Only its owner ends or extends a reservation, apart from the events in WITHOUT_OWNER.
local TRANSITIONS = {
  ['ready reserve'] = 'reserved',
  ['ready reserve_any'] = 'reserved',
  ['delayed reserve_any'] = 'reserved',
  ['buried reserve_any'] = 'reserved',
  ['reserved touch'] = 'reserved', ['reserved claim'] = 'reserved',
  ['reserved release'] = 'ready', ['reserved release_now'] = 'ready', ['reserved release_later'] = 'delayed',
  ['reserved give_up'] = 'ready', ['reserved time_out'] = 'ready',
  ['reserved bury'] = 'buried',
  ['buried kick'] = 'ready', ['delayed kick'] = 'ready',
  ['ready delete'] = 'gone', ['delayed delete'] = 'gone',
  ['reserved delete'] = 'gone', ['buried delete'] = 'gone',
  ['ready purge'] = 'gone', ['delayed purge'] = 'gone',
  ['reserved purge'] = 'gone', ['buried purge'] = 'gone',
}
local WITHOUT_OWNER = { time_out = true, purge = true, claim = true }
-- The counters of events in a job's state.
local COUNTED = {
  reserve = JOB_RESERVES, reserve_any = JOB_RESERVES, claim = JOB_RESERVES, time_out = JOB_TIMEOUTS, release = JOB_RELEASES,
  release_later = JOB_RELEASES, release_now = JOB_RELEASES, bury = JOB_BURIES, kick = JOB_KICKS,
}

local key_of = queue.key_of

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

-- Put the messages of jobs back at the head of the list, because a queue that is a list has no ready jobs.
local function return_to_list(some)
  table.sort(some, function(one, other) return one.id < other.id end)
  local messages, marks_of = {}, {}
  for i, job in ipairs(some) do
    messages[i] = jobs.message_of(job)
    marks_of[i] = marks.of(job.flags, job.expires, job.about[JOB_RESERVES])
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
    local cursor, found = unpack(call('HSCAN', key_of('jobs'), indexed[name] or '0', 'COUNT', jobs.portion(1000)))
    local ids = {}
    for i = 1, #found, 2 do
      if string.match(found[i], '^%x+$') then ids[#ids + 1] = found[i] end
    end
    for _, job in ipairs(jobs.read(ids)) do note_in_index(name, job, 'gone', jobs.state_of(job)) end
    indexed[name] = cursor == '0' and 'all' or cursor
    call('HSET', key_of('settings'), 'indexed_' .. name, indexed[name])
    if block.patient then break end
  end
  return indexed[name] == 'all'
end

-- Note in the counts and the indexes that a job of a queue of jobs goes from one state to another.
function jobs.count(job, from, to)
  local state = queue.jobs
  if from == to then return end
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

-- Return the state to which an event leads a job, or nil if the event is refused. A job that has been reserved often
-- enough is buried instead of becoming ready, and goes to the dead letters. A job that has failed may be delayed.
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
  local delay = to == 'ready' and state.settings.policy and policy.retry_delay(event, job) or 0
  if delay > 0 then
    job.about[JOB_DELAY] = delay
    return 'delayed'
  end
  return to
end

-- Return the packed state of a job after an event that leads to the state `to`, in which it stays with the queue.
local function state_after(event, job, to, owner)
  local about, counter = jobs.parse(job).about, COUNTED[event]
  if counter then about[counter] = about[counter] + 1 end
  about[JOB_OWNER] = to == 'reserved' and owner or ''
  if to ~= 'reserved' then about[JOB_OWN_TTR] = nil end
  if to == 'buried' and queue.jobs.source then
    about[JOB_OFFSET] = call('ZSCORE', key_of('offsets'), job.id) or about[JOB_OFFSET]
  end
  return cmsgpack.pack(about)
end

-- Write the new states of jobs; see `happen`.
local function write(event, is_list, into, left, written, gone, returned)
  local state, key = queue.jobs, key_of('jobs')
  if #written > 0 then commands.with_all('HSET', key, written) end
  for name, places in pairs(into) do
    commands.with_all('ZADD', key_of(name), places)
    jobs.note_come(name, places)
  end
  if event == 'touch' then state.first.reserved = nil end
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
  if left.reserved and state.settings.policy then policy.note_ended() end
  state.has_ended = state.has_ended or #gone > 0 or into.buried ~= nil
  block.changed = block.changed or next(left) ~= nil or next(into) ~= nil
end

-- Let an event happen to jobs, none of which is a range that must be prepared; see `happen`.
local function happen_to(event, some, owners)
  local done, passed, consumed, bytes = {}, queue.jobs.source and {}, 0, 0
  -- By state, the scores and ids of jobs that enter it, and the ids of jobs that leave it; fields that are written or
  -- deleted; jobs that go back to the list.
  local into, left, written, gone, returned = {}, {}, {}, {}, {}
  local is_list = queue.word ~= 'jobs'
  for i, job in ipairs(some) do
    local owner = owners and owners[i]
    local to = job and next_state(job, event, owner)
    done[i] = to and (job.count or 1) or 0
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
          consumed, bytes = consumed + (job.count or 1), bytes + (is_list and 0 or jobs.bytes_of(job))
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

-- Return whether an event may happen to a reserved job, for ranges.lua.
local function may_happen(job, event, owner)
  return TRANSITIONS['reserved ' .. event] and (WITHOUT_OWNER[event] or jobs.is_owned(job, owner))
end

-- Let an event happen to jobs, each with its owner. A job enters its new state before it leaves the old one, so that an
-- error in between loses nothing.
--
-- Returns  for each 1, or if it is a range the number of its messages; or 0 if the event is refused
function jobs.happen(event, some, owners)
  if not queue.jobs.source then return happen_to(event, some, owners) end
  local done, ready, its_owners, places = {}, ranges.prepare(event, some, owners, may_happen)
  for i = 1, #some do done[i] = 0 end
  for i, count in ipairs(happen_to(event, ready, its_owners)) do
    for _, place in ipairs(places[i]) do done[place] = done[place] + (places[i].is_whole and count or math.min(count, 1)) end
  end
  return done
end

function jobs.delete(ids)
  for some in commands.parts(ids, jobs.AT_ONCE) do jobs.happen('delete', jobs.read(some)) end
end

-- Delete jobs in a state, as many as one call may. Return how many; and whether there are more.
function jobs.purge(state)
  local count, ids, portion = 0, nil, jobs.portion(jobs.AT_ONCE)
  repeat
    ids = call('ZRANGE', key_of(state), 0, portion - 1)
    for _, is_done in ipairs(jobs.happen('purge', jobs.read_in(state, ids))) do count = count + is_done end
  until #ids < portion or block.patient and count >= 2 * portion
  return count, call('EXISTS', key_of(state)) == 1
end

-- Return why this queue cannot become one of jobs, or nil.
function jobs.refusal_to_convert()
  local of = not queue.kind.become_jobs and call('HGET', key_of('settings'), 'type')
  return of and { err = 'TYPE not-jobs ' .. of } or nil
end

-- Make this a queue of jobs, unless it is one. Its messages are adopted in their order. Return an error, or nil.
function jobs.convert()
  local refusal = queue.word ~= 'jobs' and jobs.refusal_to_convert()
  if queue.word == 'jobs' or refusal then return refusal or nil end
  -- The reserved messages of a list were counted as consumed.
  local outstanding, bytes = 0, 0
  for _, state in ipairs({ 'reserved', 'buried' }) do
    for some in commands.parts(call('ZRANGE', key_of(state), 0, -1), jobs.AT_ONCE) do
      for _, value in ipairs(call('HMGET', key_of('jobs'), unpack(some))) do
        if value then outstanding, bytes = outstanding + 1, bytes + jobs.bytes_of({ value = value }) end
      end
    end
  end
  if outstanding > 0 then queue.count_as('consumed', -outstanding, -bytes) end
  if queue.kind.become_jobs and call('EXISTS', key_of('ready')) == 1 then
    call('RENAME', key_of('ready'), key_of('unadopted'))
  end
  queue.set_kind('jobs')
  queue.length = call('LLEN', queue.base)
  call('UNLINK', key_of('members'), key_of('copies'), key_of('index'))
  queue.index, queue.mirror = nil, nil
  queue.kind.begin()
  queue.kind.count_held()
  if not (queue.is_free('producer') and queue.is_free('consumer')) then
    queue.try_waiting() -- operations that wait for a role no longer need it
  end
end

return jobs
