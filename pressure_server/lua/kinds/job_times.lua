-- The times of jobs: when delays, reservations and pauses end, and when servers try waiting operations again.
--
-- Touches  :ext:delayed, :ext:reserved, :ext:due, ${PREFIX}!due (jobs.lua)

local jobs = require 'kinds/jobs'
local policy = require 'kinds/policy'

local job_times = {}
local key_of = queue.key_of

-- Return when the first job of a state, 'delayed' or 'reserved', is due; inf for never, or if there is none.
local function first_due(state)
  local due = queue.jobs.first[state]
  if not due then
    due = tonumber(call('ZRANGE', key_of(state), 0, 0, 'WITHSCORES')[2]) or math.huge
    queue.jobs.first[state] = due
  end
  return due
end

-- Return the ids of jobs in a state that are due, the latest first; and whether there may be more.
local function due_in(state)
  local first = first_due(state)
  if first == math.huge or first > the_call.clock() then return {}, false end
  local most = jobs.portion(jobs.AT_ONCE)
  local ids = call('ZREVRANGEBYSCORE', key_of(state), string.format('%.0f', the_call.clock()), '-inf', 'LIMIT', 0, most)
  return ids, #ids == most
end

-- Make jobs ready whose delay is over, and end reservations whose time is up; `delayed` is the number of delayed jobs. A
-- block does this once for each queue, for a limited number of jobs; if more are due, has_due says so.
function job_times.promote(delayed)
  local state = queue.jobs
  block.promoted = block.promoted or {}
  state.has_due = block.promoted[queue.base]
  if state.has_due ~= nil then return end
  if delayed == 0 then state.first.delayed = math.huge end
  local ids, are_more = due_in('delayed')
  state.has_due = are_more
  if #ids > 0 then
    local ready = {}
    for _, job in ipairs(jobs.read_in('delayed', ids)) do
      ready[#ready + 1], ready[#ready + 2] = jobs.parse(job).about[JOB_PRIORITY], job.id
    end
    if #ready > 0 then
      call('ZADD', key_of('ready'), unpack(ready))
      call('ZREM', key_of('delayed'), unpack(ids))
      state.first.delayed = nil
    end
    state.ready = state.ready + #ready / 2
    block.changed = true
  end
  ids, are_more = due_in('reserved')
  state.has_due = state.has_due or are_more
  block.promoted[queue.base] = state.has_due
  if #ids > 0 then
    local due = jobs.read_in('reserved', ids)
    local some = jobs.at_once(due)
    jobs.happen('time_out', some)
    if #some < #due then
      state.has_due, block.promoted[queue.base], state.first.reserved = true, true, nil
    end
    -- An error may have left some in both states.
    local ready = call('ZCARD', key_of('ready'))
    queue.length, state.ready = queue.length + ready - state.ready, ready
  end
end

function job_times.is_paused()
  local paused = queue.jobs.settings.paused
  return paused and paused > the_call.clock()
end

-- Return when the first delay, reservation or pause ends, or the rate allows a job; inf for never.
local function next_due()
  return math.min(job_times.is_paused() and queue.jobs.settings.paused or math.huge, first_due('delayed'),
    first_due('reserved'), queue.jobs.settings.policy and policy.due() or math.huge)
end

-- Note in :ext:due when servers try waiting operations again. Call this before the call leaves the queue.
--
-- Returns  in how many milliseconds that is, -1 for never, 0 if the noted time has passed; and the note, '' for none:
--          docs/internals/waiting.md#due-times
function job_times.note_due()
  if the_call.refusal or not the_call.has_records() then return -1, '' end
  local state, now = queue.jobs, the_call.clock()
  local noted, due = call('GET', key_of('due')), next_due()
  local was_over = noted and tonumber(noted) <= now
  local is_over = was_over
  if state.is_due_now or state.has_ended and queue.is_finished() then due, is_over = now, true end
  if due < math.huge and (not noted or is_over or due < tonumber(noted)) then
    noted = string.format('%.0f', due)
    call('SET', key_of('due'), noted)
    -- Clients of other queues may wait for that time: for a dead letter, or for room in the log if a job is buried.
    if state.settings.dead_letter or state.source and state.settings.max_deliveries then call('ZADD', the_call.own_key('due'), noted, queue.base) end
  elseif is_over or noted and not queue.word then
    call('DEL', key_of('due'))
    call('ZREM', the_call.own_key('due'), queue.base)
    noted = false
  end
  state.has_ended, state.is_due_now = nil, nil
  return was_over and 0 or noted and math.max(0, tonumber(noted) - now) or -1, noted or ''
end

return job_times
