-- Housekeeping: tasks for many queues in one call, used or not. A script of its own, with modules of the library.
--
-- Takes    KEYS[1…]  base keys of queues
--          ARGV[1]   this server's identity
--          ARGV[2]   the task: expire, delete or clean
--          ARGV[4]   expire: the seconds after which an unused queue that a put has created is deleted, 0 for never
--          ARGV[5]   the prefix of the servers' keys, `${PREFIX}!`
-- Returns  a number or an error for each queue
-- Touches  :ext:settings  'unused': the queue's version when it was first found unused; 'since': the time;
--                         'asked': the same time, once waiting clients have been asked

require 'core/call'
require 'core/blocks'
require 'core/commands'
require 'core/queue'
local keys = require 'core/keys'
local life = require 'core/life'

call, try = redis.call, redis.pcall
the_call.identity = ARGV[1]

local verbs = {}

-- Delete all keys of a queue; return 1.
local function remove(key)
  queue.base = key
  life.forget()
  call('UNLINK', unpack(keys.with(keys.of_protocol)))
  return 1
end

-- Return whether a client uses the queue, although its version has not changed.
local function is_used(key, seconds)
  if call('EXISTS', key .. ':producer_free', key .. ':consumer_free') < 2 then return true end
  for _, role in ipairs({ 'producer', 'consumer' }) do
    -- A native client that finds no message changes only one key: it gives its role back.
    local idle = try('OBJECT', 'IDLETIME', key .. ':' .. role .. '_free')
    if type(idle) == 'number' and idle < seconds then return true end
  end
  return false
end

-- Return whether messages of the queue are on their way to clients of any server, so that they may be put back.
local under_way -- a set of such queues, by base key
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

-- Return whether this is the queue of a group, and its log has messages that the group has not read.
local function has_messages_ahead(key)
  local source, following = unpack(call('HMGET', key .. ':ext:settings', 'source', 'next'))
  local consumed = source and call('GET', source .. ':stats:consumed_messages') or 0
  return source and call('LLEN', source) + consumed > tonumber(following or 0)
end

local default_seconds, now = tonumber(ARGV[4]), nil
if default_seconds then
  local time = call('TIME')
  now = time[1] + time[2] / 1000000
end

-- Delete a queue that a put created, or that has a time to live, if it is empty and no client has put, taken or waited
-- for that time (docs/internals/keys.md#expiry). Return 1 if the queue has been deleted, else 0.
function verbs.expire(key)
  local settings = key .. ':ext:settings'
  local implicit, unused, since, asked, ttl = unpack(call('HMGET', settings, 'implicit', 'unused', 'since', 'asked', 'ttl'))
  local seconds = tonumber(ttl or nil) or implicit and default_seconds or 0
  if seconds == 0 then return 0 end
  local bound, produced, consumed = unpack(call('MGET', key .. ':bound', key .. ':stats:produced_messages',
    key .. ':stats:consumed_messages'))
  local version = (produced or '') .. ' ' .. (consumed or '')
  local age = since and unused == version and now - tonumber(since) or -1 -- also negative if the clock went back
  local is_to_ask = asked ~= since and age >= seconds / 2
  -- In most cases the time has not come yet.
  if not bound or (age >= 0 and age < seconds and not is_to_ask)
    or call('EXISTS', key, key .. ':closed', key .. ':ext:jobs', key .. ':ext:ready', key .. ':ext:unadopted',
      key .. ':ext:groups') > 0 then
    return 0
  end
  if age < 0 or (age >= seconds and is_used(key, seconds)) then
    call('HSET', settings, 'unused', version, 'since', string.format('%.3f', now))
  elseif is_to_ask then
    call('HSET', settings, 'asked', since)
    call('SET', key .. ':bound', bound)
  elseif not (is_under_way(key) or has_messages_ahead(key)) then
    return remove(key)
  end
  return 0
end

-- Delete a queue whose roles are free. Return 1; 0 if there is no such queue; -1 if a role is not free.
function verbs.delete(key)
  queue.read(key)
  if not queue.bound then return 0 end
  return (queue.in_use('producer') or queue.in_use('consumer')) and -1 or remove(key)
end

-- Delete the extension keys of a queue that a native client has deleted. Return how many there were.
function verbs.clean(key)
  queue.read(key)
  if not queue.bound then call('SREM', ARGV[5] .. 'queues', key) end
  return life.clean()
end

local results = {}
for i, key in ipairs(KEYS) do
  local done, result = pcall(verbs[ARGV[2]], key)
  results[i] = done and result or { err = type(result) == 'table' and result.err or tostring(result) }
end
return results
