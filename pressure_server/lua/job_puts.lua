-- Puts of jobs: how messages become jobs of a queue, those of its list included.

local DEFAULT_TTR = 60000

local puts_of_jobs = {}
do
  local jobs, self = the_jobs, puts_of_jobs

  -- Store jobs, each 'priority delay ttr flags expires message'. `names`, if given, are what makes each unique;
  -- else its message does.
  --
  -- Returns  their ids; and the bytes of their messages
  local function store(some, names)
    local ids, bytes = new_job_ids(#some), 0
    local fields, ready, delayed, at, queued = {}, {}, {}, 0, 0
    local has_index = names or jobs.settings.unique or jobs.indexed.equal
    for i, one in ipairs(some) do
      local id = ids[i]
      local priority, delay, first = string.match(one, '^(%d+) (%d+) %d+ %d+ %d+ ()')
      bytes = bytes + #one - first + 1
      fields[at + 1], fields[at + 2] = id, new_stamp() .. one
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
        if jobs.indexed.single then jobs.index('single').note(names and names[i] or message, id, true) end
        if jobs.indexed.equal then jobs.index('equal').note(message, id, true) end
      end
    end
    if #delayed > 0 then
      call_with_all('ZADD', key_of('delayed'), delayed)
      jobs.note_come('delayed', delayed)
    end
    if #ready > 0 then call_with_all('ZADD', key_of('ready'), ready) end
    if #fields > 0 then call_with_all('HSET', key_of('jobs'), fields) end
    jobs.ready = jobs.ready + #ready / 2
    queue.length = queue.length + #some
    changed = true
    return ids, bytes
  end

  self.store = store

  -- Leave out jobs that an index has already, by name or by message.
  --
  -- Returns  the others, and their names or nil; the id of each job that is there; and for each of the others
  --          that occurs several times, its place among them
  local function without_equals(some, names, index)
    local keys, fresh, fresh_names, ids, places, first_of = {}, {}, {}, {}, {}, {}
    for i, one in ipairs(some) do
      keys[i] = names and names[i] or string.sub(one, (string.match(one, '^%d+ %d+ %d+ %d+ %d+ ()')))
    end
    for i, key in ipairs(keys) do
      ids[i] = jobs.index(index).ids_of(key, 1)[1]
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
    local index = jobs.settings.unique and 'single' or unique and 'equal'
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

  -- Delete ready jobs to make room: the least urgent, and among these the oldest.
  function self.drop(count)
    while count > 0 and jobs.ready > 0 do
      local priority = call('ZRANGE', key_of('ready'), -1, -1, 'WITHSCORES')[2]
      local ids = call('ZRANGE', key_of('ready'), priority, priority, 'BYSCORE', 'LIMIT', 0, math.min(count, JOBS_AT_ONCE))
      jobs.happen('delete', jobs.jobs_in('ready', ids))
      count = count - #ids
    end
    settle_not_full()
  end

  -- Delete expired jobs to make room, by priority and age, up to the first one that has not expired.
  function self.drop_expired()
    local expired, looked_at, dropped = {}, 1, 0
    repeat
      expired = {}
      for _, job in ipairs(jobs.jobs_in('ready', call('ZRANGE', key_of('ready'), 0, looked_at - 1))) do
        local expires = jobs.parse(job).expires
        if expires == '0' or tonumber(expires) > clock() then break end
        expired[#expired + 1] = job
      end
      dropped = dropped + #expired
      if #expired > 0 then jobs.happen('delete', expired) end
      local found_all = #expired == looked_at
      looked_at = JOBS_AT_ONCE
    until not found_all or patient and dropped >= DROPPED_AT_ONCE
    if dropped > 0 then settle_not_full() end
  end

  -- Put back messages that `pop` took, as the jobs that they were.
  function self.push_back(messages, marks)
    for i, message in ipairs(messages) do
      local id, value, packed, name, offset = unpack(marks[i], 3, 7)
      local about = packed ~= '' and cmsgpack.unpack(packed)
      call('ZADD', key_of('ready'), about and about[JOB_PRIORITY] or string.match(value, ' (%d+)'), id)
      call('HSET', key_of('jobs'), id, value .. message)
      if about then call('HSET', key_of('jobs'), id .. ':', packed) end
      if name then call('HSET', key_of('jobs'), id .. '#', name) end
      if offset and jobs.source then
        call('ZADD', key_of('offsets'), offset, id)
        note_passed()
      end
      local job = jobs.read({ id })[1]
      jobs.count(job, 'gone', 'ready')
    end
  end

  -- Make jobs of messages in the list: those that were there when the queue became one of jobs, and those
  -- that native clients have put; unless `all`, only the first ones. Return whether any are left.
  function self.adopt(length, all)
    if not has_records or in_use('consumer') then
      return false
    end
    local most = patient and not all and 1000 or length
    local messages = call('RPOP', base, most)
    local marks = has_marks() and make_marks().take(messages, queue.consumed) or {}
    queue.length = queue.length - #messages
    store(self.as_jobs(messages, marks))
    act_as('consumer')
    work = work + 4 * MESSAGE * #messages
    return length > #messages
  end

  function self.adopt_rest()
    if jobs.has_unadopted then jobs.has_unadopted = self.adopt(call('LLEN', base), true) end
  end

  -- Return why this list cannot become a queue of jobs, or nil.
  function self.conversion_refusal()
    local of = call('HGET', key_of('settings'), 'type')
    return of and { err = 'TYPE was created as a ' .. of .. ': jobs need a queue of the type jobs' } or nil
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
      for _, id in ipairs(call('ZRANGE', key_of(state), 0, -1)) do
        local job = jobs.read({ id })[1]
        if job then outstanding, bytes = outstanding + 1, bytes + jobs.bytes_of(job) end
      end
    end
    if outstanding > 0 then count_as('consumed', -outstanding, -bytes) end
    set_kind('jobs')
    call('UNLINK', base .. ':ext:members', base .. ':ext:copies', base .. ':ext:index')
    queue.index, mirror = nil, nil
    jobs.begin()
    if max_bytes() then jobs.count_held() end
  end
end

function job_puts()
  open_jobs()
  return puts_of_jobs
end
