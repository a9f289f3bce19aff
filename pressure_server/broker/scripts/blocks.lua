-- Blocks: a call has one for each queue, and its reply has one value for each. First those that fast.lua does are
-- done, up to the first that it does not; the files below make their functions only if there is one (batch.lua).
--
-- Takes    KEYS[1…]  base keys of queues: those of the first block, then those of the next
--          ARGV[4…]  blocks: how many keys it has, how many arguments its runs have, three values that say how the
--                    answer is kept (calls.lua), and runs (batch.lua)
-- Returns  for each block its reply, or an error; nil for one that has not been done, since the call is long enough

-- Seconds since the clock was first looked at, and bytes that were answered, after which no other block is begun.
local LONGEST, MOST_ANSWERED = 0.002, 1048576
-- Blocks between looks at the clock, which take as long as the smallest block.
local LOOK_EVERY = 8

local replies, next_key, next_argument = {}, 1, 4
local began -- when the clock was first looked at
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

-- Seconds. Redis has os.clock from 7.2 on, and before that a TIME that goes on while a script runs.
local function stopwatch()
  local has_clock, seconds = pcall(function() return os.clock() end)
  if has_clock then
    return seconds
  end
  local time = call('TIME')
  return time[1] + time[2] / 1000000
end

-- Whether the call has been long enough for blocks that have not been begun.
local function is_long_enough()
  if #replies % LOOK_EVERY == 0 then
    local now = stopwatch()
    began = began or now
    return answered_in_call > MOST_ANSWERED or now - began > LONGEST
  end
  return answered_in_call > MOST_ANSWERED
end

-- An error that ended a block, as a reply.
local function error_reply(reason)
  return type(reason) == 'table' and { err = reason.err } or { err = 'ERR ' .. tostring(reason) }
end
