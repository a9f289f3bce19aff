-- Templates: the settings of queues that puts create, by the queue's name.
--
-- Takes    ARGV[HEADER_TEMPLATES]  '' for none; or a list of templates, packed by queues/templates.py. Each is the parts
--                                  between the stars of a pattern of base keys, as patterns of Lua; then the arguments
--                                  of `life.create`
--          ARGV[HEADER_BOUND]      the bound of a queue that no template matches

local the_call = require 'core/call'
local queue = require 'core/queue'
local life = require 'core/life'

local templates = {}

-- Return whether the parts are in the key in this order. The first match of each is taken: a later one cannot help.
local function matches(key, parts)
  local last = 0
  for _, part in ipairs(parts) do
    _, last = string.find(key, part, last + 1)
    if not last then
      return false
    end
  end
  return true
end

-- Create the queue for a put: with the first template that matches, or with the defaults. Return as `life.create`.
function templates.create()
  local packed = the_call.arguments[HEADER_TEMPLATES]
  for _, template in ipairs(packed ~= '' and cmsgpack.unpack(packed) or {}) do
    if matches(queue.base, template[1]) then
      return life.create(unpack(template, 2))
    end
  end
  return life.create(the_call.arguments[HEADER_BOUND], the_call.overflow, true)
end

return templates
