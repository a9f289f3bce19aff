-- Best: finds the best job of many queues, and changes nothing. A script of its own.
--
-- Takes    KEYS[1…]  base keys of queues
-- Returns  the number of the queue whose job would be reserved next, 0 if none has one; its priority; and when it
--          was put; then in how many milliseconds there may be another job, -1 for never; the numbers of queues
--          in which a delay or a reservation has ended, which the batch script has yet to notice; those of
--          paused queues; and those of queues with messages that cannot be reserved now
--
-- The best job has the lowest priority, and among equals it was put first. Messages of a list count as put at
-- the beginning, with the default priority (jobs.lua).

local DEFAULT_PRIORITY = 1024
-- Milliseconds after which a group is looked at again (groups.lua).
local GROUP_LOOK = 1000

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local best, priority, made = 0, math.huge, math.huge
local due, overdue, paused, stuck = math.huge, {}, {}, {}

-- Note when the first job of this set becomes ready. Return whether it is time.
local function look_at(key)
  local first = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
  if first and first > now then due = math.min(due, first) end
  return first and first <= now
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
    local is_due, is_late = look_at(delayed), look_at(reserved)
    if source then
      -- Native producers do not make jobs for groups.
      due = math.min(due, now + GROUP_LOOK)
      is_late = is_late or call('EXISTS', ready) == 0 and call('LLEN', source)
        + tonumber(call('GET', source .. ':stats:consumed_messages') or 0) > tonumber(following)
    end
    if is_due or is_late then
      overdue[#overdue + 1] = i
    elseif pause > now then
      paused[#paused + 1] = i
      due = math.min(due, pause)
    else
      local id, its_priority = unpack(call('ZRANGE', ready, 0, 0, 'WITHSCORES'))
      its_priority = tonumber(its_priority)
      local has_messages = call('LLEN', base) > 0
      if (id or has_messages) and call('EXISTS', base .. ':bound') == 0 then -- a native client deletes the queue
        id, has_messages, stuck[#stuck + 1] = nil, false, i
      elseif has_messages and not is_adoptable(base) then
        has_messages, stuck[#stuck + 1] = false, i
      end
      if has_messages then
        consider(i, math.min(its_priority or math.huge, DEFAULT_PRIORITY), 0)
      elseif id and its_priority <= priority then
        local job = call('HGET', base .. ':ext:jobs', id)
        consider(i, its_priority, tonumber(job and string.match(job, '^%d+') or 0))
      end
    end
  end
end

return {
  best, best > 0 and priority or 0, best > 0 and made or 0, due < math.huge and math.max(0, due - now) or -1,
  overdue, paused, stuck,
}
