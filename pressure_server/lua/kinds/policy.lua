-- Policies of a queue of jobs: after what time a failed job is tried again, how many jobs may be in flight, and at which
-- rate jobs are taken. Groups have none (life.lua).
--
-- Touches  :ext:settings  'retry_delay', 'retry_delay_max': milliseconds; 'in_flight': how many jobs may be reserved at
--                         the same time; 'rate': 'count milliseconds': how many jobs may be taken in that time. 'policy'
--                         has all of them, 0 for none, in one field, which all queues of jobs read; 'rate_until': when
--                         the tokens that have been used are there again, in milliseconds since 1970
--
-- The rate is a bucket of `count` tokens, which fills evenly.

local job_reads = require 'kinds/job_reads'

local policy = { SETTINGS = { 'retry_delay', 'retry_delay_max', 'in_flight', 'rate' } }
-- If the queue says nothing else, no delay between two tries grows beyond this: an hour.
local LONGEST = 3600000
-- The part of a token that rounding may take: three jobs at once, at a rate of 3, are three tokens.
local ROUNDED = 0.001
-- Events after which a job is tried again later. A release with a delay is none of them.
local FAILURES = { release = true, give_up = true, time_out = true }
local key_of = queue.key_of

-- Note the settings in one field, after some have been written. Another rate begins with all its tokens.
function policy.note()
  local key, noted = key_of('settings'), call('HMGET', key_of('settings'), unpack(policy.SETTINGS))
  local rate, before = noted[4] or '0 0', string.match(call('HGET', key, 'policy') or '', '%d+ %d+$')
  if noted[1] or noted[3] or noted[4] then
    call('HSET', key, 'policy', string.format('%s %s %s %s', noted[1] or 0, noted[2] or 0, noted[3] or 0, rate))
  else
    call('HDEL', key, 'policy')
  end
  if rate ~= before then call('HDEL', key, 'rate_until') end
end

local function present()
  local state = queue.jobs
  if type(state.settings.policy) == 'string' then
    local delay, most, in_flight, count, time = string.match(state.settings.policy, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
    state.settings.policy = {
      delay = tonumber(delay), most = tonumber(most), in_flight = tonumber(in_flight), time = tonumber(time),
      interval = count ~= '0' and tonumber(time) / tonumber(count), -- between two tokens
    }
  end
  return state.settings.policy
end

local function note_full_at(its, full_at)
  its.full_at = full_at
  call('HSET', key_of('settings'), 'rate_until', string.format('%.3f', full_at))
end

local function full_at(its)
  local now = the_call.clock()
  its.full_at = its.full_at or tonumber(call('HGET', key_of('settings'), 'rate_until') or 0)
  if its.full_at > now + its.time then note_full_at(its, now + its.time) end -- the backend's clock has gone back
  return math.max(its.full_at, now)
end

-- Return how many of `count` ready jobs may be taken now.
function policy.left(count)
  local its = present()
  if its.in_flight > 0 then
    count = math.min(count, math.max(0, its.in_flight - call('ZCARD', key_of('reserved'))))
  end
  if its.interval then
    count = math.min(count, math.floor((the_call.clock() + its.time - full_at(its)) / its.interval + ROUNDED))
  end
  return count
end

function policy.note_taken(count)
  local its = present()
  if its.interval and count > 0 then note_full_at(its, full_at(its) + count * its.interval) end
end

-- Note that jobs are not in flight any longer: those that wait may have a turn.
function policy.note_ended()
  if present().in_flight > 0 and queue.jobs.ready > 0 then queue.jobs.is_due_now = true end
end

-- Return when the next job may be taken, if jobs wait for the rate only; else inf.
function policy.due()
  local its = present()
  if not its.interval or queue.jobs.ready == 0 then return math.huge end
  local due = math.ceil(full_at(its) - its.time + its.interval)
  return due > the_call.clock() and due or math.huge
end

-- Return after how many milliseconds a job is tried again that is ready after an event; 0 for at once. The time doubles
-- with each delivery. It differs from job to job by up to a tenth, so that jobs that failed together do not come together.
function policy.retry_delay(event, job)
  local its = FAILURES[event] and present()
  if not its or its.delay == 0 then return 0 end
  local most = its.most > 0 and its.most or math.max(its.delay, LONGEST)
  local delay = math.min(most, its.delay * 2 ^ math.min(40, job_reads.parse(job).about[JOB_RESERVES] - 1))
  return math.ceil(delay * (0.9 + 0.2 * (tonumber(job.id, 16) * 7919 % 1000) / 1000))
end

return policy
