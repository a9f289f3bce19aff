-- Dead letters: jobs that have been delivered often enough go to another queue.

local block = require 'core/blocks'
local queue = require 'core/queue'
local put = require 'core/put'
local jobs = require 'kinds/jobs'

local dead_letters = {}

-- Move the jobs of the queue that have been delivered often enough. If the queue for dead letters refuses them, all stay
-- buried. Call this after `begin` of a queue, and before `leave`.
function dead_letters.move()
  while queue.jobs and queue.jobs.spent do
    local home, ids, dead_letter = queue.base, queue.jobs.spent, queue.jobs.settings.dead_letter
    table.sort(ids)
    local found, messages = jobs.read_in('buried', ids), {}
    for i, job in ipairs(found) do
      jobs.parse(job)
      messages[i] = string.format('%s %.0f ', job.flags, math.ceil(job.expires / 1000)) .. jobs.message_of(job)
    end
    queue.jobs.spent = nil
    local was_patient = block.patient
    queue.enter(dead_letter)
    block.patient = false -- nothing may be left for another call
    local is_done, result = pcall(function()
      return #found > 0 and put.put({ overfill = true, flags = true }, '', messages)
    end)
    block.patient = was_patient
    queue.enter(home)
    if #found > 0 and is_done and not (type(result) == 'table' and result.err) then
      call('HINCRBY', queue.key_of('settings'), 'dead_letters', #found)
      jobs.happen('delete', found)
    end
  end
end

return dead_letters
