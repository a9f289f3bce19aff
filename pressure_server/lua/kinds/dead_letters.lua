-- Dead letters: jobs that have been delivered often enough go to another queue, and back if a client asks for it. A
-- queue of jobs notes where each came from (JOB_ORIGIN), and its name there (JOB_NAME); a list has no place for that.

local put = require 'core/put'
local jobs = require 'kinds/jobs'

local dead_letters = {}

-- Put jobs of another queue into the queue with this base key, and return to the present one. Jobs stay jobs, with their
-- priority and time to run, if that queue has jobs or may become one of jobs; nothing counts as delivered.
--
-- Takes    the base key; the jobs; the options of the put; the base key that is noted as their origin, or nil
-- Returns  a table, with `err` if none has been put; else a function that tells of each job, by its place, whether it has
local function put_into(base, some, options, origin)
  local home, was_patient, messages, names, result = queue.base, block.patient, {}, {}, nil
  for i, job in ipairs(some) do
    messages[i] = jobs.message_of(jobs.parse(job))
    names[i] = queue.jobs.settings.unique and call('HGET', queue.key_of('jobs'), job.id .. '#') or job.about[JOB_NAME]
  end
  queue.enter(base)
  options.job = not queue.bound or queue.kind.has_deliveries or queue.kind.become_jobs
  options.flags = not options.job
  options.by = next(names) and queue.jobs and queue.jobs.settings.unique
  for i, job in ipairs(some) do
    local head = options.job
      and string.format('%d 0 %s %s %s ', job.about[JOB_PRIORITY], job.ttr or JOB_DEFAULT_TTR, job.flags, job.expires)
      or string.format('%s %.0f ', job.flags, math.ceil(job.expires / 1000))
    local name = options.by and (names[i] or messages[i])
    messages[i] = (name and string.format('%d %s', #name, name) or '') .. head .. messages[i]
  end
  block.patient = false -- nothing may be left for another call
  local is_done, reason = pcall(function()
    result = put.put(options, '', messages)
    for i = 1, options.job and origin and type(result) == 'table' and #result or 0 do
      local about = { some[i].about[JOB_PRIORITY], 0, 0, 0, 0, 0, 0, '', [JOB_ORIGIN] = origin, [JOB_NAME] = names[i] }
      call('HSETNX', queue.key_of('jobs'), result[i] .. ':', cmsgpack.pack(about))
    end
  end)
  block.patient = was_patient
  queue.enter(home)
  if is_done and options.job and type(result) == 'table' and string.match(result.err or '', '^TYPE not%-jobs') then
    return put_into(base, some, options, origin) -- the put has created it, as a list
  end
  if not is_done or type(result) == 'table' and result.err then
    return is_done and result or the_call.error_reply(reason)
  end
  return {}, function(i) return type(result) == 'number' or result[i] ~= -1 end
end

-- Move the jobs of the queue that have been delivered often enough. If the queue for dead letters refuses them, all stay
-- buried. Call this after `begin` of a queue, and before `leave`.
function dead_letters.move()
  while queue.jobs and queue.jobs.spent do
    local ids, dead_letter = queue.jobs.spent, queue.jobs.settings.dead_letter
    table.sort(ids)
    local found = jobs.read_in('buried', ids)
    queue.jobs.spent = nil
    if #found > 0 and not put_into(dead_letter, found, { overfill = true }, queue.base).err then
      call('HINCRBY', queue.key_of('settings'), 'dead_letters', #found)
      jobs.happen('delete', found)
    end
  end
end

-- Put some ready jobs back into the queues from which they came, as if they had never been delivered. Add the ids of the
-- jobs that have gone to `gone`. If a queue has taken none, return 'REDRIVE length error name': its error and its name.
local function redrive_some(some, to, gone)
  local origins, jobs_of, refusal = {}, {}, nil
  for _, job in ipairs(some) do
    local origin = to ~= '' and to or jobs.parse(job).about[JOB_ORIGIN]
    if origin and not jobs_of[origin] then origins[#origins + 1], jobs_of[origin] = origin, {} end
    if origin then table.insert(jobs_of[origin], job) end
  end
  if #origins == 0 and #some > 0 then return 'TYPE no-origins' end
  for _, origin in ipairs(origins) do
    local result, is_put = put_into(origin, jobs_of[origin], { existing = true, now = true })
    local went = {}
    for i, job in ipairs(jobs_of[origin]) do
      if is_put and is_put(i) then went[#went + 1] = job end
    end
    jobs.happen('delete', went)
    for _, job in ipairs(went) do gone[#gone + 1] = job.id end
    if #went == 0 then
      local name, reason = string.sub(origin, #the_call.own_key('') + 1), result.err or 'FULL'
      refusal = string.format('REDRIVE %d %s %s', #reason, reason, name)
    end
  end
  return refusal
end

-- Takes    the base key of the queue into which all go, '' for the origin of each; the most that may go; and how many
--          jobs to pass over, as those before them did not fit
-- Returns  how many have gone; how many to pass over in the next call, -1 if there are no more jobs; and an error of
--          `redrive_some`, or ''. A transaction does all at once
function dead_letters.redrive(to, most, skipped)
  local refusal, moved, reason, is_more = jobs.convert(), 0, nil, nil
  most, skipped = tonumber(most), tonumber(skipped)
  if refusal then return refusal end
  repeat
    local portion, gone = jobs.portion(math.min(most - moved, jobs.AT_ONCE)), {}
    local ids = jobs.ready_ids(skipped, skipped + portion - 1)
    reason = redrive_some(jobs.read_in('ready', ids), to, gone) or reason
    moved, skipped, is_more = moved + #gone, skipped + #ids - #gone, #ids == portion
  until not is_more or moved >= most or block.patient
  return { moved, is_more and moved < most and skipped or -1, reason or '' }
end

return dead_letters
