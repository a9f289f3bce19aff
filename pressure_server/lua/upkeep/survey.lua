-- Survey: the figures of many queues, for metrics and the console. A script of its own, which changes nothing.
--
-- Takes    KEYS[1…]  base keys of queues
-- Returns  for each queue a list in the order of `Figures` in queues/survey.py; false if there is no such queue
--
-- A list without a bound takes three commands, about 5 microseconds. A delay or a reservation that has ended counts as if
-- it had not, until the next operation on its queue.

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ENDS_IN_DIGIT = '%d$'
local NO_JOBS, NO_SETTINGS = { 0, 0, 0, 0 }, {}

-- Return how many jobs are in each state; and the age of the next one in milliseconds, 0 if that is not known.
local function jobs_of(base)
  local found, age = {}, 0
  for i, state in ipairs({ 'ready', 'delayed', 'reserved', 'buried' }) do
    found[i] = call('ZCARD', base .. ':ext:' .. state)
  end
  local id = call('ZRANGE', base .. ':ext:ready', 0, 0)[1]
  local job = id and call('HGET', base .. ':ext:jobs', id)
  local made = job and string.match(job, '^%d+')
  if made then age = math.max(0, now - string.sub(made, 1, 13)) end
  return found, age
end

-- Return for how many messages of its log a group has no jobs yet; `following` is the next offset.
local function lag_of(log, following)
  local consumed = tonumber(call('GET', log .. ':stats:consumed_messages') or 0)
  return math.max(0, consumed + call('LLEN', log) - math.max(consumed, following))
end

-- Return the number in a key or field; 0 if it is missing or damaged.
local function number(value) return tonumber(value or 0) or 0 end

local function figures_of(base)
  local values = call('MGET', base .. ':bound', base .. ':ext:made', base .. ':stats:produced_messages',
    base .. ':stats:produced_bytes', base .. ':stats:consumed_messages', base .. ':stats:consumed_bytes')
  if not values[1] then return false end
  local kind, length, jobs, age, settings = 'fifo', call('LLEN', base), NO_JOBS, 0, NO_SETTINGS
  local dropped = values[1] ~= '0' and call('HGET', base .. ':ext:settings', 'dropped')
  if values[2] and not string.match(values[2], ENDS_IN_DIGIT) then
    kind = string.match(values[2], '(%l+)$') or kind
    settings = call('HMGET', base .. ':ext:settings', 'type', 'max_bytes', 'dropped', 'timeouts', 'deliveries',
      'dead_letters', 'paused', 'source', 'next', 'ranged', 'ack', 'held_bytes')
    if kind == 'jobs' or kind == 'reserved' or kind == 'kept' then jobs, age = jobs_of(base) end
    if kind == 'jobs' then
      jobs[1] = jobs[1] + length + call('ZCARD', base .. ':ext:unadopted') + (settings[8] and lag_of(settings[8], tonumber(settings[9] or 0)) or 0)
      jobs[3] = jobs[3] + number(settings[10])
      length, kind = jobs[1] + jobs[2], settings[8] and 'group' or settings[1] or 'jobs'
    elseif kind == 'lifo' or kind == 'random' then
      length = length + call('ZCARD', base .. ':ext:ready')
      jobs = { length, 0, 0, 0 }
    elseif kind ~= 'log' then
      kind = 'fifo'
    end
  end
  return {
    kind, string.match(values[2] or '', '^[%d.]*'), length, number(values[1]), number(settings[2]),
    number(settings[12]), call('EXISTS', base .. ':closed'), settings[11] and 1 or 0,
    number(values[3]), number(values[4]), number(values[5]), number(values[6]),
    jobs[1], jobs[2], jobs[3], jobs[4], math.max(0, number(settings[7]) - now), age,
    number(settings[3] or dropped), number(settings[4]), number(settings[5]), number(settings[6]),
  }
end

local found = {}
for i, base in ipairs(KEYS) do
  -- A key of the wrong type, which the doctor finds, must not end the call.
  local is_done, figures = pcall(figures_of, base)
  found[i] = is_done and figures or false
end
return found
