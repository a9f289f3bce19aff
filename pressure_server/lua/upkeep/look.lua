-- Look: reads the first messages of a queue, and its first jobs in each state. A script of its own, which changes nothing.
-- It returns at most `bytes` of each message.
--
-- Takes    KEYS[1]  the base key of a queue
--          ARGV     how many messages to return of the list and of each state; how many bytes of each message
-- Returns  false if there is no such queue; else the messages of the list, oldest first, each as its size and its
--          beginning; and for the states ready, delayed, reserved and buried the first jobs, each as its id
--          (hexadecimal), its score (jobs.lua), its priority, how often it has been reserved, its age in
--          milliseconds, its size and its beginning

-- Stop after this number of bytes, because each message is read as a whole.
local MAX_READ = 64 * 1048576

local call = redis.call
local base, most, bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local read = 0

if call('EXISTS', base .. ':bound') == 0 then return false end

-- Return a job that is a range (kinds/ranges.lua) as if it were its first message alone.
local function first_of_range(value)
  local made, offset = string.match(value, '^(%d+) =%d+ %d+ (%d+)$')
  local source = made and call('HGET', base .. ':ext:settings', 'source')
  if not source then return value end
  local position = offset - tonumber(call('GET', source .. ':stats:consumed_messages') or 0)
  local message = position >= 0 and call('LINDEX', source, -position - 1) or ''
  return string.format('%s %d 0 %d 0 0 ', made, JOB_DEFAULT_PRIORITY, JOB_DEFAULT_TTR) .. message
end

-- Return the message at a position. Those of a lifo or random queue are in a sorted set (kinds/distinct.lua).
local order = string.match(call('GET', base .. ':ext:made') or '', ' (%l+)$')
local function message_at(i)
  if order == 'lifo' or order == 'random' then
    return call('ZRANGE', base .. ':ext:ready', -i, -i)[1]
  end
  return call('LINDEX', base, -i)
end

local messages = {}
for i = 1, most do
  local message = read < MAX_READ and message_at(i)
  if not message then break end
  read = read + #message
  messages[i] = { #message, string.sub(message, 1, bytes) }
end

local states = {}
for n, state in ipairs({ 'ready', 'delayed', 'reserved', 'buried' }) do
  local places, jobs = call('ZRANGE', base .. ':ext:' .. state, 0, most - 1, 'WITHSCORES'), {}
  for i = 1, #places, 2 do
    local value, packed = unpack(call('HMGET', base .. ':ext:jobs', places[i], places[i] .. ':'))
    if read > MAX_READ then break end
    if value then
      value = first_of_range(value)
      read = read + #value
      local made, priority, first = string.match(value, '^(%d+) (%d+) %d+ %d+ %d+ %d+ ()')
      local about = packed and cmsgpack.unpack(packed) or {}
      jobs[#jobs + 1] = { places[i], places[i + 1], tonumber(about[JOB_PRIORITY] or priority), about[JOB_RESERVES] or 0,
        math.max(0, now - string.sub(made, 1, 13)), #value - first + 1, string.sub(value, first, first + bytes - 1) }
    end
  end
  states[n] = jobs
end

return { messages, states }
