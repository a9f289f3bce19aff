-- Housekeeping: what is done for many queues in one call, whether or not anybody uses them. A script of its own,
-- put together of queue.lua, life.lua and this.
--
-- Takes    KEYS[1…]  base keys of queues
--          ARGV[1]   our identity
--          ARGV[2]   what to do: expire, delete or clean
--          ARGV[4]   expire: for how many seconds a queue has been unused that is deleted
--          ARGV[5]   expire: what the keys of servers begin with, as `${PREFIX}!`
-- Returns  for each queue a number, or the error that it met
-- Touches  :ext:settings  'unused' is the queue's version when it was first found so, 'since' the time, and
--          'asked' that time, when those who wait have been asked

local verbs = {}

local suffixes = protocol_suffixes()
for _, suffix in ipairs(extension_suffixes()) do suffixes[#suffixes + 1] = suffix end

-- Removes all keys of a queue; returns 1. As in life.lua, at a third of the time.
local function remove(key)
  local keys = {}
  for i, suffix in ipairs(suffixes) do keys[i] = key .. suffix end
  call('UNLINK', unpack(keys))
  return 1
end

-- Whether a client uses the queue, for all that its version says.
local function is_used(key, seconds)
  if call('EXISTS', key .. ':producer_free', key .. ':consumer_free') < 2 then
    return true
  end
  for _, role in ipairs({ 'producer', 'consumer' }) do
    -- A native client that finds nothing leaves only the trace that it has given its role back.
    local idle = try('OBJECT', 'IDLETIME', key .. ':' .. role .. '_free')
    if type(idle) == 'number' and idle < seconds then
      return true
    end
  end
  return false
end

-- Whether messages of the queue are on their way to clients of any server, from where they may come back.
local under_way -- base keys of such queues
local function is_under_way(key)
  if not under_way then
    under_way = {}
    for _, server in ipairs(call('HKEYS', ARGV[5] .. 'peers')) do
      for _, packed in ipairs(call('HVALS', ARGV[5] .. 'calls:' .. server)) do
        local is_record, record = pcall(cmsgpack.unpack, packed)
        for _, entry in ipairs(is_record and type(record) == 'table' and record[3] or {}) do
          under_way[entry[1]] = true
        end
      end
    end
  end
  return under_way[key]
end

local seconds, now = tonumber(ARGV[4]), nil
if seconds then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
end

-- Deletes a queue that a put has made, if it is empty and nobody has put, taken or waited for so long. Clients that
-- wait at other servers are asked first, at half the time: their server watches :bound, and when that is written it
-- tries again, which takes the note away (get.lua).
--
-- Returns  1 if it has been deleted, else 0
function verbs.expire(key)
  local settings = key .. ':ext:settings'
  local implicit, unused, since, asked = unpack(call('HMGET', settings, 'implicit', 'unused', 'since', 'asked'))
  if not implicit then
    return 0
  end
  local bound, produced, consumed = unpack(call('MGET', key .. ':bound', key .. ':stats:produced_messages',
    key .. ':stats:consumed_messages'))
  local version = (produced or '') .. ' ' .. (consumed or '')
  local age = since and unused == version and now - tonumber(since) or -1 -- also if the clock was set back
  local is_to_ask = asked ~= since and age >= seconds / 2
  -- Nearly always it is not time yet.
  if not bound or (age >= 0 and age < seconds and not is_to_ask)
    or call('EXISTS', key, key .. ':closed', key .. ':ext:calls') > 0 then
    return 0 -- :ext:calls: a server of version 0.1.0 may have messages of it under way
  end
  if age < 0 or (age >= seconds and is_used(key, seconds)) then
    call('HSET', settings, 'unused', version, 'since', string.format('%.3f', now))
  elseif is_to_ask then
    call('HSET', settings, 'asked', since)
    call('SET', key .. ':bound', bound)
  elseif not is_under_way(key) then
    return remove(key)
  end
  return 0
end

-- Deletes a queue whose roles are free. Returns 1; 0 if there is no such queue; -1 if a role is not free.
function verbs.delete(key)
  read_queue(key)
  if not queue.bound then
    return 0
  end
  return (in_use('producer') or in_use('consumer')) and -1 or remove(key)
end

-- Drops what we have kept of a queue that a native client has deleted. Returns how many keys these were.
function verbs.clean(key)
  read_queue(key)
  return make_life().clean()
end

local results = {}
for i, key in ipairs(KEYS) do
  local done, result = pcall(verbs[ARGV[2]], key)
  results[i] = done and result or { err = type(result) == 'table' and result.err or tostring(result) }
end
return results
