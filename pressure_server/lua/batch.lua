-- Batches: does blocks on the general path. A block has runs of equal operations, done one after the other.
--
-- Takes    ARGV[block.first…block.last]  runs: a name (a verb, and words for its options), a count, and as
--                                        many arguments
-- Returns  how many units of the last run (messages, or commands of a put) are left: the caller sends these,
--          and the runs after them, again. 0: none. -1: none, and puts may wait, as the queue has a bound. -2:
--          none, and there is no queue. Then a result for each run done. A refused run has an error: NOQUEUE,
--          EXISTS, CLOSED, INUSE role holder, CREATING, DELETING. Nothing of it has been done. If only some of its
--          units are refused, the result is a list with an error in the place of each of these. If there is no
--          result, many jobs are due at once: the caller sends the runs again
--
-- An error of the script or of a command ends a run, and refuses it. What the run has taken goes back. Earlier runs
-- are done, and keep their results. Later runs are left for the next call; in a transaction they are done.
--
-- Runs that lack a message, or room, wait within the call. After each later run that has changed the queue
-- they are tried again, first come, first served. If some got further, the first value of the reply is
-- instead { left, run, result, run, result, … }, with what they got then; runs count from 1. Run 0 reports a
-- role that waiting runs need and a native client holds; 'others', if messages were left for other servers
-- (waiting.lua); 'due', with the milliseconds until there may be another job (-1: never) and the value of :ext:due
-- (jobs.lua); or 'source', if the queue is a group's, with the number of bytes by which the group's name is longer
-- than its log's (groups.lua).
--
-- Three names are not operations and have no result. They make a transaction of the runs that follow:
--   on         switch to the queue of that base key; no run waits from here on
--   unchanged  refuse the whole block with CHANGED unless the queue has this version
--   free       refuse the whole block with INUSE if a role is named that is held and needed
-- The reply of a refused block is { 'refused', base key, error }: nothing has been done. The error is DUE if many
-- jobs are due at once: the caller sends the block again.

local function slice_of(first, count)
  if count <= CHUNK then
    return { unpack(ARGV, first, first + count - 1) }
  end
  local slice = {}
  for i = 1, count do
    slice[i] = ARGV[first + i - 1]
  end
  return slice
end

-- The verbs: the module that has each, or the function that makes one from options; that for queues of jobs or for logs,
-- if it is another; what the verb takes, if not up to two numbers; `optional` if it may be called without a queue; `long` if its
-- answers may be long.
local job_event = { job_verbs, takes = 'messages', optional = true }
local job_question = { job_verbs, takes = 'messages', optional = true, long = true }
local verbs = {
  put = { make_put, takes = 'sizes and messages', optional = true },
  get = { make_get, log = make_log, optional = true, long = true },
  reserve = { make_get, log = make_log, takes = 'messages', optional = true, long = true },
  move = { make_move, takes = 'words', optional = true, long = true },
  remove = { make_get, jobs = job_lists, log = make_log, takes = 'messages' },
  put_back = { recovery, takes = 'messages', optional = true },
  contains = { reads, log = make_log, takes = 'messages' },
  length = { reads, log = make_log }, info = { reads },
  exists = { reads, optional = true },
  version = { reads, jobs = job_lists, log = make_log, optional = true },
  range = { reads, jobs = job_lists, log = make_log, long = true },
  scan = { reads, jobs = job_lists, log = make_log, long = true },
  sample = { reads, jobs = job_lists, long = true },
  peek = { make_get, jobs = job_lists, log = make_log, optional = true, long = true },
  group = { groups, takes = 'words' },
  at = { reads, log = make_log, long = true },
  outcome = { reads, takes = 'messages' },
  create = { life, takes = 'words', optional = true },
  close = { life }, alter = { life, takes = 'words' },
  delete = { life, optional = true }, finish_delete = { life, optional = true },
  clean = { life, optional = true }, turn = { life, optional = true },
  purge = { purges, takes = 'words' },
  trim = { trims }, remove_copies = { trims, takes = 'words' },
  positions = { trims, takes = 'words' },
  restore = { make_get, jobs = job_lists, log = make_log, takes = 'messages' },
  delete_job = job_event, give_up = job_event, release = job_event, touch = job_event, bury = job_event,
  kick_job = job_event, kick = { job_verbs, takes = 'messages' }, pause = { job_verbs, takes = 'messages' },
  convert = { job_verbs }, job_info = job_event,
  reserve_job = job_question, peek_job = job_question,
  examine = { doctor, optional = true },
  repair = { doctor, takes = 'words', optional = true },
  take_over = { upgrades, takes = 'words', optional = true },
}

-- Return the function that does a verb on a queue of this kind.
local function operation_of(verb, options)
  local about = verbs[verb]
  local module = queue.kind and about[queue.kind] or about[1]
  if module == job_verbs then
    module = job_verbs()
  elseif type(module) == 'function' then
    local make = module
    module = options[make] or make(options)
    options[make] = module
  end
  return module[verb]
end

local function execute(verb, options, first, count)
  local about = verbs[verb]
  if block.broken then
    return block.broken
  elseif not queue.bound and not about.optional then
    return { err = 'NOQUEUE' }
  end
  local operation = operation_of(verb, options)
  if about.takes == 'sizes and messages' then
    return operation(ARGV[first], slice_of(first + 1, count - 1))
  elseif about.takes == 'messages' then
    return operation(slice_of(first, count))
  elseif about.takes == 'words' then
    return operation(unpack(ARGV, first, first + count - 1))
  end
  return operation(tonumber(ARGV[first]), tonumber(ARGV[first + 1]))
end

-- State of the block:
local reply, more
local has_taken -- whether the last run that takes messages got any
local waiting

-- Return whether more jobs of the queue are due than one call promotes: then the order and the number of the jobs that
-- can be taken are not known, and the block is left for another call. Put-backs do not depend on that.
local function is_late()
  return queue.jobs and queue.jobs.has_due and has_records and #reply == 1 and ARGV[block.first] ~= 'put_back'
end

-- Each returns an error that refuses the whole block, or nil.
local prelude = {
  on = function(key)
    patient = false
    move_dead_letters()
    enter(key)
    if is_late() then
      return { err = 'DUE' }
    end
    if queue.kind == 'jobs' then job_puts().adopt_rest() end
  end,
  unchanged = function(version)
    return operation_of('version', {})() ~= version and { err = 'CHANGED' } or nil
  end,
  free = function(roles)
    for role in string.gmatch(roles, '%l+') do
      local refusal = queue.bound and (role == 'producer' or queue.length > 0) and in_use(role)
      if refusal then
        return refusal
      end
    end
  end,
}

-- Return whether a waiting run got anything.
local function got_on(result)
  if type(result) ~= 'table' then
    return false
  elseif result[1] == 'part' and type(result[4]) == 'table' then
    return result[2] > 0 or #result[4] > 0
  end
  return #result > 0
end

-- Note that the messages of the result at this place of the reply have been taken.
local function note(result, place, how)
  if type(result) ~= 'table' or #result == 0 then
    return
  end
  note_taken(how == 'marked' and { marked = place } or place)
end

-- End a run that an error has stopped: put back what it has taken. Return its result.
local function fail_run(key, reason)
  leave_after_error()
  recovery.undo(popped, reserved_before)
  begin_run()
  base, mirror, queue.jobs = nil, nil, nil
  local is_there, why = pcall(enter, key)
  block.broken = not is_there and error_reply(why)
  return error_reply(reason)
end

-- Try the waiting runs until none makes progress.
local function serve()
  local progress = true
  while progress and #waiting > 0 and not block.broken do
    progress = false
    local still = {}
    for _, run in ipairs(waiting) do
      local is_done, result, go_on, _ = true, nil, run.go_on, nil
      if not block.broken then
        begin_run()
        is_done, result, _, go_on = pcall(run.go_on)
      end
      if not is_done then
        result, go_on = fail_run(block.home, result), nil
      end
      if not go_on or got_on(result) then
        progress = true
        more[#more + 1], more[#more + 2] = run.number, result
        if run.takes then note(result, -#more, run.takes) end
      end
      if go_on then
        run.go_on = go_on
        still[#still + 1] = run
      end
    end
    waiting = still
  end
end

-- Return the reply of the block, which is done. After an error, waiting operations are tried again in a second.
local function answer(after_error)
  if after_error then more[#more + 1], more[#more + 2] = 0, 'due 1000 ' end
  if #more > 1 then
    more[1] = reply[1]
    reply[1] = more
  end
  return keep(reply)
end

-- Do the current block on the general path.
local function do_block()
  -- Limits in bytes of a block's answers. After the first, the rest is left for the next call. A transaction
  -- cannot be split: after the second, its runs with long answers are refused.
  local ANSWERED_BYTES, ANSWERED_TOGETHER = 1048576, 64 * 1048576
  left_for_others = false
  reply, more, has_taken, waiting, block.broken = { 0 }, { 0 }, false, {}, nil
  load_mirror()
  local answered, has_takers = 0, false -- has_takers: whether runs may wait for messages
  local at, number = block.first, 0
  while at <= block.last do
    local name, count = ARGV[at], tonumber(ARGV[at + 1])
    local first = at + 2
    at = first + count
    if prelude[name] then
      local is_done, refusal = pcall(prelude[name], ARGV[first])
      if not is_done and number == 0 then
        error(refusal, 0)
      elseif not is_done then
        leave_after_error()
      elseif refusal then
        return { 'refused', base, refusal.err }
      end
      block.broken = not is_done and error_reply(refusal)
    elseif patient and is_late() then
      break
    else
      number = number + 1
      local is_done, result, left, go_on = true, nil, nil, nil
      local verb, options = read_name(name)
      local is_long = verbs[verb].long
      -- How the reply holds the messages taken; false if these have records of their own.
      local taking = verb == 'get' and (options.flags and 'marked' or 'plain')
      has_takers = has_takers or options.waits
      if has_taken and options.otherwise then
        result = {}
      elseif answered > ANSWERED_TOGETHER and is_long then
        result = { err = 'TOOLARGE' }
      else
        begin_run()
        local key = base
        is_done, result, left, go_on = pcall(execute, verb, options, first, count)
        if not is_done then
          result = fail_run(key, result)
        end
        has_taken = type(result) == 'table' and #result > 0
      end
      reply[number + 1] = result
      work = work + MESSAGE * (count + (type(result) == 'table' and #result or 0))
      if is_long and (is_shared or at <= block.last) and type(result) == 'table' then
        answered = answered + sum_of_bytes(verb == 'scan' and result[2] or result)
      end
      if taking then note(result, number + 1, taking) end
      if go_on and patient then
        waiting[#waiting + 1] = {
          number = number, go_on = go_on, takes = taking, role = verb == 'put' and 'producer' or 'consumer',
        }
      end
      if #waiting > 0 and not block.broken and (not go_on or got_on(result)) then
        serve()
      end
      if left and left > 0 then
        reply[1] = left
        break
      end
      if patient and (answered > ANSWERED_BYTES or not is_done or block.broken) then
        break
      end
    end
  end
  begin_run()
  if block.broken then
    return answer(true)
  end
  if queue.bound and has_takers and (block.how == 'note' or block.how == 'share') then
    local wait = false
    for _, run in ipairs(waiting) do wait = wait or run.role == 'consumer' end
    make_waiting_servers().note(wait)
  end
  move_dead_letters()
  settle_groups()
  -- Releases, kicks, ended reservations and adopted messages change the length as well.
  if changed and queue.kind == 'jobs' and queue.bound and may_be_full() then settle_not_full() end
  save_mirror()
  if reply[1] == 0 then
    reply[1] = not queue.bound and -2 or may_be_full() and -1 or 0
  end
  for _, run in ipairs(queue.bound and waiting or {}) do
    if in_use(run.role) then
      more[#more + 1], more[#more + 2] = 0, run.role
    end
  end
  if queue.jobs then
    more[#more + 1], more[#more + 2] = 0, string.format('due %.0f %s', queue.jobs.note_due())
  end
  if queue.jobs and queue.jobs.source then
    more[#more + 1], more[#more + 2] = 0, 'source ' .. #base - #queue.jobs.source
  end
  if left_for_others then
    more[#more + 1], more[#more + 2] = 0, 'others'
  end
  answered_in_call = answered_in_call + answered
  return answer()
end
