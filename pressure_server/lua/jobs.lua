-- Jobs: messages that stay with their queue until a client deletes them. A job has an id, a priority, a delay
-- and a time to run. All messages of a queue of the kind `jobs` are jobs. In a queue of the kind `reserved` a
-- message becomes a job while a client has it reserved, and goes back to the head of the list if the client
-- gives it up.
--
-- This file has the states of jobs and the transitions between them. job_puts.lua makes jobs of messages,
-- job_gets.lua takes and reserves them, job_verbs.lua has the other events, and job_lists.lua the verbs of lists.
-- Ids are in job_ids.lua, and unique jobs in job_index.lua.
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

local DEFAULT_PRIORITY = 1024
-- The estimated work to move one job to the queue for dead letters, in microseconds (blocks.lua).
local DEAD_LETTER = 5

-- Return the key of a collection of the queue's jobs, such as those in a state.
local function key_of(name)
  return base .. ':ext:' .. name
end

-- The jobs of the present queue.
local the_jobs = {
  ready = 0, -- how many jobs are ready
  lag = 0, -- of a group's queue: of how many messages of the log it has not made jobs yet (groups.lua)
  settings = {},
}

do
  local self = the_jobs
  local jobs, settings, indexes -- of the present queue

  local HELD_AT_ONCE = 5000
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

  -- Turn to the present queue, which need not have any jobs.
  function self.enter()
    jobs, settings, indexes = key_of('jobs'), key_of('settings'), {}
    self.ready, self.settings, self.indexed = 0, {}, {}
    self.source, self.lag, self.has_passed = nil, 0, nil
    self.first, self.last_id = {}, nil
    self.spent, self.has_unadopted, self.has_ended, self.is_due_now, self.has_due = nil, nil, nil, nil, nil
  end

  -- Return when the first job of a state, 'delayed' or 'reserved', is due; inf for never, or if there is none.
  local function first_due(state)
    local due = self.first[state]
    if not due then
      due = tonumber(call('ZRANGE', key_of(state), 0, 0, 'WITHSCORES')[2]) or math.huge
      self.first[state] = due
    end
    return due
  end

  -- Note that jobs have come into a state; `places` are their scores, each followed by an id.
  function self.note_come(state, places)
    local first = self.first[state]
    for i = 1, first and #places or 0, 2 do first = math.min(first, tonumber(places[i])) end
    self.first[state] = first
  end

  function self.index(name)
    indexes[name] = indexes[name] or make_job_index(name)
    return indexes[name]
  end

  -- Return the jobs with these ids; false in place of a job that does not exist. A job that occurs twice is the
  -- same table. Its `state` is nil if that takes another look (state_of).
  function self.read(ids)
    local fields, found, known = {}, {}, {}
    for i, id in ipairs(ids) do fields[2 * i - 1], fields[2 * i] = id, id .. ':' end
    local values = values_of_all('HMGET', jobs, fields)
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
    work = work + 4 * MESSAGE * #ids
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
  self.parse = parse

  function self.bytes_of(job)
    return #job.value - (job.first or string.match(job.value, '^%d+ %d+ %d+ %d+ %d+ %d+ ()')) + 1
  end

  function self.message_of(job)
    return string.sub(job.value, parse(job).first)
  end

  -- Return the state of a job that exists. A job without a place is ready: this mends an interrupted change.
  local function state_of(job)
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
  self.state_of = state_of

  function self.ttr_of(job)
    return job.about[JOB_OWN_TTR] or tonumber(parse(job).ttr)
  end

  local function score_in(state, job)
    if state == 'ready' then
      return job.about[JOB_PRIORITY]
    elseif state == 'delayed' then
      return clock() + job.about[JOB_DELAY]
    elseif state == 'reserved' then
      local ttr = self.ttr_of(job)
      return ttr > 0 and clock() + ttr or 'inf'
    end
    return call('HINCRBY', settings, 'buried', 1)
  end

  -- Put the messages of jobs back at the head of the list: only queues of the kind `jobs` have ready jobs.
  local function return_to_list(some)
    table.sort(some, function(one, other) return one.id < other.id end)
    local messages, marks = {}, {}
    for i, job in ipairs(some) do
      messages[i] = self.message_of(job)
      marks[i] = (job.flags ~= '0' or job.expires ~= '0') and { job.flags, tonumber(job.expires) } or nil
    end
    gets.restore(messages, marks)
  end

  -- Note in an index that a job goes from one state to another.
  function self.enter_into(name, job, from, to)
    local all = name == 'single' and self.settings.unique == 'unfinished'
    local function is_in(state)
      return state == 'ready' or state == 'delayed' or all and state ~= 'gone'
    end
    if is_in(from) ~= is_in(to) then
      local text = name == 'single' and call('HGET', jobs, job.id .. '#') or self.message_of(job)
      self.index(name).note(text, job.id, is_in(to))
    end
  end

  -- Note that a job goes from one state to another, in what is counted and indexed.
  function self.count(job, from, to)
    if queue.kind ~= 'jobs' or from == to then
      return
    end
    local was_queued, is_queued = from == 'ready' or from == 'delayed', to == 'ready' or to == 'delayed'
    if max_bytes() then
      local change = (is_queued or to == 'gone') and 0 or self.bytes_of(job)
      if not was_queued and from ~= 'gone' then change = change - self.bytes_of(job) end
      if change ~= 0 and call('HINCRBY', settings, 'held_bytes', change) < 0 then
        call('HSET', settings, 'held_bytes', 0) -- the job was reserved before they were counted
      end
    end
    if from == 'ready' then self.ready = self.ready - 1 end
    if to == 'ready' then self.ready = self.ready + 1 end
    if was_queued then queue.length = queue.length - 1 end
    if is_queued then queue.length = queue.length + 1 end
    if self.indexed.equal then self.enter_into('equal', job, from, to) end
    if self.settings.unique then
      if self.indexed.single then self.enter_into('single', job, from, to) end
      if to == 'gone' then call('HDEL', jobs, job.id .. '#') end
    end
  end

  -- Return whether this owner has reserved the job.
  function self.is_owned(job, owner)
    return parse(job).about[JOB_OWNER] == owner
  end

  -- Return the state to which an event leads a job, or nil if the event is refused. A job that has been
  -- reserved often enough is buried instead of becoming ready, and goes to the dead letters.
  local function next_state(job, event, owner)
    local from = state_of(job)
    local to = TRANSITIONS[from .. ' ' .. event]
    if not to or (from == 'reserved' and not WITHOUT_OWNER[event] and owner ~= parse(job).about[JOB_OWNER]) then
      return nil
    end
    local most = self.settings.max_deliveries
    if most and from == 'reserved' and (to == 'ready' or to == 'delayed') and job.about[JOB_RESERVES] >= most then
      if self.settings.dead_letter then
        self.spent = self.spent or {}
        table.insert(self.spent, job.id)
        work = work + DEAD_LETTER
      end
      return 'buried'
    end
    return to
  end

  -- Let an event happen to jobs, each with its owner. They enter their new states before they leave the old
  -- ones, so that an error in between loses nothing.
  --
  -- Returns  for each 1, or 0 if the event is refused
  function self.happen(event, some, owners)
    local done, into, left, written, gone, returned = {}, {}, {}, {}, {}, {}
    local consumed, bytes, counter = 0, 0, COUNTED[event]
    local passed = self.source and {}
    local jobs_of_queue = queue.kind == 'jobs'
    for i, job in ipairs(some) do
      local owner = owners and owners[i]
      local to = job and next_state(job, event, owner)
      done[i] = to and 1 or 0
      if to then
        local from = job.state
        if passed and (to == 'gone' or to == 'buried') then passed[#passed + 1] = job.id end
        if from ~= to then
          local places = left[from] or {}
          left[from], places[#places + 1] = places, job.id
        end
        if to == 'gone' then
          local n = #gone
          gone[n + 1], gone[n + 2] = job.id, job.id .. ':'
          consumed, bytes = consumed + 1, bytes + self.bytes_of(job)
        elseif to == 'ready' and not jobs_of_queue then
          gone[#gone + 1], gone[#gone + 2] = job.id, job.id .. ':'
          returned[#returned + 1] = job
        else
          local about = parse(job).about
          if counter then about[counter] = about[counter] + 1 end
          about[JOB_OWNER] = to == 'reserved' and owner or ''
          if to ~= 'reserved' then about[JOB_OWN_TTR] = nil end
          if passed and to == 'buried' then about[JOB_OFFSET] = call('ZSCORE', key_of('offsets'), job.id) or about[JOB_OFFSET] end
          local places, n = into[to] or {}, #written
          local at = #places
          into[to], places[at + 1], places[at + 2] = places, score_in(to, job), job.id
          written[n + 1], written[n + 2] = job.id .. ':', cmsgpack.pack(about)
        end
        self.count(job, from, to)
        job.state = to
      end
    end
    if #written > 0 then call_with_all('HSET', jobs, written) end
    for state, places in pairs(into) do
      call_with_all('ZADD', key_of(state), places)
      self.note_come(state, places)
    end
    if event == 'touch' then self.first.reserved = nil end
    if into.reserved and event ~= 'touch' then call('HSET', records, 'j' .. base, 1) end
    if #returned > 0 then return_to_list(returned) end
    for state, places in pairs(left) do
      call_with_all('ZREM', key_of(state), places)
      self.first[state] = nil
    end
    if #gone > 0 then call_with_all('HDEL', jobs, gone) end
    if self.source then pass(passed) end
    if consumed > 0 and jobs_of_queue then count_as('consumed', consumed, bytes) end
    if event == 'time_out' and jobs_of_queue then call('HINCRBY', settings, 'timeouts', #some) end
    if left.reserved and has_records and call('EXISTS', key_of('reserved')) == 0 then
      call('HDEL', records, 'j' .. base)
    end
    if queue.kind == 'reserved' and call('EXISTS', jobs) == 0 then set_kind(max_bytes() and 'limited' or nil) end
    self.has_ended = self.has_ended or #gone > 0 or into.buried ~= nil
    changed = changed or next(left) ~= nil or next(into) ~= nil
    return done
  end

  -- Return how many jobs may be taken now.
  function self.available()
    -- A run before this one may have taken the group's ready job by its id.
    if self.source and self.ready == 0 then fill_group(1) end
    local paused = self.ready > 0 and self.settings.paused
    return paused and paused > clock() and 0 or self.ready
  end

  -- Return the ids of the ready jobs from position `first` to `last` in the order in which they are taken. The set
  -- has the jobs of each priority in the order of the puts; in a lifo, they are read backwards, priority by priority.
  function self.ready_ids(first, last)
    local key = key_of('ready')
    if self.settings.type ~= 'lifo' then
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
  function self.next_ids(count)
    if self.settings.type == 'random' then
      return call('ZRANDMEMBER', key_of('ready'), count)
    end
    return self.ready_ids(0, count - 1)
  end

  -- Return the ids in a set that are due, the latest first.
  local function due_in(state)
    local first = first_due(state)
    if first == math.huge or first > clock() then
      return {}
    end
    return call('ZREVRANGEBYSCORE', key_of(state), string.format('%.0f', clock()), '-inf', 'LIMIT', 0, JOBS_AT_ONCE)
  end

  -- Return the jobs with these ids, which a set of a state has. An id without a job is dropped.
  local function jobs_in(state, ids)
    local found, stray = {}, {}
    for i, job in ipairs(self.read(ids)) do
      if job then
        job.state = state
        found[#found + 1] = job
      else
        stray[#stray + 1] = ids[i]
      end
    end
    if #stray > 0 then
      call_with_all('ZREM', key_of(state), stray)
      self.first[state] = nil
      if state == 'ready' then self.ready, queue.length = self.ready - #stray, queue.length - #stray end
    end
    return found
  end
  self.jobs_in = jobs_in

  -- Make delayed jobs ready, and end reservations, whose time has come. A block does this once for each queue, for
  -- some jobs; if that is not all, the block's operations are left for another call (batch.lua).
  local function promote(delayed)
    self.has_due = block.promoted[base]
    if self.has_due ~= nil then
      return
    end
    if delayed == 0 then self.first.delayed = math.huge end
    local ids = due_in('delayed')
    self.has_due = #ids == JOBS_AT_ONCE
    if #ids > 0 then
      local ready = {}
      for _, job in ipairs(jobs_in('delayed', ids)) do
        ready[#ready + 1], ready[#ready + 2] = parse(job).about[JOB_PRIORITY], job.id
      end
      if #ready > 0 then
        call('ZADD', key_of('ready'), unpack(ready))
        call('ZREM', key_of('delayed'), unpack(ids))
        self.first.delayed = nil
      end
      self.ready = self.ready + #ready / 2
      changed = true
    end
    ids = due_in('reserved')
    self.has_due = self.has_due or #ids == JOBS_AT_ONCE
    block.promoted[base] = self.has_due
    if #ids > 0 then self.happen('time_out', jobs_in('reserved', ids)) end
  end

  -- Read the settings of the queue. If it belongs to a group, return the group's log and its place there.
  function self.read_settings()
    local noted = call('HMGET', settings, 'paused', 'indexed_equal', 'unique', 'max_deliveries', 'dead_letter', 'type',
      'source', 'next', 'indexed_single', 'max_bytes', 'id')
    self.indexed = { equal = noted[2], single = noted[9] }
    self.settings = {
      paused = tonumber(noted[1] or nil), unique = noted[3], max_deliveries = tonumber(noted[4] or nil),
      dead_letter = noted[5], type = noted[6] or 'jobs',
    }
    queue.max_bytes, self.last_id = tonumber(noted[10] or nil) or false, tonumber(noted[11] or 0)
    return noted[7], noted[8]
  end

  -- Begin with the queue: read how many jobs it has, and do what is due.
  function self.begin()
    local source, following = self.read_settings()
    local delayed = call('ZCARD', key_of('delayed'))
    if queue.kind == 'jobs' then
      local in_list = queue.length
      self.ready = call('ZCARD', key_of('ready'))
      queue.length = in_list + self.ready + delayed
      if source then
        self.source = source
        read_source(following)
        queue.length = queue.length + self.lag
        if self.ready == 0 then fill_group(1) end
      end
      self.has_unadopted = in_list > 0 and job_puts().adopt(in_list)
    end
    promote(delayed)
  end

  -- Return when there may be another job to take: when the first delay, reservation or pause ends; inf for never.
  local function next_due()
    local paused = self.settings.paused
    return math.min(paused and paused > clock() and paused or math.huge, first_due('delayed'), first_due('reserved'))
  end

  -- Note in :ext:due when servers try waiting operations again. Call this before the script leaves the queue.
  --
  -- Returns  in how many milliseconds that is, -1 for never; and the note, '' for none. The time is that of the note,
  --          although nothing may be due then: what is due later than the note does not change it
  function self.note_due()
    if not has_records then
      return -1, ''
    end
    local noted, due = call('GET', key_of('due')), next_due()
    local is_over = noted and tonumber(noted) <= clock()
    if self.has_ended and is_finished() then self.is_due_now = true end
    if self.is_due_now then due = clock() end
    if due < math.huge and (not noted or is_over or due < tonumber(noted)) or self.is_due_now then
      noted = string.format('%.0f', due)
      call('SET', key_of('due'), noted)
      if self.settings.dead_letter then call('ZADD', own_key('due'), noted, base) end
    elseif is_over or noted and not queue.kind then
      call('DEL', key_of('due'))
      call('ZREM', own_key('due'), base)
      noted = false
    end
    self.has_ended, self.is_due_now = nil, nil
    return noted and math.max(0, tonumber(noted) - clock()) or -1, noted or ''
  end

  -- Return how many jobs are ready, delayed, reserved and buried; for how long the queue is paused yet; and how
  -- many of the ready jobs are urgent (beanstalkd: of a priority below 1024).
  function self.counts()
    local found = {}
    for i, state in ipairs(STATES) do found[i] = call('ZCARD', key_of(state)) end
    if queue.kind ~= 'jobs' then found[1] = queue.length else found[1] = found[1] + self.lag end
    found[#found + 1] = math.max(0, (self.settings.paused or 0) - clock())
    found[#found + 1] = call('ZCOUNT', key_of('ready'), '-inf', '(' .. DEFAULT_PRIORITY)
    return found
  end

  -- Count the bytes of the reserved and buried jobs of a queue that has just got a limit of bytes. Look at a limited
  -- number of jobs, so that other clients are not delayed; the rest counts as queued.
  function self.count_held()
    local bytes = 0
    for _, state in ipairs({ 'reserved', 'buried' }) do
      for first = 0, HELD_AT_ONCE - 1, JOBS_AT_ONCE do
        for _, job in ipairs(self.read(call('ZRANGE', key_of(state), first, first + JOBS_AT_ONCE - 1))) do
          bytes = bytes + (job and self.bytes_of(job) or 0)
        end
      end
    end
    call('HSET', settings, 'held_bytes', bytes)
  end

  -- Return how many jobs are reserved or buried: neither queued nor gone.
  function self.outstanding()
    return call('ZCARD', key_of('reserved')) + call('ZCARD', key_of('buried'))
  end
end

-- Return the jobs of the queue, which need not have any.
function open_jobs()
  if not queue.jobs then
    the_jobs.enter()
    queue.jobs = the_jobs
  end
  return queue.jobs
end

-- Begin with a queue that has jobs: do what is due.
function begin_jobs()
  open_jobs().begin()
  move_dead_letters()
end
