-- Jobs: messages that stay with their queue until a client deletes them. A job has an id, a priority, a delay
-- and a time to run. All messages of a queue of the kind `jobs` are jobs. In a queue of the kind `reserved` a
-- message becomes a job while a client has it reserved, and goes back to the head of the list if the client
-- gives it up.
--
-- This file has the states of jobs and the transitions between them. Verbs are in job_verbs.lua and
-- job_lists.lua, ids in job_ids.lua, and unique jobs in job_index.lua.
--
-- An id is a number of 13 hexadecimal digits here, so that jobs with equal scores are in the order in which they
-- were put; and a decimal number for clients.
--
-- Touches  :ext:jobs      a hash: id -> 'made priority delay ttr flags expires message', as it was put;
--                         'id:' -> { priority, delay, reserves, timeouts, releases, buries, kicks, owner, ttr of
--                         the reservation }, packed, unless nothing has happened to the job since it was put;
--                         and 'id#' -> what makes it unique, if that is not its message
--          :ext:ready     for each state a sorted set of ids, with the score: the job's priority;
--          :ext:delayed   when it becomes ready;
--          :ext:reserved  when its reservation ends, inf for never;
--          :ext:buried    the number of jobs buried before
--          :ext:settings  'paused': until when no job is reserved; 'buried' and 'timeouts': how many jobs have
--                         been buried, and how many reservations have timed out; 'type': the type that the queue was created with; 'max_deliveries', 'dead_letter':
--                         after how many reservations a job goes to the queue with that base key
--          j<base key>    a field of the records of a server: its clients may have reserved jobs of that queue
--
-- Times are in milliseconds since 1970 by the backend's clock; delays and times to run in milliseconds.
--
-- The owner of a reserved job is 'server token': the end of a server's identity, and one of its clients. The
-- server is empty if the reservation outlives its connection.

-- Messages of the list that become jobs when a block begins.
local MAX_ADOPTED = 1000
local DEFAULT_PRIORITY, DEFAULT_TTR = 1024, 60000

-- Return the part of a server's identity that owners of reservations have.
local function server_of(its_identity)
  return string.match(its_identity, '[^:]*$')
end

-- One object does the queues of a call one after the other: to make it takes 20 microseconds.
local function make_jobs()
  local self = { ready = 0, settings = {} } -- ready: how many jobs are ready
  local jobs, settings, indexes -- of the present queue

  local STATES = { 'ready', 'delayed', 'reserved', 'buried' }
  -- What happens to a job: the state to which each event leads. Anything else is refused (beanstalkd,
  -- protocol.txt, Job Lifecycle). Only its owner ends or extends a reservation.
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
  }
  -- Positions in the packed state; OWN_TTR is the time to run of one reservation. These events are counted.
  local PRIORITY, DELAY, RESERVES, TIMEOUTS, RELEASES, BURIES, KICKS, OWNER, OWN_TTR = 1, 2, 3, 4, 5, 6, 7, 8, 9
  local COUNTED = {
    reserve = RESERVES, reserve_any = RESERVES, time_out = TIMEOUTS, release = RELEASES,
    release_later = RELEASES, bury = BURIES, kick = KICKS,
  }

  -- Turn to the present queue, which need not have any jobs.
  function self.enter()
    jobs, settings, indexes = base .. ':ext:jobs', base .. ':ext:settings', {}
    self.ready, self.settings, self.indexed = 0, {}, nil
    self.spent, self.has_unadopted, self.due_before = nil, nil, nil
  end

  local function set_of(state)
    return base .. ':ext:' .. state
  end

  function self.index(name)
    indexes[name] = indexes[name] or make_job_index(name)
    return indexes[name]
  end

  local function set_kind(kind)
    queue.kind = kind
    if queue.made or kind then
      call('SET', base .. ':ext:made', (queue.made or '-') .. (kind and ' ' .. kind or ''))
    else
      call('DEL', base .. ':ext:made')
    end
  end

  -- Return the jobs with these ids, at most JOBS_AT_ONCE; false in place of a job that does not exist. A job
  -- that occurs twice is the same table. Its `state` is nil if that takes another look (state_of).
  function self.read(ids)
    local fields, found, known = {}, {}, {}
    for i, id in ipairs(ids) do fields[2 * i - 1], fields[2 * i] = id, id .. ':' end
    local values = #ids > 0 and call('HMGET', jobs, unpack(fields)) or fields
    for i, id in ipairs(ids) do
      local job, value, packed = known[id], values[2 * i - 1], values[2 * i]
      if not job and value then
        -- All fields at once: a table that grows takes twice as long.
        job = {
          id = id, value = value, about = packed and cmsgpack.unpack(packed), state = nil,
          made = nil, ttr = nil, flags = nil, expires = nil, first = nil,
        }
        if packed and job.about[OWNER] ~= '' then job.state = 'reserved' end
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

  local function bytes_of(job)
    return #job.value - (job.first or string.match(job.value, '^%d+ %d+ %d+ %d+ %d+ %d+ ()')) + 1
  end

  function self.message_of(job)
    return string.sub(job.value, parse(job).first)
  end

  -- Return the state of a job that exists. A job without a place is ready: this mends an interrupted change.
  local function state_of(job)
    for i = 1, job.state and 0 or #STATES do
      if call('ZSCORE', set_of(STATES[i]), job.id) then
        job.state = STATES[i]
        break
      end
    end
    if not job.state then
      call('ZADD', set_of('ready'), parse(job).about[PRIORITY], job.id)
      job.state = 'ready'
    end
    return job.state
  end
  self.state_of = state_of

  function self.ttr_of(job)
    return job.about[OWN_TTR] or tonumber(parse(job).ttr)
  end

  local function score_in(state, job)
    if state == 'ready' then
      return job.about[PRIORITY]
    elseif state == 'delayed' then
      return clock() + job.about[DELAY]
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
    make_get().restore(messages, marks)
  end

  -- Note that a job goes from one state to another, in what is counted and indexed.
  local function count(job, from, to)
    if queue.kind ~= 'jobs' or from == to then
      return
    end
    local was_queued, is_queued = from == 'ready' or from == 'delayed', to == 'ready' or to == 'delayed'
    if from == 'ready' then self.ready = self.ready - 1 end
    if to == 'ready' then self.ready = self.ready + 1 end
    if was_queued then queue.length = queue.length - 1 end
    if is_queued then queue.length = queue.length + 1 end
    if self.indexed and was_queued ~= is_queued then
      self.index('same').note(self.message_of(job), job.id, is_queued)
    end
    if self.settings.unique then
      local all = self.settings.unique == 'unfinished'
      local was_in, is_in = was_queued or all and from ~= 'gone', is_queued or all and to ~= 'gone'
      if was_in ~= is_in then
        self.index('unique').note(call('HGET', jobs, job.id .. '#') or self.message_of(job), job.id, is_in)
      end
      if to == 'gone' then call('HDEL', jobs, job.id .. '#') end
    end
  end

  -- Return whether this owner has reserved the job.
  function self.is_owned(job, owner)
    return parse(job).about[OWNER] == owner
  end

  -- Return the state to which an event leads a job, or nil if the event is refused. A job that has been
  -- reserved often enough is buried instead of becoming ready, and goes to the dead letters.
  local function next_state(job, event, owner)
    local from = state_of(job)
    local to = TRANSITIONS[from .. ' ' .. event]
    if not to or (from == 'reserved' and event ~= 'time_out' and owner ~= parse(job).about[OWNER]) then
      return nil
    end
    local most = self.settings.max_deliveries
    if most and from == 'reserved' and (to == 'ready' or to == 'delayed') and job.about[RESERVES] >= most then
      if self.settings.dead_letter then
        self.spent = self.spent or {}
        table.insert(self.spent, job.id)
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
    local jobs_of_queue = queue.kind == 'jobs'
    for i, job in ipairs(some) do
      local owner = owners and owners[i]
      local to = job and next_state(job, event, owner)
      done[i] = to and 1 or 0
      if to then
        local from = job.state
        if from ~= to then
          local places = left[from] or {}
          left[from], places[#places + 1] = places, job.id
        end
        if to == 'gone' then
          local n = #gone
          gone[n + 1], gone[n + 2] = job.id, job.id .. ':'
          consumed, bytes = consumed + 1, bytes + bytes_of(job)
        elseif to == 'ready' and not jobs_of_queue then
          gone[#gone + 1], gone[#gone + 2] = job.id, job.id .. ':'
          returned[#returned + 1] = job
        else
          local about = parse(job).about
          if counter then about[counter] = about[counter] + 1 end
          about[OWNER] = to == 'reserved' and owner or ''
          if to ~= 'reserved' then about[OWN_TTR] = nil end
          local places, n = into[to] or {}, #written
          local at = #places
          into[to], places[at + 1], places[at + 2] = places, score_in(to, job), job.id
          written[n + 1], written[n + 2] = job.id .. ':', cmsgpack.pack(about)
        end
        count(job, from, to)
        job.state = to
      end
    end
    if #written > 0 then call('HSET', jobs, unpack(written)) end
    for state, places in pairs(into) do call('ZADD', set_of(state), unpack(places)) end
    if into.reserved and event ~= 'touch' then call('HSET', records, 'j' .. base, 1) end
    if #returned > 0 then return_to_list(returned) end
    for state, places in pairs(left) do call('ZREM', set_of(state), unpack(places)) end
    if #gone > 0 then call('HDEL', jobs, unpack(gone)) end
    if consumed > 0 and jobs_of_queue then count_as('consumed', consumed, bytes) end
    if event == 'time_out' and jobs_of_queue then call('HINCRBY', settings, 'timeouts', #some) end
    if left.reserved and has_records and call('EXISTS', set_of('reserved')) == 0 then
      call('HDEL', records, 'j' .. base)
    end
    if queue.kind == 'reserved' and call('EXISTS', jobs) == 0 then set_kind(nil) end
    changed = changed or next(left) ~= nil or next(into) ~= nil
    return done
  end

  -- Store jobs, each 'priority delay ttr flags expires message'. `names`, if given, are what makes each unique;
  -- else its message does.
  --
  -- Returns  their ids; and the bytes of their messages
  local function store(some, names)
    local ids, made, bytes = new_job_ids(#some), string.format('%.0f ', clock()), 0
    local fields, ready, delayed, at, queued = {}, {}, {}, 0, 0
    local has_index = names or self.settings.unique or self.indexed
    for i, one in ipairs(some) do
      local id = ids[i]
      local priority, delay, first = string.match(one, '^(%d+) (%d+) %d+ %d+ %d+ ()')
      bytes = bytes + #one - first + 1
      fields[at + 1], fields[at + 2] = id, made .. one
      at = at + 2
      if delay == '0' then
        ready[queued + 1], ready[queued + 2] = priority, id
        queued = queued + 2
      else
        delayed[#delayed + 1], delayed[#delayed + 2] = string.format('%.0f', clock() + delay), id
      end
      if has_index then
        if names then
          fields[at + 1], fields[at + 2] = id .. '#', names[i]
          at = at + 2
        end
        local message = string.sub(one, first)
        if self.settings.unique then self.index('unique').note(names and names[i] or message, id, true) end
        if self.indexed then self.index('same').note(message, id, true) end
      end
    end
    if #delayed > 0 then call_with_all('ZADD', set_of('delayed'), delayed) end
    if #ready > 0 then call_with_all('ZADD', set_of('ready'), ready) end
    if #fields > 0 then call_with_all('HSET', jobs, fields) end
    self.ready = self.ready + #ready / 2
    queue.length = queue.length + #some
    changed = true
    return ids, bytes
  end

  -- Leave out jobs that an index has already, by name or by message.
  --
  -- Returns  the others, and their names or nil; the id of each job that is there; and for each of the others
  --          that occurs several times, its place among them
  local function without_equals(some, names, index)
    local keys, fresh, fresh_names, ids, places, first_of = {}, {}, {}, {}, {}, {}
    for i, one in ipairs(some) do
      keys[i] = names and names[i] or string.sub(one, (string.match(one, '^%d+ %d+ %d+ %d+ %d+ ()')))
    end
    local known = self.index(index).ids_of(keys)
    for i, key in ipairs(keys) do
      ids[i] = known[i] and string.match(known[i], '%x+')
      if not ids[i] and not first_of[key] then
        fresh[#fresh + 1], fresh_names[#fresh_names + 1] = some[i], key
        first_of[key] = #fresh
      end
      places[i] = not ids[i] and first_of[key] or nil
    end
    return fresh, names and fresh_names, ids, places
  end

  -- Put jobs, each 'priority delay ttr flags expires message'. They must be unique if the queue says so, by
  -- `names` if given; or if `unique`, among the queued: then the index of messages must be complete.
  --
  -- Returns  their ids. A job that must be unique and is there already is not put: the id is that of the one
  --          that is there
  function self.put(some, names, unique)
    local index = self.settings.unique and 'unique' or unique and 'same'
    local fresh, fresh_names, ids, places = some, nil, {}, nil
    if index then fresh, fresh_names, ids, places = without_equals(some, names, index) end
    local new_ids, bytes = store(fresh, fresh_names)
    if #fresh > 0 then count_as('produced', #fresh, bytes) end
    for i = 1, index and #some or 0 do ids[i] = ids[i] or new_ids[places[i]] end
    return index and ids or new_ids
  end

  -- Return plain messages as jobs to put; marks[i], which may be nil, has the flags and the expiry of one.
  function self.as_jobs(messages, marks)
    local some = {}
    for i, message in ipairs(messages) do
      local mark = marks[i] or { '0', 0 }
      some[i] = string.format('%d 0 %d %s %.0f ', DEFAULT_PRIORITY, DEFAULT_TTR, mark[1], mark[2]) .. message
    end
    return some
  end

  -- Put back messages that `pop` took, as the jobs that they were.
  function self.push_back(messages, marks)
    for i, message in ipairs(messages) do
      local id, value, packed, name = unpack(marks[i], 3, 6)
      local about = packed ~= '' and cmsgpack.unpack(packed)
      call('ZADD', set_of('ready'), about and about[PRIORITY] or string.match(value, ' (%d+)'), id)
      call('HSET', jobs, id, value .. message)
      if about then call('HSET', jobs, id .. ':', packed) end
      if name then call('HSET', jobs, id .. '#', name) end
      local job = self.read({ id })[1]
      count(job, 'gone', 'ready')
    end
  end

  -- Return how many jobs may be taken now.
  function self.available()
    local paused = self.ready > 0 and self.settings.paused
    return paused and paused > clock() and 0 or self.ready
  end

  -- Return the ids in a set that are due.
  local function due_in(state)
    return call('ZRANGEBYSCORE', set_of(state), '-inf', string.format('%.0f', clock()), 'LIMIT', 0, JOBS_AT_ONCE)
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
      call('ZREM', set_of(state), unpack(stray))
      if state == 'ready' then self.ready, queue.length = self.ready - #stray, queue.length - #stray end
    end
    return found
  end
  self.jobs_in = jobs_in

  -- Make delayed jobs ready, and end reservations, whose time has come.
  local function promote(delayed)
    local ids = delayed > 0 and due_in('delayed') or {}
    if #ids > 0 then
      local ready = {}
      for _, job in ipairs(jobs_in('delayed', ids)) do
        ready[#ready + 1], ready[#ready + 2] = parse(job).about[PRIORITY], job.id
      end
      if #ready > 0 then
        call('ZADD', set_of('ready'), unpack(ready))
        call('ZREM', set_of('delayed'), unpack(ids))
      end
      self.ready = self.ready + #ready / 2
      changed = true
    end
    ids = due_in('reserved')
    if #ids > 0 then self.happen('time_out', jobs_in('reserved', ids)) end
  end

  -- Make jobs of messages in the list: those that were there when the queue became one of jobs, and those
  -- that native clients have put. Return whether any are left.
  local function adopt(length, most)
    if length == 0 or not has_records or in_use('consumer') then
      return false
    end
    local messages = call('RPOP', base, most)
    local marks = has_marks() and make_marks().take(messages, queue.consumed) or {}
    queue.length = queue.length - #messages
    store(self.as_jobs(messages, marks))
    act_as('consumer')
    work = work + 4 * MESSAGE * #messages
    return length > #messages
  end

  function self.adopt_rest()
    if self.has_unadopted then
      local length = call('LLEN', base)
      self.has_unadopted = adopt(length, length)
    end
  end

  -- Begin with the queue: read how many jobs it has, and do what is due.
  function self.begin()
    local noted = call('HMGET', settings, 'paused', 'indexed', 'unique', 'max_deliveries', 'dead_letter')
    self.indexed = noted[2]
    self.settings = {
      paused = tonumber(noted[1] or nil), unique = noted[3], max_deliveries = tonumber(noted[4] or nil),
      dead_letter = noted[5],
    }
    local delayed = call('ZCARD', set_of('delayed'))
    if queue.kind == 'jobs' then
      local in_list = queue.length
      self.ready = call('ZCARD', set_of('ready'))
      queue.length = in_list + self.ready + delayed
      self.has_unadopted = adopt(in_list, patient and MAX_ADOPTED or in_list)
    end
    promote(delayed)
    if block.how ~= '' then self.due_before = self.next_due() or math.huge end
  end

  -- Wake up operations that wait at other servers, if something is due earlier than they know: change a key
  -- that they watch.
  function self.tell_others()
    if self.due_before and (self.next_due() or math.huge) < self.due_before then
      call('ZADD', set_of('ready'), 0, '-')
      call('ZREM', set_of('ready'), '-')
    end
  end

  -- Return why this list cannot become a queue of jobs, or nil.
  function self.conversion_refusal()
    return call('HGET', settings, 'type')
      and { err = 'TYPE was created as a fifo: jobs need a queue of the type jobs' } or nil
  end

  -- Make this a queue of jobs. Its messages are adopted in the order of the list. Return an error, or nil.
  function self.convert()
    local refusal = self.conversion_refusal()
    if refusal then
      return refusal
    end
    -- Reserved messages of a list were counted as consumed.
    local outstanding, bytes = 0, 0
    for _, state in ipairs({ 'reserved', 'buried' }) do
      for _, id in ipairs(call('ZRANGE', set_of(state), 0, -1)) do
        local job = self.read({ id })[1]
        if job then outstanding, bytes = outstanding + 1, bytes + bytes_of(job) end
      end
    end
    if outstanding > 0 then count_as('consumed', -outstanding, -bytes) end
    set_kind('jobs')
    call('UNLINK', base .. ':ext:members', base .. ':ext:copies', base .. ':ext:index')
    queue.index, mirror = nil, nil
    self.begin()
  end

  -- Takes    '=token' for a client of this server, '@token' for a reservation that outlives its connection
  function self.owner_of(text)
    return (string.sub(text, 1, 1) == '=' and server_of(identity) or '') .. ' ' .. string.sub(text, 2)
  end

  -- Takes    claims of reservations, each 'owner' or 'owner ttr'; how many are used
  -- Returns  the owners; and the times to run, nil for a job's own
  local function owners_in(claims, count)
    local owners, ttrs = {}, {}
    for i = 1, count do
      if claims[i] == claims[i - 1] then
        owners[i], ttrs[i] = owners[i - 1], ttrs[i - 1]
      else
        local owner, ttr = string.match(claims[i], '^(%S+) ?(%d*)$')
        owners[i], ttrs[i] = self.owner_of(owner), tonumber(ttr)
      end
    end
    return owners, ttrs
  end

  -- Return a reserved job as the reply has it: 'id ttr flags reserves message'.
  local function given(job)
    return string.format('%s %.0f %s %d ', job.id, self.ttr_of(job), job.flags, job.about[RESERVES])
      .. self.message_of(job)
  end

  -- Give jobs to clients, one for each claim. Return each as `given`; those that cannot be reserved are left out.
  function self.give(event, some, claims)
    local owners, ttrs = owners_in(claims, #some)
    local ids, found = {}, {}
    for i, job in ipairs(some) do ids[i], parse(job).about[OWN_TTR] = job.id, ttrs[i] end
    note_reserved(ids, owners)
    for i, is_done in ipairs(self.happen(event, some, owners)) do
      if is_done == 1 then found[#found + 1] = given(some[i]) end
    end
    return found
  end

  -- Return the best jobs that are ready, at most `wanted`; and how many of these have expired, and are deleted.
  function self.best(wanted)
    local found, expired = {}, {}
    local ids = call('ZRANGE', set_of('ready'), 0, math.min(wanted, JOBS_AT_ONCE) - 1)
    for _, job in ipairs(jobs_in('ready', ids)) do
      local expires = parse(job).expires
      local some = expires ~= '0' and tonumber(expires) <= clock() and expired or found
      some[#some + 1] = job
    end
    if #expired > 0 then self.happen('delete', expired) end
    return found, #expired
  end

  -- Take up to `wanted` jobs for good, best first.
  --
  -- Returns  their messages; what is needed to put each back: { flags, expires, id, the job without its message,
  --          its state, and what makes it unique if that is not its message }; and how many others have expired
  function self.pop(wanted)
    local found, expired = self.best(wanted)
    local messages, marks = {}, {}
    for i, job in ipairs(found) do
      messages[i] = self.message_of(job)
      local is_touched = job.about[RESERVES] + job.about[KICKS] + job.about[BURIES] > 0 or job.about[DELAY] > 0
      marks[i] = {
        job.flags, tonumber(job.expires), job.id, string.sub(job.value, 1, job.first - 1),
        is_touched and cmsgpack.pack(job.about) or '', self.settings.unique and call('HGET', jobs, job.id .. '#') or false,
      }
    end
    note_popped(messages)
    self.happen('delete', found)
    return messages, marks, expired
  end

  -- Reserve up to `wanted` jobs, best first, one for each claim.
  --
  -- Returns  what `give` does; and how many others have expired
  function self.reserve(claims, wanted)
    local found, expired = self.best(wanted)
    return self.give('reserve', found, claims), expired
  end

  -- Keep messages that have just been taken from the list as reserved jobs, one for each claim. Return each as
  -- `given`.
  function self.hold(messages, marks, claims)
    local owners, ttrs = owners_in(claims, #messages)
    local ids, fields, places, found = new_job_ids(#messages), {}, {}, {}
    if queue.kind == nil then set_kind('reserved') end
    for i, message in ipairs(messages) do
      local mark, ttr = marks[i] or { '0', 0 }, ttrs[i] or 0
      local id, about = ids[i], { DEFAULT_PRIORITY, 0, 1, 0, 0, 0, 0, owners[i], ttr }
      fields[#fields + 1] = id
      fields[#fields + 1] = string.format('%.0f %d 0 0 %s %.0f ', clock(), DEFAULT_PRIORITY, mark[1], mark[2]) .. message
      fields[#fields + 1], fields[#fields + 2] = id .. ':', cmsgpack.pack(about)
      places[#places + 1], places[#places + 2] = ttr > 0 and clock() + ttr or 'inf', id
      found[i] = string.format('%s %.0f %s 1 ', id, ttr, mark[1]) .. message
    end
    call_with_all('HSET', jobs, fields)
    -- From here on, an error gives the jobs up, instead of putting the messages back.
    note_held()
    note_reserved(ids, owners)
    call_with_all('ZADD', set_of('reserved'), places)
    call('HSET', records, 'j' .. base, 1)
    return found
  end

  -- Return in how many milliseconds there may be another job to take: when the first delay, reservation or
  -- pause ends; or nil.
  function self.next_due()
    local due = self.settings.paused or 0
    due = due > clock() and due or math.huge
    for _, state in ipairs({ 'delayed', 'reserved' }) do
      local first = call('ZRANGE', set_of(state), 0, 0, 'WITHSCORES')[2]
      due = math.min(due, tonumber(first) or math.huge)
    end
    return due < math.huge and math.max(0, due - clock()) or nil
  end

  -- Return whether jobs that are not ready now may become ready by themselves.
  function self.may_come()
    return call('EXISTS', set_of('ready'), set_of('delayed'), set_of('reserved')) > 0
  end

  -- Return how many jobs are ready, delayed, reserved and buried; for how long the queue is paused yet; and how
  -- many of the ready jobs are urgent (beanstalkd: of a priority below 1024).
  function self.counts()
    local found = {}
    for i, state in ipairs(STATES) do found[i] = call('ZCARD', set_of(state)) end
    if queue.kind ~= 'jobs' then found[1] = queue.length end
    found[#found + 1] = math.max(0, (self.settings.paused or 0) - clock())
    found[#found + 1] = call('ZCOUNT', set_of('ready'), '-inf', '(' .. DEFAULT_PRIORITY)
    return found
  end

  -- Return how many jobs are reserved or buried: neither queued nor gone.
  function self.outstanding()
    return call('ZCARD', set_of('reserved')) + call('ZCARD', set_of('buried'))
  end

  -- Give up jobs that clients of a server have reserved. Called again and again until all have been looked at.
  --
  -- Takes    the end of the server's identity; '0', or the cursor that the last call returned
  -- Returns  how many have been given up; the next cursor, '0' at the end
  function self.recover(server, cursor)
    -- In a list, jobs go back to the head, so as many as possible are given up in order.
    local next_cursor, found = unpack(call('ZSCAN', set_of('reserved'), cursor, 'COUNT', queue.kind == 'jobs'
      and JOBS_AT_ONCE or 20 * JOBS_AT_ONCE))
    local ids, count = {}, 0
    for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
    table.sort(ids, function(one, other) return one > other end)
    for first = 1, #ids, JOBS_AT_ONCE do
      local its, owners = {}, {}
      local some = jobs_in('reserved', { unpack(ids, first, math.min(first + JOBS_AT_ONCE - 1, #ids)) })
      for i = #some, 1, -1 do
        local job = some[i]
        local owner = parse(job).about[OWNER]
        if string.match(owner, '^(%S+) ') == server then its[#its + 1], owners[#owners + 1] = job, owner end
      end
      for _, is_done in ipairs(self.happen('give_up', its, owners)) do count = count + is_done end
    end
    return count, next_cursor
  end

  -- Give up jobs that these owners have reserved, and still have. Return how many.
  function self.give_up(ids, owners)
    local count = 0
    for first = 1, #ids, JOBS_AT_ONCE do
      local last = math.min(first + JOBS_AT_ONCE - 1, #ids)
      for _, is_done in ipairs(self.happen('give_up', self.read({ unpack(ids, first, last) }),
        { unpack(owners, first, last) })) do
        count = count + is_done
      end
    end
    return count
  end

  return self
end

local jobs_of_call

-- Return the jobs of the queue, which need not have any.
function open_jobs()
  if not queue.jobs then
    jobs_of_call = jobs_of_call or make_jobs()
    jobs_of_call.enter()
    queue.jobs = jobs_of_call
  end
  return queue.jobs
end

-- Begin with a queue that has jobs: do what is due.
function begin_jobs()
  open_jobs().begin()
  move_dead_letters()
end
