-- Lists of jobs: what the verbs of lists (read.lua, get.lua) do in a queue of jobs. The queued jobs are in the
-- order in which they will be taken; delayed ones come after those that are ready.

local function make_job_list()
  local operations, jobs = {}, queue.jobs

  -- Return the number of queued jobs. Messages that are not adopted yet are not among them, except for those of the
  -- log that a group reads.
  local function length()
    return queue.length - call('LLEN', base)
  end

  -- Return the ids of the queued jobs from `first` to `last`; -1 is the last one.
  local function queued_ids(first, last)
    local ids = jobs.settings.type == 'lifo' and call('ZRANGE', key_of('ready'), first, last, 'REV')
      or call('ZRANGE', key_of('ready'), first, last)
    if last >= jobs.ready or last < 0 then
      local delayed = call('ZRANGE', key_of('delayed'), math.max(0, first - jobs.ready),
        last < 0 and last or last - jobs.ready)
      for _, id in ipairs(delayed) do ids[#ids + 1] = id end
    end
    return ids
  end

  operations.ids = queued_ids

  -- Call a function with all jobs of these ids, some at a time.
  local function with_jobs(ids, what)
    for first = 1, #ids, JOBS_AT_ONCE do
      what(jobs.read({ unpack(ids, first, math.min(first + JOBS_AT_ONCE - 1, #ids)) }))
    end
  end

  function operations.range(first, last)
    local count = (first < 0 or last < 0) and length() or 0
    first = math.max(0, first < 0 and first + count or first)
    last = last < 0 and last + count or last
    local found = {}
    with_jobs(last < first and {} or queued_ids(first, last), function(some)
      for _, job in ipairs(some) do found[#found + 1] = job and jobs.message_of(job) or '' end
    end)
    if jobs.lag > 0 and last >= first then
      local own = length() - jobs.lag
      local skipped = math.max(0, first - own)
      for _, message in ipairs(messages_ahead(skipped, math.min(last + 1 - own, jobs.lag) - skipped)) do
        found[#found + 1] = message
      end
    end
    return found
  end

  -- Takes    the number of messages seen; and a count. Jobs that are taken meanwhile may hide others
  function operations.scan(position, wanted)
    local messages = operations.range(position, position + wanted - 1)
    local following = position + #messages
    return { (following < length() or jobs.has_unadopted) and string.format('%d', following) or '0', messages }
  end

  function operations.sample(seed, wanted)
    local picked, bytes = {}, 0
    for i, position in ipairs(make_read().positions(seed, wanted, length())) do
      picked[i] = operations.range(position, position)[1]
      bytes = bytes + #picked[i]
      if wanted < 0 and bytes > SAMPLE_BYTES then
        return { err = 'TOOLARGE' }
      end
    end
    return picked
  end

  function operations.peek()
    local job = job_gets().best(1)[1]
    return job and { jobs.message_of(job), job.flags ~= '0' and job.flags or '' } or {}
  end

  function operations.remove(messages)
    if jobs.source then
      return { err = 'TYPE is that of a group: nothing leaves it from the middle' }, 0
    end
    local removed = {}
    local is_queued, decided = need_mirror().queued(messages)
    for i = 1, decided do
      removed[i] = 0
      local ids = {}
      for id in string.gmatch(is_queued[i] == 1 and jobs.index('same').ids_of({ messages[i] })[1] or '', '%x+') do
        ids[#ids + 1] = id
      end
      with_jobs(ids, function(some)
        for _, is_done in ipairs(jobs.happen('delete', some)) do removed[i] = math.max(removed[i], is_done) end
      end)
    end
    settle_not_full()
    return removed, #messages - decided
  end

  -- Takes    messages that have not been delivered, and what `pop` returned with each, if it was a job then
  function operations.restore(messages, marks)
    for i, message in ipairs(messages) do
      local mark = marks and marks[i]
      if mark and mark[3] then
        job_puts().push_back({ message }, { mark })
      else
        job_puts().put(job_puts().as_jobs({ message }, { mark }))
        count_as('produced', -1, -#message)
      end
    end
    count_as('consumed', -#messages, -sum_of_bytes(messages))
    settle_not_full()
    return 1, 0
  end

  function operations.version()
    return make_read().version() .. ' ' .. table.concat(jobs.counts(), ' ')
  end

  return operations
end
