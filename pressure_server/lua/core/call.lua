-- The call: its header, its work so far, the contents of its record, its clock and its errors.
--
-- Takes    KEYS and ARGV (layout.py); the last key is the server's records, if it has any (records.lua)
-- Returns  one table, filled in `begin`. The library's variables live on from call to call, but nothing may be left of an
--          earlier call that an error ended

-- The estimated work of a call, in microseconds measured on one machine: for each block, message or argument, byte of a
-- job, and list entry walked over. (The clock of Redis 7.2 stands still inside a script.)
the_call = { FAST_BLOCK = 6, BLOCK = 25, MESSAGE = 0.5, BYTE = 0.002, ENTRY = 0.005, MAX_WORK = 2000 }
local MAX_ANSWERED = 1048576

-- Begin a call. `full` is the backend's error if it is out of memory, `refusal` if it accepts no writes.
function the_call.begin(keys, arguments, full, refusal)
  call, try = redis.call, redis.pcall
  the_call.keys, the_call.arguments = keys, arguments
  the_call.identity, the_call.overflow = arguments[HEADER_IDENTITY], arguments[HEADER_OVERFLOW]
  the_call.records, the_call.is_server = keys[#keys], nil -- see has_records
  the_call.is_recorded = arguments[HEADER_NUMBER] ~= ''
  the_call.full, the_call.refusal = full, refusal
  the_call.work, the_call.answered = 0, 0
  the_call.now, the_call.microseconds = nil, nil
  the_call.stamped = nil -- the last stamp of a job (job_ids.lua)
  the_call.hashed, the_call.hash = nil, nil -- the last text that has been hashed (job_index.lua)
  -- For the record (records.lua):
  the_call.changed = false
  the_call.replies, the_call.entries = { 0 }, {}
  the_call.reserved = {} -- jobs that the call has reserved
  the_call.changed_records = {} -- records of other calls (recovery.lua): number -> their entries
end

-- Return whether the call leaves the remaining blocks for the next one.
function the_call.is_long_enough()
  return the_call.work > the_call.MAX_WORK or the_call.answered > MAX_ANSWERED
end

-- Return whether the caller has records. The doctor has none: its calls promote due jobs, but adopt no messages.
function the_call.has_records()
  if the_call.is_server == nil then
    the_call.is_server = string.sub(the_call.records, -#the_call.identity) == the_call.identity
  end
  return the_call.is_server
end

-- Return the key ${PREFIX}!name, which belongs to no queue.
function the_call.own_key(name)
  return string.sub(the_call.records, 1, -1 - #'calls:' - #the_call.identity) .. name
end

-- Return the milliseconds since 1970 by the backend's clock, at the time when the call first asks.
function the_call.clock()
  if not the_call.now then
    local time = call('TIME')
    the_call.now = time[1] * 1000 + math.floor(time[2] / 1000)
    the_call.microseconds = time[1] * 1000000 + time[2]
  end
  return the_call.now
end

-- Return the text of an error as Redis would reply it. pcall gives a table, or a string with a position.
function the_call.error_text(reason)
  local text = type(reason) == 'table' and reason.err or tostring(reason)
  if the_call.refusal and string.find(text, 'Write commands are not allowed', 1, true) then
    return the_call.refusal
  end
  local reply = string.gsub(string.gsub(text, '^@?user_function:%s*%d+:%s*', ''), '^%-', '')
  return string.match(reply, '^%u[%u%d_]* ') and reply or 'ERR ' .. text
end

function the_call.error_reply(reason)
  return { err = the_call.error_text(reason) }
end
