-- Verbs on jobs: events that clients cause, reservations by id, and questions.

local verbs_of_jobs = {}
do
  local jobs, operations = the_jobs, verbs_of_jobs

  -- Append the values of some words. An error of the script is the value of each of these, and of no other.
  local function append_values(values, count, what, ...)
    local is_done, found = pcall(what, ...)
    if not is_done then
      local refusal = error_reply(found)
      enter_again()
      found = {}
      for i = 1, count do found[i] = refusal end
    end
    for i = 1, count do values[#values + 1] = found[i] or 0 end
  end

  -- Return the value of each word: a function returns it in a list.
  local function each(words, what)
    local values = {}
    for _, word in ipairs(words) do append_values(values, 1, what, word) end
    return values
  end

  -- Let an event happen to the jobs that the words name: 'id', or 'id owner'. Return 1, 0 or an error for each; and how
  -- many are left for another call.
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
      append_values(done, #ids, function() return jobs.happen(event, jobs.read(ids), owners) end)
      if patient and work >= MAX_WORK then break end
    end
    if queue.bound then
      settle_not_full()
    else
      call('HDEL', records, 'j' .. base) -- the queue was deleted, with its reserved jobs
    end
    return done, #words - #done
  end

  -- Return the verb by which an event happens to each job.
  local function verb_for(event)
    return function(words)
      return for_each(words, event)
    end
  end

  operations.delete_job, operations.give_up = verb_for('delete'), verb_for('give_up')
  operations.touch, operations.kick_job = verb_for('touch'), verb_for('kick')

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
    return each(words, function(word)
      return { change('bury', string.match(word, '^(%x+) (%S+) ?(%d*)$')) }
    end)
  end

  -- Takes    'id owner priority delay' for each; an empty priority leaves it as it is. A priority or a delay that a
  --          message of a list cannot have makes the queue one of jobs
  function operations.release(words)
    return each(words, function(word)
      local id, owner, priority, delay = string.match(word, '^(%x+) (%S+) (%d*) (%d+)$')
      owner = owner_of(owner)
      local job = jobs.read({ id })[1]
      if job and jobs.is_owned(job, owner) then
        local refusal = queue.kind ~= 'jobs' and (delay ~= '0' or (tonumber(priority) or DEFAULT_PRIORITY) ~= DEFAULT_PRIORITY)
          and job_puts().convert()
        if refusal then
          return { refusal }
        end
        job.about[JOB_PRIORITY] = tonumber(priority) or job.about[JOB_PRIORITY]
        job.about[JOB_DELAY] = tonumber(delay)
      end
      local event = delay ~= '0' and 'release_later' or 'release'
      return jobs.happen(event, { job }, { owner })
    end)
  end

  -- Takes    how many jobs to kick; and their state, '' for buried, or if none are buried, delayed
  -- Returns  { how many have been kicked; the state to pass to the next call, '' if nothing is left to do }
  function operations.kick(words)
    local most, state, count, is_more = tonumber(words[1]), words[2], 0, words[1] ~= '0'
    if state == '' then state = call('EXISTS', key_of('buried')) == 1 and 'buried' or 'delayed' end
    while is_more and (count == 0 or not patient or work < MAX_WORK) do
      local wanted = math.min(most - count, JOBS_AT_ONCE)
      local ids = call('ZRANGE', key_of(state), 0, wanted - 1)
      count = count + #jobs.happen('kick', jobs.jobs_in(state, ids))
      is_more = count < most and #ids == wanted
    end
    return { count, is_more and state or '' }
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
      jobs.is_due_now = true
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
      state, about[JOB_PRIORITY], math.max(0, clock() - string.sub(job.made, 1, 13)), about[JOB_DELAY], jobs.ttr_of(job),
      due < math.huge and math.max(0, due - clock()) or 0, unpack(about, 3, 7),
    }
  end
end

local function job_verbs()
  open_jobs()
  return verbs_of_jobs
end

-- Move jobs that have been delivered often enough to the queue for dead letters. All stay buried if that queue
-- refuses them. Call this after the queue has begun, and before it is left.
function move_dead_letters()
  while queue.jobs and queue.jobs.spent do
    local home, ids, dead_letter = base, queue.jobs.spent, queue.jobs.settings.dead_letter
    table.sort(ids)
    local found, messages = queue.jobs.jobs_in('buried', ids), {}
    for i, job in ipairs(found) do
      queue.jobs.parse(job)
      messages[i] = string.format('%s %.0f ', job.flags, math.ceil(job.expires / 1000)) .. queue.jobs.message_of(job)
    end
    queue.jobs.spent = nil
    local was_patient = patient
    enter(dead_letter)
    patient = false -- nothing may be left for another call
    local is_done, result = pcall(function()
      return #found > 0 and make_put({ overfill = true, flags = true }).put('', messages)
    end)
    patient = was_patient
    enter(home)
    if #found > 0 and is_done and not (type(result) == 'table' and result.err) then
      call('HINCRBY', base .. ':ext:settings', 'dead_letters', #found)
      queue.jobs.happen('delete', found)
    end
  end
end
