-- First jobs: reads the first job of each of many queues, and changes nothing. A script of its own.
--
-- Takes    KEYS[1…]  base keys of queues
-- Returns  for each queue 0 if it has no job, or only buried ones, and is open; otherwise a list:
--          1 if it is the queue of a group, 2 if it is closed, or a native client holds the role that its messages need,
--          else 0; in how many milliseconds its next delay, reservation or pause ends, -1 for never, 0 if one has ended
--          but the library has not noticed it yet; and if a job can be reserved, the priority of the first one, and when
--          that was put, in microseconds
--
-- Messages of a list count as put before all jobs, with the default priority (layout.py).
-- Touches  the keys in first_jobs.py, :ext:offsets, :ext:made, :ext:jobs, and the log of a group

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Return the score of the first job of this set; inf if there is none.
local function first_score(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- Takes    the base key, and the field 'policy' of the queue's settings, or false (kinds/policy.lua)
-- Returns  whether no further job may be in flight; and until when the rate allows none, 0 if it allows one
local function limits_of(base, policy)
  local in_flight, count, time = string.match(policy or '0 0 0 0 0', '(%d+) (%d+) (%d+)$')
  local is_used_up = in_flight ~= '0' and call('ZCARD', base .. ':ext:reserved') >= tonumber(in_flight)
  local full_at = count ~= '0' and tonumber(call('HGET', base .. ':ext:settings', 'rate_until') or 0) or 0
  -- If the backend's clock has gone back, the library must have a look.
  return is_used_up, count ~= '0' and full_at <= now + time and math.ceil(full_at - time + time / count) or 0
end

-- Return whether messages of the list can be reserved: while a native client holds the consumer role, queues of jobs and
-- of distinct messages do not adopt them.
local ADOPTS = { jobs = true, lifo = true, random = true }
local function is_adoptable(base)
  return call('EXISTS', base .. ':consumer_free') == 1
    or not ADOPTS[string.match(call('GET', base .. ':ext:made') or '', ' (%l+)$')]
end

-- Return whether the log has messages for which its group has no jobs yet.
local function has_messages_ahead(source, following)
  return call('LLEN', source) + tonumber(call('GET', source .. ':stats:consumed_messages') or 0) > tonumber(following)
end

-- Return whether messages need a role that a native client holds; and if a job can be reserved, the priority of the
-- first one, and when it was put.
local function first_of(base, ready, source, following)
  local id, priority = unpack(call('ZRANGE', ready, 0, 0, 'WITHSCORES'))
  local job = id and call('HGET', base .. ':ext:jobs', id)
  priority = id and not job and JOB_DEFAULT_PRIORITY or tonumber(priority) -- of a message of kinds/distinct.lua
  local there = call('EXISTS', base, base, base .. ':ext:unadopted') -- the sum tells which
  local has_messages, has_unadopted = there >= 2, there % 2 == 1
  if has_unadopted or has_messages and is_adoptable(base) or source and has_messages_ahead(source, following) then
    return false, math.min(priority or math.huge, JOB_DEFAULT_PRIORITY), 0
  end
  if id then return has_messages, priority, tonumber(job and string.match(job, '^%d+') or 0) end
  return has_messages
end

local seen = {}
for i, base in ipairs(KEYS) do
  local ready, delayed, reserved = base .. ':ext:ready', base .. ':ext:delayed', base .. ':ext:reserved'
  local is_closed = call('EXISTS', base .. ':closed') == 1
  seen[i] = is_closed and { 2, -1 } or 0
  if call('EXISTS', base, ready, delayed, reserved, base .. ':ext:unadopted', base .. ':ext:offsets') > 0 then
    local pause, source, following, policy = unpack(call('HMGET', base .. ':ext:settings', 'paused', 'source', 'next', 'policy'))
    local is_used_up, following_token = limits_of(base, policy)
    pause = math.max(tonumber(pause or 0), call('EXISTS', ready) == 1 and following_token or 0)
    local due = math.min(first_score(delayed), first_score(reserved), pause > now and pause or math.huge)
    local is_late = due <= now
    local is_held, priority, made
    -- Without :bound, a native client is deleting the queue.
    if not is_late and pause <= now and not is_used_up and call('EXISTS', base .. ':bound') == 1 then
      is_held, priority, made = first_of(base, ready, source, following)
    end
    seen[i] = { source and 1 or (is_closed or is_held) and 2 or 0, is_late and 0 or due < math.huge and due - now or -1,
      priority, made }
  end
end

return seen
