-- Best: finds the best job of many queues, and changes nothing. A script of its own.
--
-- Takes    KEYS[1…]  base keys of queues
-- Returns  the number of the queue whose job would be reserved next, 0 if none has one; its priority; and when it
--          was put; then a list of the numbers of queues in which a delay or a reservation has ended, but the batch
--          script has not noticed it yet; and a list of the numbers of the queues of groups
--
-- The best job has the lowest priority, and among equals it was put first. Messages of a list count as put at
-- the beginning, with the default priority (jobs.lua).

local DEFAULT_PRIORITY = 1024

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local best, priority, made = 0, math.huge, math.huge
local overdue, groups = {}, {}

-- Return the score of the first job of this set; inf if there is none.
local function first_score(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Return whether messages of the list can be reserved: a queue of jobs does not adopt them while a native client
-- holds the consumer role.
local function is_adoptable(base)
  return call('EXISTS', base .. ':consumer_free') == 1
    or string.sub(call('GET', base .. ':ext:made') or '', -5) ~= ' jobs'
end

local function consider(i, its_priority, its_time)
  if its_priority < priority or its_priority == priority and its_time < made then
    best, priority, made = i, its_priority, its_time
  end
end

for i, base in ipairs(KEYS) do
  local ready, delayed, reserved = base .. ':ext:ready', base .. ':ext:delayed', base .. ':ext:reserved'
  if call('EXISTS', base, ready, delayed, reserved, base .. ':ext:offsets') > 0 then
    local pause, source, following = unpack(call('HMGET', base .. ':ext:settings', 'paused', 'source', 'next'))
    pause = tonumber(pause or 0)
    local first = math.min(first_score(delayed), first_score(reserved), pause > now and pause or math.huge)
    -- The script has yet to note when jobs of an earlier version are due (jobs.lua).
    local is_late = first <= now or first < math.huge and call('EXISTS', base .. ':ext:due') == 0
    if source then
      groups[#groups + 1] = i
      -- Native producers do not make jobs for groups.
      is_late = is_late or call('EXISTS', ready) == 0 and call('LLEN', source)
        + tonumber(call('GET', source .. ':stats:consumed_messages') or 0) > tonumber(following)
    end
    if is_late then
      overdue[#overdue + 1] = i
    elseif pause <= now and call('EXISTS', base .. ':bound') == 1 then -- else a native client deletes the queue
      local id, its_priority = unpack(call('ZRANGE', ready, 0, 0, 'WITHSCORES'))
      its_priority = tonumber(its_priority)
      local has_messages = call('LLEN', base) > 0
      if has_messages and is_adoptable(base) then
        consider(i, math.min(its_priority or math.huge, DEFAULT_PRIORITY), 0)
      elseif id and its_priority <= priority then
        local job = call('HGET', base .. ':ext:jobs', id)
        -- In microseconds; jobs of earlier versions have milliseconds (job_ids.lua).
        consider(i, its_priority, tonumber(string.sub((job and string.match(job, '^%d+') or 0) .. '000', 1, 16)))
      end
    end
  end
end

return { best, best > 0 and priority or 0, best > 0 and made or 0, overdue, groups }
