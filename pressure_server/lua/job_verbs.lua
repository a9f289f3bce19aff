-- Verbs on jobs: events that clients cause, reservations by id, and questions.

local job_verbs -- of the call

local function make_job_verbs()
  local jobs = open_jobs()
  if job_verbs then
    return job_verbs
  end
  local operations = {}

  -- Let an event happen to the jobs that the words name: 'id', or 'id owner'. Return 1 or 0 for each.
  local function for_each(words, event)
    local done, known = {}, {} -- known: owners
    for first = 1, #words, JOBS_AT_ONCE do
      local ids, owners = {}, {}
      local last = math.min(first + JOBS_AT_ONCE - 1, #words)
      for i = first, last do
        local id, owner = string.match(words[i], '^(%x+) ?(%S*)$')
        if known[owner] == nil then known[owner] = owner ~= '' and owner_of(owner) end
        local at = event == 'give_up' and last - i + 1 or i - first + 1 -- given up: the latest is named first
        ids[at], owners[at] = id, known[owner]
      end
      for _, is_done in ipairs(jobs.happen(event, jobs.read(ids), owners)) do done[#done + 1] = is_done end
    end
    if queue.bound then
      settle_not_full()
    else
      call('HDEL', records, 'j' .. base) -- the queue was deleted, with its reserved jobs
    end
    return done
  end

  for verb, event in pairs({ delete_job = 'delete', give_up = 'give_up', touch = 'touch', kick_job = 'kick' }) do
    operations[verb] = function(words)
      return for_each(words, event)
    end
  end

  -- Let an event happen that may change a job's priority.
  local function change(event, id, owner, priority)
    local job = jobs.read({ id })[1]
    if job then
      jobs.parse(job).about[JOB_PRIORITY] = tonumber(priority) or job.about[JOB_PRIORITY]
    end
    return jobs.happen(event, { job }, { owner_of(owner) })[1] or 0
  end

  -- Takes    'id owner', or 'id owner priority', for each
  function operations.bury(words)
    local done = {}
    for i, word in ipairs(words) do
      done[i] = change('bury', string.match(word, '^(%x+) (%S+) ?(%d*)$'))
    end
    return done
  end

  -- Takes    'id owner priority delay' for each; an empty priority leaves it as it is. A priority or a delay that a
  --          message of a list cannot have makes the queue one of jobs
  function operations.release(words)
    local done = {}
    for i, word in ipairs(words) do
      local id, owner, priority, delay = string.match(word, '^(%x+) (%S+) (%d*) (%d+)$')
      owner = owner_of(owner)
      local job = jobs.read({ id })[1]
      if job and jobs.is_owned(job, owner) then
        local refusal = queue.kind ~= 'jobs' and (delay ~= '0' or (tonumber(priority) or DEFAULT_PRIORITY) ~= DEFAULT_PRIORITY)
          and job_puts().convert()
        if refusal then
          return refusal
        end
        job.about[JOB_PRIORITY] = tonumber(priority) or job.about[JOB_PRIORITY]
        job.about[JOB_DELAY] = tonumber(delay)
      end
      local event = delay ~= '0' and 'release_later' or 'release'
      done[i] = jobs.happen(event, { job }, { owner })[1] or 0
    end
    return done
  end

  -- Takes    how many jobs to kick: buried ones, or if there are none, delayed ones
  -- Returns  how many have been kicked; and how many are left for another call
  function operations.kick(most)
    local state = call('EXISTS', key_of('buried')) == 1 and 'buried' or 'delayed'
    local count = 0
    while count < most and (count == 0 or not patient or work < MAX_WORK) do
      local wanted = math.min(most - count, JOBS_AT_ONCE)
      local ids = call('ZRANGE', key_of(state), 0, wanted - 1)
      count = count + #jobs.happen('kick', jobs.jobs_in(state, ids))
      if #ids < wanted then break end
    end
    return count
  end

  -- Takes    the id of a job, and a claim
  -- Returns  { the job as `give` returns it }, or {} if it cannot be reserved
  function operations.reserve_job(words)
    local job = jobs.read({ words[1] })[1]
    return job and job_gets().give('reserve_any', { job }, { words[2] }) or {}
  end

  -- Takes    for how long no job is reserved, in milliseconds
  function operations.pause(words)
    local refusal = queue.kind ~= 'jobs' and job_puts().convert()
    if refusal then
      return refusal
    end
    local before = jobs.settings.paused or 0
    jobs.settings.paused = clock() + tonumber(words[1])
    call('HSET', key_of('settings'), 'paused', string.format('%.0f', jobs.settings.paused))
    if jobs.settings.paused < before and jobs.ready > 0 then
      -- Tell clients that wait for several queues: they watch the ready jobs, and not the settings.
      call('PEXPIRE', key_of('ready'), 1000)
      call('PERSIST', key_of('ready'))
    end
    changed = true
    return 1
  end

  -- Make this a queue of jobs, unless it is one. Returns 1, or an error.
  function operations.convert()
    return queue.kind ~= 'jobs' and job_puts().convert() or 1
  end

  -- Takes    an id; or ready, delayed or buried, for the next job in that state
  -- Returns  { id, message }, or {}
  function operations.peek_job(words)
    local id = words[1]
    if #id < 10 then
      id = (id == 'ready' and jobs.next_ids(1) or call('ZRANGE', key_of(id), 0, 0))[1]
    end
    local job = id and jobs.read({ id })[1]
    return job and { job.id, jobs.message_of(job) } or {}
  end

  -- Takes    an id
  -- Returns  {}, or state, priority, age, delay, time to run, time left, reserves, timeouts, releases, buries
  --          and kicks; times in milliseconds
  function operations.job_info(words)
    local job = jobs.read(words)[1]
    if not job then
      return {}
    end
    local state, about = jobs.state_of(job), jobs.parse(job).about
    local has_time = state == 'delayed' or state == 'reserved'
    local due = has_time and tonumber(call('ZSCORE', key_of(state), job.id)) or 0
    return {
      state, about[JOB_PRIORITY], clock() - tonumber(job.made), about[JOB_DELAY], jobs.ttr_of(job),
      due < math.huge and math.max(0, due - clock()) or 0, unpack(about, 3, 7),
    }
  end

  job_verbs = operations
  return operations
end

-- Move jobs that have been delivered often enough to the queue for dead letters. A job stays buried if that
-- queue refuses it. Call this after the queue has begun, and before it is left.
function move_dead_letters()
  while queue.jobs and queue.jobs.spent do
    local home, ids, dead_letter = base, queue.jobs.spent, queue.jobs.settings.dead_letter
    local messages = {}
    table.sort(ids)
    for i, job in ipairs(queue.jobs.read(ids)) do
      if job then
        queue.jobs.parse(job)
        messages[i] = string.format('%s %.0f ', job.flags, math.ceil(job.expires / 1000)) .. queue.jobs.message_of(job)
      end
    end
    queue.jobs.spent = nil
    local moved = {}
    enter(dead_letter)
    for i = 1, #ids do
      local is_done, result = pcall(function()
        return messages[i] and make_put({ overfill = true, flags = true }).put('', { messages[i] })
      end)
      if is_done and not (type(result) == 'table' and result.err) then moved[#moved + 1] = ids[i] end
    end
    enter(home)
    if #moved > 0 then call('HINCRBY', base .. ':ext:settings', 'dead_letters', #moved) end
    queue.jobs.happen('delete', queue.jobs.read(moved))
  end
end
