-- Purge: deletes messages of a queue. They count as consumed.

local room = require 'core/room'

local purge = {}

-- Delete messages in these states, some at a time. Return { how many, 1 if there are more, else 0 }, or an error.
function purge.purge(...)
  local count = 0
  for _, state in ipairs({ ... }) do
    local some, is_more = queue.kind.purge(state)
    if type(some) == 'table' then return some end
    count = count + some
    if is_more then return { count, 1 } end
  end
  if queue.bound then room.settle() end
  return { count, 0 }
end

-- Keep the messages from position `first` to `last`, as Redis's LTRIM; -1 is the newest. Return 1, or an error.
function purge.trim(first, last)
  queue.kind.adopt()
  local count, refusal = queue.length, nil
  first = math.min(count, math.max(0, first < 0 and first + count or first))
  last = math.max(first - 1, math.min(count - 1, last < 0 and last + count or last))
  if first > 0 or last < count - 1 then refusal = queue.kind.refusal_to_remove(last < count - 1) end
  if refusal then return refusal end
  queue.kind.keep(first, last)
  room.settle()
  return 1
end

return purge
