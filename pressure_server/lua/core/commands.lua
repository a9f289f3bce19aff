-- Commands with any number of values: Redis's Lua can pass about 8000 values to one call.

commands = { CHUNK = 4000 }
local CHUNK = commands.CHUNK

-- Return a part of a list as a new one.
function commands.slice(list, first, last)
  if last - first < CHUNK then return { unpack(list, first, last) } end
  local slice = {}
  for i = first, last do slice[i - first + 1] = list[i] end
  return slice
end

-- Iterate over the parts of a list, of at most `size` values each.
function commands.parts(list, size)
  local first = 1 - size
  return function()
    first = first + size
    return first <= #list and commands.slice(list, first, math.min(first + size - 1, #list)) or nil
  end
end

function commands.reversed(list)
  local found, n = {}, #list
  for i = 1, n do found[i] = list[n + 1 - i] end
  return found
end

-- Run `command key value…`; return the sum of the replies.
function commands.with_all(command, key, values)
  if #values <= CHUNK then return call(command, key, unpack(values)) end
  local sum = 0
  for part in commands.parts(values, CHUNK) do sum = sum + call(command, key, unpack(part)) end
  return sum
end

-- Run `command key name…`, unless there are no names; return the list of the values.
function commands.values_of(command, key, names)
  local count = #names
  if count <= CHUNK then return count > 0 and call(command, key, unpack(names)) or {} end
  local found = {}
  for part in commands.parts(names, CHUNK) do
    for _, value in ipairs(call(command, key, unpack(part))) do found[#found + 1] = value end
  end
  return found
end

-- Return the bytes of messages; false stands for a message of a log that is gone.
function commands.sum_of_bytes(messages)
  local bytes = 0
  for i = 1, #messages do bytes = bytes + #(messages[i] or '') end
  return bytes
end
