-- Questions to any queue.

local room = require 'core/room'
local jobs = require 'kinds/jobs'
local policy = require 'kinds/policy'

local info = {}

function info.exists() return queue.bound and 1 or 0 end

-- Return how many jobs are ready, delayed, reserved and buried; for how long the queue remains paused; and how
-- many of the ready jobs are urgent (beanstalkd: of a priority below 1024).
local function counts_of_jobs()
  local counts, state = jobs.counts(), queue.jobs
  -- Messages that are not adopted yet can be taken, too.
  counts[1] = queue.kind.has_deliveries and counts[1] + state.lag + call('LLEN', queue.base) + state.unadopted or queue.length
  counts[5] = math.max(0, (state.settings.paused or 0) - the_call.clock())
  counts[6] = call('ZCOUNT', queue.key_of('ready'), '-inf', '(' .. JOB_DEFAULT_PRIORITY)
  return counts
end

-- Returns  the fields of QueueInfo (queues/operations/queue_info.py)
function info.info()
  local base = queue.base
  local stats = call('MGET', base .. ':stats:produced_messages', base .. ':stats:produced_bytes',
    base .. ':stats:consumed_messages', base .. ':stats:consumed_bytes')
  local noted = call('HMGET', base .. ':ext:settings', 'timeouts', 'dropped', 'missed', 'ack', 'ack_ttr', 'ttl',
    unpack(policy.SETTINGS))
  local settings = queue.jobs and queue.jobs.settings or {}
  local counts = queue.jobs and counts_of_jobs() or { queue.length + queue.returned, 0, 0, 0, 0, 0 }
  local head, tail, groups = queue.kind.offsets()
  return {
    queue.bound, queue.length + queue.returned, call('EXISTS', base .. ':closed'),
    call('EXISTS', base .. ':producer_free'), queue.producer or '',
    call('EXISTS', base .. ':consumer_free'), queue.consumer or '',
    tonumber(stats[1] or 0), tonumber(stats[2] or 0), tonumber(stats[3] or 0), tonumber(stats[4] or 0),
    queue.overflow(), queue.kind.type or settings.type or queue.word, counts[1], counts[2], counts[3], counts[4], counts[5], counts[6],
    settings.unique or '', settings.max_deliveries or 0, settings.dead_letter or '',
    tonumber(noted[1] or 0), tonumber(noted[2] or 0), head, tail, groups,
    queue.jobs and queue.jobs.source or '', tonumber(noted[3] or 0), room.max_bytes() or 0,
    noted[4] or '', tonumber(noted[5] or 0), tonumber(noted[7] or 0), tonumber(noted[8] or 0), tonumber(noted[9] or 0),
    noted[10] or '', 1000 * (tonumber(noted[6] or nil) or 0),
  }
end

return info
