-- The beginning of the library, and of each script that uses its modules (scripts.py).
--
-- A module is a file: a function that is called once, and returns a table of functions. No module writes into the table
-- of another, except into these three:

-- The state of the call, of the block and of the queue, which core/call.lua, core/blocks.lua and core/queue.lua fill.
local the_call, block, queue

-- redis.call; and redis.pcall for commands after the first write: a key of the wrong type (which the doctor finds) must
-- not end the call. A library gets them only when it is called. Commands with many values: core/commands.lua.
local call, try, commands

local modules = {}

local function require(name) return modules[name] end
