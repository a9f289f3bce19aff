-- Blocks: a call has one for each queue, and its reply one value for each. fast.lua does those that it can do, and
-- batch.lua the others.
--
-- Takes    KEYS[1…]                base keys of queues: those of the first block, then those of the next
--          ARGV[HEADER_SIZE + 1…]  blocks, each with its fields (layout.py) and its runs (batch.lua)
-- Returns  the fields of the reply (layout.py), then a reply or an error for each block. Fewer replies than
--          blocks: the call became too long, and the remaining blocks have not been done

-- The estimated work of a call, in microseconds measured on one machine: for each block, message or argument,
-- and list entry walked over. Above MAX_WORK, or MAX_ANSWERED bytes of replies, the call begins no further
-- block. The work is estimated because the clock of Redis 7.2 stands still inside a script.
local FAST_BLOCK, BLOCK, MESSAGE, ENTRY = 6, 25, 0.5, 0.005
local MAX_WORK, MAX_ANSWERED = 2000, 1048576

local next_key, next_argument
local work
local answered_in_call
local write_refusal -- why the backend accepts no writes, if this call only reads (call.lua)
local is_shared -- whether the call has several blocks

-- Begin the next block. Return false if there is none.
local function next_block()
  if next_argument > #ARGV then
    return false
  end
  local at = next_argument
  local first = at + BLOCK_SIZE
  block.home, block.how = KEYS[next_key], ARGV[at + BLOCK_HOW]
  block.first, block.last = first, first + tonumber(ARGV[at + BLOCK_ARGUMENTS]) - 1
  next_key, next_argument = next_key + tonumber(ARGV[at + BLOCK_KEYS]), block.last + 1
  changed, patient, block.is_moving, block.promoted = false, true, false, {}
  return true
end

-- Return whether the remaining blocks are left for the next call.
local function is_long_enough()
  return work > MAX_WORK or answered_in_call > MAX_ANSWERED
end

-- Return the text of an error as Redis would reply it. pcall gives a table, or a string with a position.
local function error_text(reason)
  local text = type(reason) == 'table' and reason.err or tostring(reason)
  if write_refusal and string.find(text, 'Write commands are not allowed', 1, true) then
    return write_refusal
  end
  local reply = string.gsub(string.gsub(text, '^@?user_function:%s*%d+:%s*', ''), '^%-', '')
  return string.match(reply, '^%u[%u%d_]* ') and reply or 'ERR ' .. text
end

-- Return the reply of a block that an error has ended.
local function error_reply(reason)
  return { err = error_text(reason) }
end
