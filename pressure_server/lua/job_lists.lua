-- Lists of jobs: what the verbs of lists (read.lua, get.lua) do in a queue of jobs. The queued jobs are in the
-- order in which they will be taken; delayed ones come after those that are ready.

-- Jobs that one call deletes at most, unless it must not leave anything.
local DELETED_AT_ONCE = 1000

local job_lists = {}
do
  local operations, jobs = job_lists, the_jobs

  -- Return the number of queued jobs. Messages that are not adopted yet are not among them, except for those of the
  -- log that a group reads.
  local function length()
    return queue.length - call('LLEN', base)
  end

  -- Return the ids of the queued jobs from `first` to `last`, which are not negative.
  local function queued_ids(first, last)
    local ids = jobs.ready_ids(first, last)
    if last >= jobs.ready then
      local delayed = call('ZRANGE', key_of('delayed'), math.max(0, first - jobs.ready), last - jobs.ready)
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
    for i, position in ipairs(reads.positions(seed, wanted, length())) do
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

  -- Takes    messages
  -- Returns  for each 1 if it was queued, else 0; and how many are left for another call. If only some jobs of a message
  --          have been deleted, :ext:settings has its hash as 'removing'
  function operations.remove(messages)
    if jobs.source then
      return { err = 'TYPE is that of a group: nothing leaves it from the middle' }, 0
    end
    local removed, settings = {}, key_of('settings')
    local index, _, decided = need_mirror(), need_mirror().queued(messages)
    local begun = decided > 0 and call('HGET', settings, 'removing')
    local deleted = 0
    for i = 1, decided do
      local is_begun, count, is_more = begun == redis.sha1hex(messages[i]), 0, true
      while is_more and not (patient and deleted >= DELETED_AT_ONCE) do
        local ids = index.ids_of(messages[i], JOBS_AT_ONCE)
        for at, is_done in ipairs(jobs.happen('delete', jobs.read(ids))) do
          if is_done == 0 then index.note(messages[i], ids[at], false) end
          count = count + is_done
        end
        deleted = deleted + #ids
        is_more = #ids == JOBS_AT_ONCE
      end
      if is_more then
        if count > 0 then call('HSET', settings, 'removing', redis.sha1hex(messages[i])) end
        break
      end
      if is_begun then call('HDEL', settings, 'removing') end
      removed[i] = (count > 0 or is_begun) and 1 or 0
    end
    settle_not_full()
    return removed, #messages - #removed
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

  -- Return a text that changes with every event of a job, except touch, and when a delay or a reservation ends. It is
  -- the same before and after the script notices that a delay has ended, or makes jobs of messages of the list or of
  -- a group's log.
  function operations.version()
    local stats = call('MGET', base .. ':stats:produced_messages', base .. ':stats:consumed_messages')
    local noted = call('HMGET', key_of('settings'), 'deliveries', 'buried')
    local put = jobs.source and math.max(jobs.next, jobs.head) + jobs.lag or tonumber(stats[1] or 0)
    local present = string.format('(%.0f', clock())
    return string.format('jobs %.0f %.0f %s %d %d %d %.0f %d %s %s %s', put, queue.length + jobs.outstanding(),
      stats[2] or '', call('ZCOUNT', key_of('delayed'), present, '+inf'),
      call('ZCOUNT', key_of('reserved'), present, '+inf'), call('ZCARD', key_of('buried')), jobs.settings.paused or 0,
      call('EXISTS', base .. ':closed'), queue.made or '', noted[1] or '', noted[2] or '')
  end
end
