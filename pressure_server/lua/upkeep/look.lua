-- Look: reads a page of the messages of a queue, and of its jobs in each state. A script of its own, which changes nothing.
--
-- Takes    KEYS[1]  the base key of a queue
--          ARGV     how many messages a page has; how many bytes of each message to return; and for the list, and for the
--                   states ready, delayed, reserved and buried, how many messages are before the page
-- Returns  false if there is no such queue; else the time in milliseconds; and for the list and each state how many messages
--          its pages have, how many are before the page (if they are fewer than given, this is the last page), and the page.
--          A message of the list is its size and its beginning; the oldest comes first. A job is its id (hexadecimal),
--          its score (jobs.lua), its priority, how often it has been reserved, its age in milliseconds, its size (-1 if
--          the log has dropped it, or has it too far from both ends), its beginning; how many messages it stands for, more
--          than 1 if it is a range; the owner of its reservation, and since when that lasts, for a job since it was
--          reserved or touched. These two are '' if there is none, or it is not known

-- Stop after this number of bytes, because each message is read as a whole.
local MAX_READ = 64 * 1048576
-- ARGV[OF_LIST] is how many messages of the list are before the page. The numbers for the states follow it.
local OF_LIST = 3
-- How many messages of a list LINDEX may pass: in the middle of 3 million, each LINDEX takes 30 ms.
local MAX_PASSED = 200000

local call = redis.call
local base, most, bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local read, passed = 0, 0

if call('EXISTS', base .. ':bound') == 0 then return false end

-- Return a job that is a range (kinds/ranges.lua) as if it were its first message alone; and whether the message is read.
local function first_of_range(value)
  local made, offset = string.match(value, '^(%d+) =%d+ %d+ (%d+)$')
  local source = made and call('HGET', base .. ':ext:settings', 'source')
  if not source then return value, true end
  local position = offset - tonumber(call('GET', source .. ':stats:consumed_messages') or 0)
  passed = passed + math.max(0, math.min(position, call('LLEN', source) - position))
  local message = position >= 0 and passed <= MAX_PASSED and call('LINDEX', source, -position - 1)
  return string.format('%s %d 0 %d 0 0 ', made, JOB_DEFAULT_PRIORITY, JOB_DEFAULT_TTR) .. (message or ''), message
end

-- Return how many messages are before the page, of `count`. `argument` is the place of the number that is asked for.
local function before(argument, count)
  return math.min(tonumber(ARGV[argument]), math.max(0, math.ceil(count / most) - 1) * most)
end

-- Return the message at a position. Those of a lifo or random queue are in a sorted set (kinds/distinct.lua).
local kind = string.match(call('GET', base .. ':ext:made') or '', ' (%l+)$')
local is_set = kind == 'lifo' or kind == 'random'
local function message_at(i)
  if is_set then return call('ZRANGE', base .. ':ext:ready', -i, -i)[1] end
  return call('LINDEX', base, -i)
end

local length = is_set and call('ZCARD', base .. ':ext:ready') or math.min(MAX_PASSED / most, call('LLEN', base))
local messages = {}
local skipped = before(OF_LIST, length)
for i = 1, most do
  local message = read < MAX_READ and message_at(skipped + i)
  if not message then break end
  read = read + #message
  messages[i] = { #message, string.sub(message, 1, bytes) }
end

local found = { now, { length, skipped, messages } }
for n, state in ipairs({ 'ready', 'delayed', 'reserved', 'buried' }) do
  local key, jobs = base .. ':ext:' .. state, {}
  length = is_set and 0 or call('ZCARD', key)
  skipped = before(OF_LIST + n, length)
  local places = length > 0 and call('ZRANGE', key, skipped, skipped + most - 1, 'WITHSCORES') or {}
  for i = 1, #places, 2 do
    local value, packed = unpack(call('HMGET', base .. ':ext:jobs', places[i], places[i] .. ':'))
    if read > MAX_READ then break end
    if value then
      local count = string.match(value, '^%d+ =(%d+)')
      local is_read
      value, is_read = first_of_range(value)
      read = read + #value
      local made, priority, ttr, first = string.match(value, '^(%d+) (%d+) %d+ (%d+) %d+ %d+ ()')
      local about = packed and cmsgpack.unpack(packed) or {}
      local owner, since = about[JOB_OWNER] or '', ''
      made, ttr = string.sub(made, 1, 13), about[JOB_OWN_TTR] or tonumber(ttr)
      if owner ~= '' and (count or kind ~= 'jobs') then
        since = made -- messages of logs and lists become jobs when they are reserved
      elseif owner ~= '' and ttr > 0 then
        since = places[i + 1] - ttr
      end
      jobs[#jobs + 1] = { places[i], places[i + 1], tonumber(about[JOB_PRIORITY] or priority), about[JOB_RESERVES] or 0,
        math.max(0, now - made), is_read and #value - first + 1 or -1, string.sub(value, first, first + bytes - 1),
        tonumber(count or 1), owner, since }
    end
  end
  found[n + 2] = { length, skipped, jobs }
end

return found
