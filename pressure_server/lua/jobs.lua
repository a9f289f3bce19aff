-- Jobs: messages that stay with their queue until a client deletes them. A job has an id, a priority, a delay
-- and a time to run. All messages of a queue of the kind `jobs` are jobs. In a queue of the kind `reserved` a
-- message becomes a job while a client has it reserved, and goes back to the head of the list if the client
-- gives it up.
--
-- Touches  :ext:jobs      a hash: id -> 'made priority delay ttr flags expires message', as it was put; and
--                         'id:' -> { priority, delay, reserves, timeouts, releases, buries, kicks, owner },
--                         packed, unless nothing has happened to the job since it was put
--          :ext:ready     for each state a sorted set of places, with the score: the job's priority;
--          :ext:delayed   when it becomes ready;
--          :ext:reserved  when its reservation ends, inf for never;
--          :ext:buried    when it was buried
--          :ext:blocks    a list: the blocks of ids that the queue has had (see `new_ids`)
--          :ext:settings  'id': the last id given; 'paused': until when no job is reserved
--          j<id>          a field of the records of the server whose client has reserved the job -> base key
--          ${PREFIX}!blocks, ${PREFIX}!last_block  a hash: block of ids -> base key; the last block given
--
-- Times are in milliseconds since 1970 by the backend's clock; delays and times to run in milliseconds.
--
-- A place is the id in 16 digits, so that jobs with equal scores are in the order in which they were put. The
-- owner of a reserved job is 'identity token': a server, and one of its clients. The identity is empty if the
-- reservation outlives its connection.


local function make_jobs()
  local self = { operations = {}, ready = 0 } -- ready: how many jobs are ready
  local operations = self.operations

  -- How many jobs change by themselves, and how many messages become jobs, when a block begins.
  local MAX_PROMOTED, MAX_ADOPTED = 500, 1000
  -- Ids of a block. A queue that gets a new block checks two of its old ones, and gives up those without jobs.
  local IDS_OF_BLOCK, CHECKED_BLOCKS = 64, 2
  local DEFAULT_PRIORITY, DEFAULT_TTR = 1024, 60000
  -- What happens to a job: the state to which each event leads, from each state. Anything else is refused
  -- (beanstalkd, protocol.txt, Job Lifecycle).
  local TRANSITIONS = {
    reserve = { ready = 'reserved' },
    reserve_any = { ready = 'reserved', delayed = 'reserved', buried = 'reserved' },
    touch = { reserved = 'reserved' },
    release = { reserved = 'ready' },
    release_later = { reserved = 'delayed' },
    give_up = { reserved = 'ready' },
    time_out = { reserved = 'ready' },
    bury = { reserved = 'buried' },
    kick = { buried = 'ready', delayed = 'ready' },
    delete = { ready = 'gone', delayed = 'gone', reserved = 'gone', buried = 'gone' },
  }
  local STATES = { 'ready', 'delayed', 'reserved', 'buried' }
  -- Positions in the packed state; OWN_TTR is the time to run of one reservation. These events are counted.
  local PRIORITY, DELAY, OWNER, OWN_TTR = 1, 2, 8, 9
  local COUNTED = { reserve = 3, reserve_any = 3, time_out = 4, release = 5, release_later = 5, bury = 6, kick = 7 }

  local jobs, settings = base .. ':ext:jobs', base .. ':ext:settings'

  local function set_of(state)
    return base .. ':ext:' .. state
  end

  local function place_of(id)
    return string.format('%016.0f', tonumber(id))
  end

  local function id_at(place)
    return string.match(place, '[1-9]%d*')
  end

  -- Return the beginning of the keys that belong to no queue.
  local function own_keys()
    return string.sub(records, 1, -1 - #'calls:' - #identity)
  end

  local function set_kind(kind)
    queue.kind = kind
    if queue.made or kind then
      call('SET', base .. ':ext:made', (queue.made or '-') .. (kind and ' ' .. kind or ''))
    else
      call('DEL', base .. ':ext:made')
    end
  end

  -- The index: finds the queued jobs with a given message. It is made when a message is first looked up.
  --
  -- Touches  :ext:same  a hash: message, or the hash of a long one -> ids of the queued jobs with that message;
  --                     '' -> the cursor up to which older jobs have been entered, or 'all'
  local same, entered = base .. ':ext:same', nil

  local function key_of(message)
    return #message <= 40 and 'm' .. message or 'h' .. redis.sha1hex(message)
  end

  local function enter_index(message, id)
    local key = key_of(message)
    local ids = call('HGET', same, key)
    if not ids or not string.find(' ' .. ids .. ' ', ' ' .. id .. ' ', 1, true) then
      call('HSET', same, key, ids and ids .. ' ' .. id or id)
    end
  end

  local function leave_index(message, id)
    local key = key_of(message)
    local ids = call('HGET', same, key)
    if ids == id then
      call('HDEL', same, key)
    elseif ids then
      local left = string.gsub(' ' .. ids .. ' ', ' ' .. id .. ' ', ' ', 1)
      call('HSET', same, key, string.match(left, '^ ?(.-) ?$'))
    end
  end

  -- Note that a job enters (1) or leaves (-1) a state. Jobs that are ready or delayed are queued.
  local function count(job, state, change)
    if queue.kind == 'jobs' and (state == 'ready' or state == 'delayed') then
      if state == 'ready' then self.ready = self.ready + change end
      queue.length = queue.length + change
      if entered then (change > 0 and enter_index or leave_index)(job.message, job.id) end
    end
  end

  -- Return a new block of ids. The index of blocks tells to which queue an id belongs.
  local function new_block()
    local index, blocks = own_keys() .. 'blocks', base .. ':ext:blocks'
    for _ = 1, math.min(CHECKED_BLOCKS, call('LLEN', blocks)) do
      local old, ids = call('RPOP', blocks), {}
      for i = 1, IDS_OF_BLOCK do ids[i] = string.format('%.0f', old * IDS_OF_BLOCK + i) end
      local is_used = false
      for _, job in ipairs(call('HMGET', jobs, unpack(ids))) do is_used = is_used or job end
      if is_used then
        call('LPUSH', blocks, old)
      else
        call('HDEL', index, old)
      end
    end
    local block = string.format('%.0f', call('INCR', own_keys() .. 'last_block') - 1)
    call('LPUSH', blocks, block)
    call('HSET', index, block, base)
    call('HSET', settings, 'index', index)
    return tonumber(block)
  end

  -- Return new ids, in ascending order. In a database with one queue of jobs they are 1, 2, 3, …
  local function new_ids(wanted)
    local last, ids = tonumber(call('HGET', settings, 'id') or 0), {}
    for i = 1, wanted do
      if last % IDS_OF_BLOCK == 0 then
        last = new_block() * IDS_OF_BLOCK
      end
      last = last + 1
      ids[i] = string.format('%.0f', last)
    end
    call('HSET', settings, 'id', string.format('%.0f', last))
    return ids
  end

  -- Return the job with that id, or nil. Its `state` is nil if that takes another look (state_of).
  local function read(id)
    local value, packed = unpack(call('HMGET', jobs, id, id .. ':'))
    if not value then
      return nil
    end
    local made, priority, delay, ttr, flags, expires, first = string.match(value,
      '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ()')
    local state = packed and cmsgpack.unpack(packed)
      or { tonumber(priority), tonumber(delay), 0, 0, 0, 0, 0, '' }
    return {
      id = id, place = place_of(id), made = tonumber(made), ttr = tonumber(ttr), flags = flags,
      expires = tonumber(expires), message = string.sub(value, first), value = value, packed = packed,
      about = state, state = state[OWNER] ~= '' and 'reserved' or nil,
    }
  end

  local function state_of(job)
    for i = 1, job.state and 0 or #STATES do
      if call('ZSCORE', set_of(STATES[i]), job.place) then
        job.state = STATES[i]
        break
      end
    end
    return job.state
  end

  local function ttr_of(job)
    return job.about[OWN_TTR] or job.ttr
  end

  local function score_in(state, job)
    if state == 'ready' then
      return job.about[PRIORITY]
    elseif state == 'delayed' then
      return clock() + job.about[DELAY]
    elseif state == 'reserved' then
      return ttr_of(job) > 0 and clock() + ttr_of(job) or 'inf'
    end
    return call('HINCRBY', settings, 'buried', 1)
  end

  -- Note with the server of its owner that a job is reserved, or no longer is. A server that finds this one
  -- dead gives up its reservations (recovery.lua).
  local function point(command, job, owner, ...)
    local server = string.match(owner, '^(.+) %S*$')
    if server then
      call(command, own_keys() .. 'calls:' .. server, 'j' .. job.id, ...)
    end
  end

  local function forget(job)
    call('HDEL', jobs, job.id, job.id .. ':')
    if queue.kind == 'reserved' and call('EXISTS', jobs) == 0 then set_kind(nil) end
  end

  -- Put the message of a job back at the head of the list: only queues of the kind `jobs` have ready jobs.
  local function return_to_list(job)
    local is_marked = job.flags ~= '0' or job.expires > 0
    make_get().restore({ job.message }, { is_marked and { job.flags, job.expires } or nil })
    forget(job)
  end

  -- Let an event happen to a job. Return its new state; nil if the event is refused. The job enters its new
  -- state before it leaves the old one, so that an error in between loses nothing.
  local function happen(event, job, owner)
    local from = state_of(job)
    local to = TRANSITIONS[event][from]
    local last_owner = job.about[OWNER]
    if not to or (from == 'reserved' and event ~= 'time_out' and owner ~= last_owner) then
      return nil
    end
    changed = true
    local to_list = to == 'ready' and queue.kind ~= 'jobs'
    if to_list then
      return_to_list(job)
    elseif to ~= 'gone' then
      local counter = COUNTED[event]
      if counter then job.about[counter] = job.about[counter] + 1 end
      job.about[OWNER] = to == 'reserved' and owner or ''
      call('ZADD', set_of(to), score_in(to, job), job.place)
      call('HSET', jobs, job.id .. ':', cmsgpack.pack(job.about))
    end
    if to == 'reserved' and from ~= to then point('HSET', job, owner, base) end
    if from == 'reserved' and from ~= to then point('HDEL', job, last_owner) end
    if from ~= to then call('ZREM', set_of(from), job.place) end
    if to == 'gone' then
      if queue.kind == 'jobs' then count_as('consumed', 1, #job.message) end
      forget(job)
    end
    job.state = to
    count(job, from, -1)
    count(job, to, 1)
    return to
  end


  -- Put jobs. Without `marks`, each begins with 'priority delay ttr flags expires '; else they are plain messages,
  -- and marks[i], which may be nil, has the flags and the expiry of one (marks.lua).
  --
  -- Returns  their ids; and the number of bytes of their messages
  function self.push(some, marks)
    local ids, made, bytes = new_ids(#some), string.format('%.0f ', clock()), 0
    local fields, ready, delayed = {}, {}, {}
    for i, one in ipairs(some) do
      if marks then
        local mark = marks[i] or { '0', 0 }
        one = string.format('%d 0 %d %s %.0f ', DEFAULT_PRIORITY, DEFAULT_TTR, mark[1], mark[2]) .. one
      end
      local id = ids[i]
      local priority, delay, first = string.match(one, '^(%d+) (%d+) %d+ %d+ %d+ ()')
      bytes = bytes + #one - first + 1
      fields[#fields + 1], fields[#fields + 2] = id, made .. one
      if delay == '0' then
        ready[#ready + 1], ready[#ready + 2] = priority, place_of(id)
      else
        delayed[#delayed + 1], delayed[#delayed + 2] = string.format('%.0f', clock() + delay), place_of(id)
        fields[#fields + 1] = id .. ':'
        fields[#fields + 1] = cmsgpack.pack({ tonumber(priority), tonumber(delay), 0, 0, 0, 0, 0, '' })
      end
      if entered then enter_index(string.sub(one, first), id) end
    end
    if #delayed > 0 then call_with_all('ZADD', set_of('delayed'), delayed) end
    if #ready > 0 then call_with_all('ZADD', set_of('ready'), ready) end
    call_with_all('HSET', jobs, fields)
    self.ready = self.ready + #ready / 2
    queue.length = queue.length + #some
    changed = true
    return ids, bytes
  end

  -- Put back a message that was taken for good, as the job that it was.
  local function push_back(message, mark)
    local id, value, packed = mark[3], mark[4], mark[5]
    call('ZADD', set_of('ready'), cmsgpack.unpack(packed)[PRIORITY], place_of(id))
    call('HSET', jobs, id, value .. message, id .. ':', packed)
    if entered then enter_index(message, id) end
    self.ready, queue.length = self.ready + 1, queue.length + 1
  end

  -- Return how many jobs may be taken now.
  function self.available()
    local paused = self.ready > 0 and call('HGET', settings, 'paused')
    return paused and tonumber(paused) > clock() and 0 or self.ready
  end

  -- Return places in a set that are due, at most MAX_PROMOTED.
  local function due_in(state)
    local places = call('ZRANGEBYSCORE', set_of(state), '-inf', string.format('%.0f', clock()), 'LIMIT', 0, MAX_PROMOTED)
    work = work + 4 * MESSAGE * #places
    return places
  end

  -- Make delayed jobs ready, and end reservations, whose time has come.
  local function promote()
    local places = due_in('delayed')
    if #places > 0 then
      local states, ready = {}, {}
      for i, place in ipairs(places) do states[i] = id_at(place) .. ':' end
      for i, packed in ipairs(call('HMGET', jobs, unpack(states))) do
        if packed then
          ready[#ready + 1], ready[#ready + 2] = cmsgpack.unpack(packed)[PRIORITY], places[i]
        end
      end
      if #ready > 0 then call('ZADD', set_of('ready'), unpack(ready)) end
      call('ZREM', set_of('delayed'), unpack(places))
      self.ready = self.ready + #ready / 2
      changed = true
    end
    for _, place in ipairs(due_in('reserved')) do
      local job = read(id_at(place))
      if job then happen('time_out', job) else call('ZREM', set_of('reserved'), place) end
    end
  end

  -- Make jobs of messages in the list: those that were there when the queue became one of jobs, and those
  -- that native clients have put. Returns whether any are left.
  local function adopt()
    local length = call('LLEN', base)
    if length == 0 or in_use('consumer') then
      return false
    end
    local messages = call('RPOP', base, MAX_ADOPTED)
    queue.length = queue.length - #messages
    self.push(messages, has_marks() and make_marks().take(messages, queue.consumed) or {})
    act_as('consumer')
    work = work + 4 * MESSAGE * #messages
    return length > #messages
  end

  -- Begin with the queue: read how many jobs it has, and do what is due.
  function self.begin()
    if queue.kind == 'jobs' then
      self.ready = call('ZCARD', set_of('ready'))
      queue.length = queue.length + self.ready + call('ZCARD', set_of('delayed'))
      entered = call('HGET', same, '')
      self.has_unadopted = adopt()
    end
    promote()
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

  -- Make this a queue of jobs. Its messages are adopted in the order of the list.
  function self.convert()
    if call('HGET', settings, 'type') then
      return { err = 'TYPE the queue was created as a queue of another type' }
    end
    -- Reserved messages of a list were counted as consumed.
    local outstanding, bytes = 0, 0
    for _, state in ipairs({ 'reserved', 'buried' }) do
      for _, place in ipairs(call('ZRANGE', set_of(state), 0, -1)) do
        local job = read(id_at(place))
        outstanding, bytes = outstanding + 1, bytes + #job.message
      end
    end
    if outstanding > 0 then count_as('consumed', -outstanding, -bytes) end
    set_kind('jobs')
    call('UNLINK', base .. ':ext:members', base .. ':ext:copies', base .. ':ext:index')
    queue.index, mirror = nil, nil
    self.begin()
  end

  -- Takes    '=token' for a client of this server, '@token' for a reservation that outlives its connection
  local function owner_of(text)
    return (string.sub(text, 1, 1) == '=' and identity or '') .. ' ' .. string.sub(text, 2)
  end

  -- Give a job to a client. Returns it as 'id ttr flags reserves message'.
  local function give(job, event, claim)
    local owner, ttr = string.match(claim, '^(%S+) ?(%d*)$')
    job.about[OWN_TTR] = tonumber(ttr)
    if not happen(event, job, owner_of(owner)) then
      return nil
    end
    reserved[#reserved + 1] = job.id
    return string.format('%s %.0f %s %d ', job.id, ttr_of(job), job.flags, job.about[COUNTED.reserve]) .. job.message
  end

  -- Return the best jobs that are ready, at most `wanted`; and how many of these have expired, and are deleted.
  local function best(wanted)
    local found, expired = {}, 0
    for _, place in ipairs(call('ZRANGE', set_of('ready'), 0, wanted - 1)) do
      local job = read(id_at(place))
      if not job then
        call('ZREM', set_of('ready'), place)
        self.ready = self.ready - 1
      else
        job.state = 'ready'
        if is_expired({ job.flags, job.expires }) then
          happen('delete', job)
          expired = expired + 1
        else
          found[#found + 1] = job
        end
      end
    end
    return found, expired
  end

  -- Take up to `wanted` jobs for good, best first.
  --
  -- Returns  their messages; what is needed to put each back: { flags, expires, id, the job without its message,
  --          its state }; and how many others have expired
  function self.pop(wanted)
    local found, expired = best(wanted)
    local messages, marks = {}, {}
    for i, job in ipairs(found) do
      messages[i] = job.message
      marks[i] = { job.flags, job.expires, job.id, string.sub(job.value, 1, -1 - #job.message), cmsgpack.pack(job.about) }
    end
    note_popped(messages)
    for _, job in ipairs(found) do happen('delete', job) end
    return messages, marks, expired
  end

  -- Reserve up to `wanted` jobs, best first, one for each claim: 'owner', or 'owner ttr'.
  --
  -- Returns  for each 'id ttr flags reserves message'; and how many others have expired
  function self.reserve(claims, wanted)
    local found, expired = best(wanted)
    local given = {}
    for i, job in ipairs(found) do given[i] = give(job, 'reserve', claims[i]) end
    return given, expired
  end

  -- Keep messages that have just been taken from the list as reserved jobs, one for each claim.
  function self.hold(messages, marks, claims)
    local ids, given = new_ids(#messages), {}
    if queue.kind == nil then set_kind('reserved') end
    for i, message in ipairs(messages) do
      local mark = marks[i] or { '0', 0 }
      local value = string.format('%.0f %d 0 0 %s %.0f ', clock(), DEFAULT_PRIORITY, mark[1], mark[2])
      call('HSET', jobs, ids[i], value .. message)
      local job = read(ids[i])
      job.state = 'ready' -- no set has it
      given[i] = give(job, 'reserve', claims[i])
    end
    return given
  end

  -- Let an event happen to the jobs that the words name, 'id', 'id owner' or 'id owner …'. `prepare` is called
  -- with each job and the rest of its word; it may return another event, or an error for all.
  local function for_each(words, event, prepare)
    local done = {}
    for i, word in ipairs(words) do
      local id, owner, rest = string.match(word, '^(%d+) ?(%S*) ?(.*)$')
      local job, its_event = read(id), event
      done[i] = 0
      if not job and owner ~= '' then point('HDEL', { id = id }, owner_of(owner)) end -- its queue was deleted
      if job then
        local other = prepare and prepare(job, rest)
        if type(other) == 'table' then
          return other
        end
        done[i] = happen(other or its_event, job, owner ~= '' and owner_of(owner) or nil) and 1 or 0
      end
    end
    return done
  end

  local function set_priority(job, text)
    job.about[PRIORITY] = tonumber(text) or job.about[PRIORITY]
  end

  function operations.delete_job(words)
    return for_each(words, 'delete')
  end

  function operations.give_up(words)
    return for_each(words, 'give_up')
  end

  -- Give up the job for a server that has died, or for a call without a reply. Return how many there were.
  function self.recover(id, owner_server)
    local job = read(id)
    local owner = job and job.about[OWNER]
    local is_its = owner and string.match(owner, '^(.+) %S*$') == owner_server
    return is_its and happen('give_up', job, owner) and 1 or 0
  end

  function operations.touch(words)
    return for_each(words, 'touch')
  end

  function operations.bury(words)
    return for_each(words, 'bury', set_priority)
  end

  function operations.kick_job(words)
    return for_each(words, 'kick')
  end

  -- Takes    'id owner priority delay' for each; an empty priority leaves it as it is
  function operations.release(words)
    return for_each(words, 'release', function(job, rest)
      local priority, delay = string.match(rest, '^(%d*) (%d+)$')
      if queue.kind ~= 'jobs' and (delay ~= '0' or priority ~= '') then
        local refusal = self.convert()
        if refusal then
          return refusal
        end
      end
      set_priority(job, priority)
      job.about[DELAY] = tonumber(delay)
      return delay ~= '0' and 'release_later' or nil
    end)
  end

  -- Takes    how many jobs to kick: buried ones, or if there are none, delayed ones
  -- Returns  how many have been kicked
  function operations.kick(most)
    local state = call('EXISTS', set_of('buried')) == 1 and 'buried' or 'delayed'
    local places = call('ZRANGE', set_of(state), 0, most - 1)
    for _, place in ipairs(places) do
      local job = read(id_at(place))
      job.state = state
      happen('kick', job)
    end
    return #places
  end

  -- Return the ids of the queued jobs in the order in which they will be taken, from `first` to `last`; those
  -- that are delayed come after those that are ready.
  local function queued_ids(first, last)
    local places = call('ZRANGE', set_of('ready'), first, last)
    if last >= self.ready or last < 0 then
      local delayed = call('ZRANGE', set_of('delayed'), math.max(0, first - self.ready), last < 0 and last or last - self.ready)
      for _, place in ipairs(delayed) do places[#places + 1] = place end
    end
    for i, place in ipairs(places) do places[i] = id_at(place) end
    return places
  end

  -- Return in how many milliseconds there may be another job to take: when the first delay, reservation or
  -- pause ends; or nil.
  function self.next_due()
    local due = tonumber(call('HGET', settings, 'paused') or 0)
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

  function self.best_message()
    local found = self.available() > 0 and best(1) or {}
    return found[1] and found[1].message
  end

  -- Return how many jobs are ready, delayed, reserved and buried; for how long the queue is paused yet; and how
  -- many of the ready jobs are urgent (beanstalkd: of a priority below 1024).
  function self.counts()
    local found = {}
    for i, state in ipairs(STATES) do found[i] = call('ZCARD', set_of(state)) end
    found[#found + 1] = math.max(0, tonumber(call('HGET', settings, 'paused') or 0) - clock())
    found[#found + 1] = call('ZCOUNT', set_of('ready'), '-inf', '(' .. DEFAULT_PRIORITY)
    return found
  end

  -- The same questions and removals that lists have (read.lua, get.lua). Delayed jobs are queued, behind those
  -- that are ready.

  function operations.range(first, last)
    first = math.max(0, first < 0 and first + queue.length or first)
    last = last < 0 and last + queue.length or last
    local found = {}
    for i, id in ipairs(last < first and {} or queued_ids(first, last)) do
      local job = read(id)
      found[i] = job and job.message or ''
    end
    return found
  end

  -- Takes    the number of messages seen; and a count. Jobs that are taken meanwhile may hide others
  function operations.scan(position, wanted)
    local messages = operations.range(position, position + wanted - 1)
    local following = position + #messages
    return { following < queue.length and string.format('%d', following) or '0', messages }
  end

  function operations.sample(seed, wanted)
    local picked, bytes = {}, 0
    for i, position in ipairs(make_read().positions(seed, wanted)) do
      picked[i] = operations.range(position, position)[1]
      bytes = bytes + #picked[i]
      if wanted < 0 and bytes > SAMPLE_BYTES then
        return { err = 'TOOLARGE' }
      end
    end
    return picked
  end

  function operations.peek()
    local found = best(1)
    return found[1] and { found[1].message, found[1].flags ~= '0' and found[1].flags or '' } or {}
  end

  function operations.remove(messages)
    local removed = {}
    local is_queued, decided = need_mirror().queued(messages)
    for i = 1, decided do
      removed[i] = 0
      for id in string.gmatch(is_queued[i] == 1 and call('HGET', same, key_of(messages[i])) or '', '%d+') do
        local job = read(id)
        if job and happen('delete', job) then removed[i] = 1 end
      end
    end
    settle_not_full()
    return removed, #messages - decided
  end

  function operations.flush()
    local gone = queue.length
    for _, id in ipairs(queued_ids(0, gone - 1)) do
      local job = read(id)
      if job then happen('delete', job) end
    end
    settle_not_full()
    return gone
  end

  -- Takes    messages that have not been delivered, and what `pop` returned with each, if it was a job then
  function operations.restore(messages, marks)
    for i, message in ipairs(messages) do
      if marks and marks[i] and marks[i][3] then
        push_back(message, marks[i])
      else
        self.push({ message }, marks and { marks[i] } or {})
      end
    end
    count_as('consumed', -#messages, -sum_of_bytes(messages))
    settle_not_full()
    return 1, 0
  end

  function operations.version()
    return make_read().version() .. ' ' .. table.concat(self.counts(), ' ')
  end

  -- Questions about jobs.

  -- Takes    an id; or ready, delayed or buried, for the next job in that state
  -- Returns  { id, message }, or {}
  function operations.peek_job(words)
    local id = words[1]
    if not string.match(id, '^%d+$') then
      local place = call('ZRANGE', set_of(id), 0, 0)[1]
      id = place and id_at(place)
    end
    local job = id and read(id)
    return job and { job.id, job.message } or {}
  end

  -- Returns  priority, when it was put, and id of the job that would be reserved next; a message of a list has
  --          no id, and counts as put at the beginning; {} if there is none
  function operations.best_job()
    if queue.kind ~= 'jobs' then
      return queue.length > 0 and { DEFAULT_PRIORITY, 0, '' } or {}
    end
    local job = self.available() > 0 and best(1)[1]
    return job and { job.about[PRIORITY], job.made, job.id } or {}
  end

  -- Takes    an id
  -- Returns  {}, or state, priority, age, delay, time to run, time left, reserves, timeouts, releases, buries
  --          and kicks; times in milliseconds
  function operations.job_info(words)
    local job = read(words[1])
    if not job then
      return {}
    end
    local state, about = state_of(job), job.about
    local due = (state == 'delayed' or state == 'reserved') and tonumber(call('ZSCORE', set_of(state), job.place)) or 0
    return {
      state or 'ready', about[PRIORITY], clock() - job.made, about[DELAY], ttr_of(job),
      due < math.huge and math.max(0, due - clock()) or 0, unpack(about, 3, 7),
    }
  end

  -- Takes    the id of a job, a claim, and 'ready' if the job must be ready
  -- Returns  { the job as `reserve` returns it }, or {} if it cannot be reserved
  function operations.reserve_job(words)
    local job = read(words[1])
    return { job and give(job, words[3] and 'reserve' or 'reserve_any', words[2]) or nil }
  end

  -- Takes    for how long no job is reserved, in milliseconds
  function operations.pause(words)
    local refusal = queue.kind ~= 'jobs' and self.convert()
    if refusal then
      return refusal
    end
    call('HSET', settings, 'paused', string.format('%.0f', clock() + tonumber(words[1])))
    changed = true
    return 1
  end

  -- Make this a queue of jobs, unless it is one. Returns 1, or an error.
  function operations.convert()
    return queue.kind == 'jobs' and 1 or self.convert() or 1
  end

  -- The index as the mirror of a list is used (mirror.lua).
  function self.index()
    local function nothing() end
    local index = setmetatable({ unmirrored = 0 }, { __index = function() return nothing end })

    -- Enter more of the jobs that were there before the index. Return whether all have been entered.
    local function enter_more()
      while entered ~= 'all' do
        local cursor, found = unpack(call('HSCAN', jobs, entered or '0', 'COUNT', SLICE))
        for i = 1, #found, 2 do
          local job = string.sub(found[i], -1) ~= ':' and read(found[i])
          local state = job and state_of(job)
          if state == 'ready' or state == 'delayed' then enter_index(job.message, job.id) end
        end
        entered = cursor == '0' and 'all' or cursor
        call('HSET', same, '', entered)
        if patient then break end
      end
      return entered == 'all'
    end

    function index.queued(messages)
      local found = {}
      if #messages == 0 or not enter_more() then
        return found, 0
      end
      local keys = {}
      for i, message in ipairs(messages) do keys[i] = key_of(message) end
      for first = 1, #keys, CHUNK do
        for _, ids in ipairs(call('HMGET', same, unpack(keys, first, math.min(first + CHUNK - 1, #keys)))) do
          found[#found + 1] = ids and 1 or 0
        end
      end
      return found, #messages
    end

    return index
  end

  return self
end

-- Return the jobs of the queue, which need not have any.
function open_jobs()
  queue.jobs = queue.jobs or make_jobs()
  return queue.jobs
end

-- Begin with a queue that has jobs: do what is due.
function begin_jobs()
  open_jobs().begin()
end
