-- Blocks: a call has one for each queue, and its reply has one value for each. First those that fast.lua does are
-- done, up to the first that it does not; the files below make their functions only if there is one (batch.lua).
--
-- Takes    KEYS[1…]                base keys of queues: those of the first block, then those of the next
--          ARGV[HEADER_SIZE + 1…]  blocks, each with its fields (layout.py) and its runs (batch.lua)
-- Returns  the fields of the reply (layout.py), then the reply of each block, or an error. If there are fewer replies
--          than blocks, the last blocks have not been done, since the call was long enough.

-- The work of a call, in microseconds as measured on one machine: of a block, of a message or argument, and of a
-- list entry that is walked over. Once a call has done so much, or answered so many bytes, no other block is begun.
-- It is not measured: inside a script, Redis 7.2 has no clock that moves.
local FAST_BLOCK, BLOCK, MESSAGE, ENTRY = 6, 25, 0.5, 0.005
local MOST_WORK, MOST_ANSWERED = 2000, 1048576

local next_key, next_argument = 1, HEADER_SIZE + 1
local work = 0
local answered_in_call = 0
local is_shared = false -- whether the call has several blocks

-- Begins the next block. Returns false if there is none.
local function next_block()
  if next_argument > #ARGV then
    return false
  end
  local at = next_argument
  local first = at + BLOCK_SIZE
  block.home, block.how = KEYS[next_key], ARGV[at + BLOCK_HOW]
  block.first, block.last = first, first + tonumber(ARGV[at + BLOCK_ARGUMENTS]) - 1
  next_key, next_argument = next_key + tonumber(ARGV[at + BLOCK_KEYS]), block.last + 1
  changed, patient, block.is_moving = false, true, false
  return true
end

-- Whether blocks that have not been begun are for the next call.
local function is_long_enough()
  return work > MOST_WORK or answered_in_call > MOST_ANSWERED
end

-- The text of an error as Redis would reply with it: pcall gives a table or a string, which may say where it was.
local function error_text(reason)
  local text = type(reason) == 'table' and reason.err or tostring(reason)
  local reply = string.gsub(string.gsub(text, '^@?user_script:%s*%d+:%s*', ''), '^%-', '')
  return string.match(reply, '^%u[%u%d_]* ') and reply or 'ERR ' .. text
end

-- An error that ended a block, as its reply.
local function error_reply(reason)
  return { err = error_text(reason) }
end
