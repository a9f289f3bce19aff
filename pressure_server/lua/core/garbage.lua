-- Garbage: large collections of deleted queues. To free ten million elements stops Valkey for seconds, even in the
-- background. So such collections are set aside, and freed some elements at a time (sweep.lua).
--
-- Touches  ${PREFIX}!garbage, a set of keys ${PREFIX}!garbage:${n}, each a collection; n is ${PREFIX}!last_garbage

-- Collections with more elements are set aside.
local garbage = { LARGE = 100000 }

-- The collections of a queue by their suffixes, each with the command that tells its size.
local COLLECTIONS = {
  [':ext:members'] = 'SCARD', [':ext:copies'] = 'HLEN', [':ext:marks'] = 'HLEN', [':ext:jobs'] = 'HLEN',
  [':ext:ready'] = 'ZCARD', [':ext:unadopted'] = 'ZCARD', [':ext:delayed'] = 'ZCARD', [':ext:reserved'] = 'ZCARD', [':ext:buried'] = 'ZCARD',
  [':ext:equal'] = 'ZCARD', [':ext:single'] = 'ZCARD',
  [':ext:offsets'] = 'ZCARD', [':ext:outcomes'] = 'HLEN', [':ext:outcome_times'] = 'ZCARD',
}

-- Set aside the queue's large collections with these suffixes, or all large ones if no suffix is given.
function garbage.set_aside(...)
  local registry = call('HGET', queue.base .. ':ext:settings', 'registry')
  if not registry then
    return
  end
  local sizes = ... and {} or COLLECTIONS
  for _, suffix in ipairs({ ... }) do sizes[suffix] = COLLECTIONS[suffix] end
  for suffix, command in pairs(sizes) do
    local size = try(command, queue.base .. suffix)
    if type(size) == 'number' and size > garbage.LARGE then
      local set, last = string.gsub(registry, 'queues$', 'garbage'), string.gsub(registry, 'queues$', 'last_garbage')
      local key = string.format('%s:%.0f', set, call('INCR', last))
      call('RENAME', queue.base .. suffix, key)
      call('SADD', set, key)
    end
  end
end

-- Set aside all large collections of a queue that is deleted. A queue with few puts has none.
function garbage.set_all_aside()
  local produced = call('GET', queue.base .. ':stats:produced_messages')
  if not produced or (tonumber(produced) or 0) > garbage.LARGE then
    garbage.set_aside()
  end
end

return garbage
