-- A call: the functions of the library, and the variables of one call.
--
-- The library's variables live on from call to call, so `start` gives all those of a call their values: whatever an
-- earlier call was doing when an error ended it, nothing of that is left.
--
-- Redis refuses a function as a whole if it may not write. So there are three, and a server that is refused by the
-- first calls another (backend/channel.py):
--   do_call    does anything
--   call_full  does what needs no memory, when the backend is out of memory
--   call_read  only reads, when the backend accepts no writes
-- The last two have one argument more: the backend's refusal.

local function start(keys, arguments, is_out_of_memory, refusal)
  KEYS, ARGV, call, try = keys, arguments, redis.call, redis.pcall
  -- queue.lua
  identity, default_overflow = ARGV[HEADER_IDENTITY], ARGV[HEADER_OVERFLOW]
  block, changed, patient = { how = '' }, false, true
  -- blocks.lua
  next_key, next_argument, work, answered_in_call, is_shared = 1, HEADER_SIZE + 1, 0, 0, false
  write_refusal = refusal
  -- records.lua
  records = KEYS[#KEYS]
  has_records = string.sub(records, -#identity) == identity
  is_recorded = ARGV[HEADER_NUMBER] ~= ''
  replies, entries, call_changed = { 0 }, {}, false
  reserved, reserved_before = {}, 0
  out_of_memory = storage_refusal()
    or is_out_of_memory and "OOM command not allowed when used memory > 'maxmemory'." or nil
  taken, taken_marks, popped, changed_records = {}, {}, {}, {}
  -- mirror.lua, marks.lua, waiting.lua, job_ids.lua
  mirror, now, left_for_others, stamped = nil, nil, nil, nil
end

-- Do the blocks from the present one on, which needs the general path.
local function do_rest()
  local is_left = true
  while is_left do
    local on_records = (block.how == 'recover' or block.how == 'cut') and recovery[block.how]
    reply = nil
    local is_done, answered = pcall(on_records or do_block)
    if not is_done then
      recovery.undo(popped, reserved_before)
    end
    if not is_done and reply and #reply > 1 then
      -- The runs have been done, and only what follows them has failed.
      leave_after_error()
      is_done, answered = true, answer(true)
    end
    call_changed = call_changed or changed
    replies[#replies + 1] = is_done and answered or error_reply(answered)
    work = work + BLOCK
    is_left = not is_long_enough() and next_block() and do_while_fast()
  end
  if next(changed_records) then
    recovery.save()
  end
end

local function do_call_with(keys, arguments, is_out_of_memory, refusal)
  start(keys, arguments, is_out_of_memory, refusal)
  local refused = begin_call()
  if refused then
    return refused
  end
  is_shared = next_block() and next_argument <= #ARGV
  if next_argument > HEADER_SIZE + 1 and do_while_fast() then
    do_rest()
  end
  local reply_of_call, unrecorded = end_call()
  if not reply_of_call then
    recovery.undo(entries, 0)
  end
  return reply_of_call or unrecorded
end

local function do_call(keys, arguments)
  return do_call_with(keys, arguments, false, nil)
end

local function call_full(keys, arguments)
  table.remove(arguments)
  return do_call_with(keys, arguments, true, nil)
end

local function call_read(keys, arguments)
  return do_call_with(keys, arguments, false, table.remove(arguments))
end

redis.register_function('LIBRARY', do_call)
redis.register_function({ function_name = 'LIBRARY_full', callback = call_full, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'LIBRARY_read', callback = call_read, flags = { 'no-writes' } })
