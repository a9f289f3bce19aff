-- Templates: the settings of queues that puts create, by the queue's name. Calls do not carry them: the server writes
-- them with its heartbeat, before the first call of a connection, and whenever they change.
--
-- Takes    ARGV[HEADER_BOUND]  the bound of the queue; 'by name' if the server has templates
-- Touches  ${PREFIX}!peers     the server's name -> 'count timeout library templates'. They are a list, packed by
--                              queues/templates.py: of each, the parts between the stars of a pattern of base keys, as
--                              patterns of Lua; then the arguments of `life.create`. The last one matches all keys

local life = require 'core/life'

local templates = {}

-- Return whether the parts are in the key in this order. The first match of each is taken: a later one cannot help.
local function matches(key, parts)
  local last = 0
  for _, part in ipairs(parts) do
    _, last = string.find(key, part, last + 1)
    if not last then return false end
  end
  return true
end

-- Create the queue for a put, with the first template that matches. Return as `life.create`.
function templates.create()
  local bound = the_call.arguments[HEADER_BOUND]
  if bound ~= 'by name' then return life.create(bound, the_call.overflow, true) end
  local signed = call('HGET', the_call.own_key('peers'), the_call.identity)
  local packed = string.match(signed or '', '^%S+ %S+ %S+ (.+)$')
  for _, template in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if matches(queue.base, template[1]) then return life.create(unpack(template, 2)) end
  end
  return { err = 'ERR the backend has not accepted the heartbeat of the server, which has the settings of new queues' }
end

return templates
