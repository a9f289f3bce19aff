-- Blocks: a call has one for each queue, and its reply has one value for each. First those that fast.lua does are
-- done, up to the first that it does not; the files below make their functions only if there is one (batch.lua).
--
-- Takes    KEYS[1…]  base keys of queues: those of the first block, then those of the next
--          ARGV[4…]  blocks: how many keys it has, how many arguments its runs have, three values that say how the
--                    answer is kept (calls.lua), and runs (batch.lua)
-- Returns  for each block its reply, or an error; nil for one that has not been done, since the call is long enough

-- The work of a call, in microseconds as measured on one machine: of a block, of a message or argument, and of a
-- list entry that is walked over. Once a call has done so much, or answered so many bytes, no other block is begun.
-- It is not measured: inside a script, Redis 7.2 has no clock that moves.
local FAST_BLOCK, BLOCK, MESSAGE, ENTRY = 6, 25, 0.5, 0.005
local MOST_WORK, MOST_ANSWERED = 2000, 1048576

local replies, next_key, next_argument = {}, 1, 4
local work = 0
local answered_in_call = 0
local is_shared = false -- whether the call has several blocks
local out_of_memory -- the error, where the backend is

-- Begins the next block. Returns false if there is none.
local function next_block()
  if next_argument > #ARGV then
    return false
  end
  local keys, arguments = tonumber(ARGV[next_argument]), tonumber(ARGV[next_argument + 1])
  block = {
    home = KEYS[next_key], first_key = next_key, last_key = next_key + keys - 1,
    slot = ARGV[next_argument + 2], number = ARGV[next_argument + 3], how = ARGV[next_argument + 4],
    first = next_argument + 5, last = next_argument + 4 + arguments,
  }
  next_key, next_argument = block.last_key + 1, block.last + 1
  changed, patient = false, true
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
