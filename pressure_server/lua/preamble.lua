-- The beginning of the library, and of each script that uses its modules (scripts.py).
--
-- A module is a file: a function that is called once, and returns a table of functions, or the state of the call, the
-- block or the queue (core/call.lua, core/blocks.lua, core/queue.lua). No module writes into the table of another,
-- except into these three.

-- redis.call; and redis.pcall for commands after the first write: a key of the wrong type (which the doctor finds) must
-- not end the call. A library gets them only when it is called.
local call, try

local modules = {}

local function require(name)
  return modules[name]
end
