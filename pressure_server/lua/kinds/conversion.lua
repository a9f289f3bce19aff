-- Conversion: a list, or a queue of distinct messages, becomes a queue of jobs when a client uses it as one.

local jobs = require 'kinds/jobs'

local conversion = {}

-- Return why this queue cannot become one of jobs, or nil.
function conversion.refusal()
  local of = not queue.kind.become_jobs and call('HGET', queue.key_of('settings'), 'type')
  return of and { err = 'TYPE not-jobs ' .. of } or nil
end

-- Make this a queue of jobs, unless it is one. Its messages are adopted in their order. Return an error, or
-- nil.
function conversion.convert()
  local refusal = queue.word ~= 'jobs' and conversion.refusal()
  if queue.word == 'jobs' or refusal then return refusal or nil end
  -- The reserved messages of a list were counted as consumed.
  local outstanding, bytes = 0, 0
  for _, state in ipairs({ 'reserved', 'buried' }) do
    for _, id in ipairs(call('ZRANGE', queue.key_of(state), 0, -1)) do
      local job = jobs.read({ id })[1]
      if job then outstanding, bytes = outstanding + 1, bytes + jobs.bytes_of(job) end
    end
  end
  if outstanding > 0 then queue.count_as('consumed', -outstanding, -bytes) end
  if queue.kind.become_jobs and call('EXISTS', queue.key_of('ready')) == 1 then
    call('RENAME', queue.key_of('ready'), queue.key_of('unadopted'))
  end
  queue.set_kind('jobs')
  queue.length = call('LLEN', queue.base)
  call('UNLINK', queue.key_of('members'), queue.key_of('copies'), queue.key_of('index'))
  queue.index, queue.mirror = nil, nil
  queue.kind.begin()
  queue.kind.count_held()
  if not (queue.is_free('producer') and queue.is_free('consumer')) then
    queue.try_waiting() -- operations that wait for a role no longer need it
  end
end

return conversion
