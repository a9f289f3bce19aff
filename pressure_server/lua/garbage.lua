-- Garbage: large collections of deleted queues. To free ten million elements stops Valkey for seconds, even in the
-- background, so they are set aside and freed some at a time (sweep.lua).
--
-- Touches  ${PREFIX}!garbage        a set: the keys below
--          ${PREFIX}!garbage:${n}   a collection; n is ${PREFIX}!last_garbage

-- Collections with more elements are set aside.
local LARGE = 100000

-- Set aside the large ones of the present queue's collections with these suffixes, each with the command that tells
-- its size.
function set_aside(sizes)
  local settings = base .. ':ext:settings'
  local registry = call('HGET', settings, 'registry')
  for suffix, command in pairs(registry and sizes or {}) do
    local size = try(command, base .. suffix)
    if type(size) == 'number' and size > LARGE then
      local garbage = string.gsub(registry, 'queues$', 'garbage')
      local last = string.gsub(registry, 'queues$', 'last_garbage')
      local key = string.format('%s:%.0f', garbage, call('INCR', last))
      call('RENAME', base .. suffix, key)
      call('SADD', garbage, key)
    end
  end
end

-- Do so with all collections of the queue that is deleted, unless too few messages have ever been put into it.
local function set_all_aside()
  local produced = call('GET', base .. ':stats:produced_messages')
  if produced and (tonumber(produced) or 0) <= LARGE then
    return
  end
  set_aside({
    [':ext:members'] = 'SCARD', [':ext:copies'] = 'HLEN', [':ext:marks'] = 'HLEN', [':ext:jobs'] = 'HLEN',
    [':ext:ready'] = 'ZCARD', [':ext:delayed'] = 'ZCARD', [':ext:reserved'] = 'ZCARD', [':ext:buried'] = 'ZCARD',
    [':ext:equal'] = 'ZCARD', [':ext:single'] = 'ZCARD', [':ext:same'] = 'HLEN', [':ext:unique'] = 'HLEN',
    [':ext:offsets'] = 'ZCARD', [':ext:outcomes'] = 'HLEN', [':ext:outcome_times'] = 'ZCARD',
  })
end
