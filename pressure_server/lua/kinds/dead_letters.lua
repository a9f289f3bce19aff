-- Dead letters: jobs that have been delivered often enough go to another queue, and back if a client asks for it.
--
-- A queue of jobs notes where each came from (JobField in layout.py). The library makes the queue for dead letters one of
-- jobs if it creates it; a list that is there already stays a list, and has no place for that.

local the_call = require 'core/call'
local block = require 'core/blocks'
local queue = require 'core/queue'
local put = require 'core/put'
local conversion = require 'kinds/conversion'
local jobs = require 'kinds/jobs'

local dead_letters = {}

-- Put jobs of another queue into the queue with this base key, and return to the present one. Jobs stay jobs, with their
-- priority and time to run, if that queue has jobs or may become one of jobs; nothing counts as delivered.
--
-- Takes    the base key; the jobs; the options of the put; the base key that is noted as their origin, or nil
-- Returns  a table, with `err` if none has been put; else a function that tells of each job, by its place, whether it has
local function put_into(base, some, options, origin)
  local home, was_patient, messages, result = queue.base, block.patient, {}, nil
  for i, job in ipairs(some) do messages[i] = jobs.message_of(jobs.parse(job)) end
  queue.enter(base)
  options.job = not queue.bound or queue.kind.has_deliveries
  options.flags = not options.job
  for i, job in ipairs(some) do
    local head = options.job
      and string.format('%d 0 %s %s %s ', job.about[JOB_PRIORITY], job.ttr or JOB_DEFAULT_TTR, job.flags, job.expires)
      or string.format('%s %.0f ', job.flags, math.ceil(job.expires / 1000))
    messages[i] = head .. messages[i]
  end
  block.patient = false -- nothing may be left for another call
  local is_done, reason = pcall(function()
    result = put.put(options, '', messages)
    for i = 1, options.job and origin and type(result) == 'table' and #result or 0 do
      local about = { some[i].about[JOB_PRIORITY], 0, 0, 0, 0, 0, 0, '', [JOB_ORIGIN] = origin }
      call('HSETNX', queue.key_of('jobs'), result[i] .. ':', cmsgpack.pack(about))
    end
  end)
  block.patient = was_patient
  queue.enter(home)
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

-- Put ready jobs back into the queues from which they came, as if they had never been delivered.
--
-- Takes    the base key of the queue into which all go, '' for the origin of each; the most that may go
-- Returns  how many have gone, or an error if none has: 'REDRIVE length error name' is that of the queue with this name
function dead_letters.redrive(to, most)
  local refusal = conversion.convert()
  if refusal then
    return refusal
  end
  local origins, jobs_of, moved = {}, {}, 0
  for _, job in ipairs(jobs.read_in('ready', jobs.next_ids(jobs.portion(math.min(tonumber(most), jobs.AT_ONCE))))) do
    local origin = to ~= '' and to or jobs.parse(job).about[JOB_ORIGIN]
    if origin and not jobs_of[origin] then origins[#origins + 1], jobs_of[origin] = origin, {} end
    if origin then table.insert(jobs_of[origin], job) end
  end
  if #origins == 0 and queue.length > 0 then
    return { err = 'TYPE no-origins' }
  end
  for _, origin in ipairs(origins) do
    local result, is_put = put_into(origin, jobs_of[origin], { existing = true, now = true })
    local gone = {}
    for i, job in ipairs(jobs_of[origin]) do
      if is_put and is_put(i) then gone[#gone + 1] = job end
    end
    jobs.happen('delete', gone)
    moved = moved + #gone
    if #gone == 0 then
      local name, reason = string.sub(origin, #the_call.own_key('') + 1), result.err or 'FULL'
      refusal = { err = string.format('REDRIVE %d %s %s', #reason, reason, name) }
    end
  end
  return moved == 0 and refusal or moved
end

return dead_letters
