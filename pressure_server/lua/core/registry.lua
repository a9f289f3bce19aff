-- The registry: which queues servers have created, how many they may create, and how many bytes the backend may hold.
--
-- Takes    ARGV[HEADER_LIMITS]  'bytes queues': the most bytes of a queue that is created without a limit of its own,
--                               and the most queues, 0 for any number; then '!' if the backend stores too many bytes
-- Touches  :ext:settings        'registry': the key below; 'index': the key of the index of ids (job_ids.lua)
--          ${PREFIX}!queues, ${PREFIX}!due (docs/internals/keys.md)

local registry = {}

-- Enter a queue that is being created. Return an error if there are too many, else its settings in addition to its own.
function registry.add(own)
  local bytes, most = string.match(the_call.arguments[HEADER_LIMITS], '^(%d+) (%d+)')
  local key, settings = the_call.own_key('queues'), {}
  if tonumber(most) > 0 and call('SCARD', key) >= tonumber(most) then
    return { err = 'QUEUES ' .. most }
  end
  call('SADD', key, queue.base)
  settings[1], settings[2] = 'registry', key
  if bytes ~= '0' and not own.max_bytes then settings[3], settings[4] = 'max_bytes', bytes end
  return settings
end

-- Remove the queue from the registry and from the due queues.
function registry.remove()
  local key = call('HGET', queue.base .. ':ext:settings', 'registry')
  if key then
    call('SREM', key, queue.base)
    call('ZREM', (string.gsub(key, 'queues$', 'due')), queue.base)
  end
end

-- Drop the queue's blocks of ids from the index of all queues (job_ids.lua).
function registry.drop_ids()
  local index = call('HGET', queue.base .. ':ext:settings', 'index')
  local blocks = index and call('LRANGE', queue.base .. ':ext:blocks', 0, -1) or {}
  if #blocks > 0 then commands.with_all('HDEL', index, blocks) end
end

-- Return why the backend may not store more, or nil.
function registry.storage_refusal()
  return string.byte(the_call.arguments[HEADER_LIMITS], -1) == 33
    and 'OOM the backend stores more than --max-stored-bytes: take or delete messages first' or nil
end

return registry
