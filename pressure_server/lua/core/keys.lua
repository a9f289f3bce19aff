-- The keys of a queue: those of the protocol (life.lua depends on their order), and those of pressure-server.
--
-- To free ten million elements stops Valkey for seconds, even in the background. So large collections of deleted queues
-- are set aside as garbage, and freed some elements at a time (sweep.lua).
--
-- Touches  ${PREFIX}!garbage, a set of keys ${PREFIX}!garbage:${n}, each a collection; n is ${PREFIX}!last_garbage

local keys = {
  LARGE = 100000, -- collections with more elements are set aside
  of_protocol = {
    '', ':bound', ':producer', ':consumer', ':producer_free', ':consumer_free', ':not_full', ':closed',
    ':stats:produced_messages', ':stats:produced_bytes', ':stats:consumed_messages', ':stats:consumed_bytes',
  },
  of_extensions = {
    ':ext:members', ':ext:copies', ':ext:index', ':ext:settings', ':ext:producer_turn', ':ext:consumer_turn',
    ':ext:made', ':ext:marks', ':ext:waiting',
    ':ext:jobs', ':ext:due', ':ext:ready', ':ext:delayed', ':ext:reserved', ':ext:buried', ':ext:unadopted', ':ext:equal', ':ext:single', ':ext:blocks',
    ':ext:outcomes', ':ext:outcome_times', ':ext:groups', ':ext:offsets',
  },
}

function keys.with(suffixes)
  local found = {}
  for i, suffix in ipairs(suffixes) do found[i] = queue.base .. suffix end
  return found
end

-- By its type, the command that tells the size of a collection.
local SIZE_OF = { set = 'SCARD', hash = 'HLEN', zset = 'ZCARD' }

-- Set aside the large ones of the queue's collections with these suffixes.
function keys.set_aside(suffixes)
  local registry = call('HGET', queue.base .. ':ext:settings', 'registry')
  for _, suffix in ipairs(registry and suffixes or {}) do
    local command = SIZE_OF[call('TYPE', queue.base .. suffix).ok]
    if command and call(command, queue.base .. suffix) > keys.LARGE then
      local set, last = string.gsub(registry, 'queues$', 'garbage'), string.gsub(registry, 'queues$', 'last_garbage')
      local key = string.format('%s:%.0f', set, call('INCR', last))
      call('RENAME', queue.base .. suffix, key)
      call('SADD', set, key)
    end
  end
end

-- Set aside all large collections of a queue that is deleted. A queue with few puts has none.
function keys.set_all_aside()
  local produced = call('GET', queue.base .. ':stats:produced_messages')
  if not produced or (tonumber(produced) or 0) > keys.LARGE then keys.set_aside(keys.of_extensions) end
end

return keys
