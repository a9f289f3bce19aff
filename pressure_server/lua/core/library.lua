-- The functions of the library: a call is begun, its blocks are done, and its record is written.
--
-- Redis refuses a function as a whole if it may not write. So there are three, and a server whose call of the first is
-- refused calls another (lua/scripts.py): LIBRARY_full if the backend is out of memory, or LIBRARY_read if it accepts
-- no writes. These have one argument more: the backend's refusal.

require 'core/call'
require 'core/blocks'
require 'core/commands'
require 'core/queue'
local records = require 'core/records'
local recovery = require 'core/recovery'
local batch = require 'core/batch'
local fast = require 'core/fast'
require 'kinds/list'
require 'kinds/log'
require 'kinds/job_queue'
require 'kinds/distinct'

-- The functions that do a block on the general path, by its `how`.
local ways = { recover = recovery.recover, cut = recovery.cut }

-- Do the blocks from the present one on, which needs the general path.
local function do_rest()
  local replies, is_left = the_call.replies, true
  while is_left do
    block.begin_runs()
    local is_done, answered = pcall(ways[block.how] or batch.do_block)
    the_call.changed = the_call.changed or block.changed
    replies[#replies + 1] = is_done and answered or the_call.error_reply(answered)
    the_call.work = the_call.work + the_call.BLOCK
    is_left = not the_call.is_long_enough() and block.next() and fast.do_blocks()
  end
  recovery.save()
end

-- The byte at the end of the limits if the backend stores too many bytes (life.lua), and the error then.
local EXCLAMATION, STORED = 33, 'OOM the backend stores more than --max-stored-bytes: take or delete messages first'

local function do_call(keys, arguments, full, refusal)
  local is_above = string.byte(arguments[HEADER_LIMITS], -1) == EXCLAMATION
  the_call.begin(keys, arguments, is_above and STORED or full, refusal)
  local refused = records.begin()
  if refused then return refused end
  block.begin()
  if block.next() and fast.do_blocks() then do_rest() end
  return records.finish()
end

local function call_full(keys, arguments)
  table.remove(arguments)
  return do_call(keys, arguments, "OOM command not allowed when used memory > 'maxmemory'.")
end

local function call_read(keys, arguments)
  return do_call(keys, arguments, nil, table.remove(arguments))
end

redis.register_function('LIBRARY', function(keys, arguments) return do_call(keys, arguments) end)
redis.register_function({ function_name = 'LIBRARY_full', callback = call_full, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'LIBRARY_read', callback = call_read, flags = { 'no-writes' } })
