-- Blocks: a call has one for each queue, and its reply has one value for each.
--
-- Takes    KEYS[1…]                base keys of queues: those of the first block, then those of the next
--          ARGV[HEADER_SIZE + 1…]  blocks, each with its fields (layout.py) and its runs (batch.lua)
-- Returns  one table: the block that the call is doing, filled in `next`, and for the general path in `begin_runs`

block = {}
local next_key, next_argument

-- Prepare the call's first block.
function block.begin()
  next_key, next_argument = 1, HEADER_SIZE + 1
  block.taken, block.taken_marks, block.popped = {}, {}, {}
end

-- Begin the next block. Return false if there is none.
function block.next()
  local arguments, at = the_call.arguments, next_argument
  if at > #arguments then return false end
  local first = at + BLOCK_SIZE
  block.home, block.how = the_call.keys[next_key], arguments[at + BLOCK_HOW]
  block.first, block.last = first, first + tonumber(arguments[at + BLOCK_ARGUMENTS]) - 1
  next_key, next_argument = next_key + tonumber(arguments[at + BLOCK_KEYS]), block.last + 1
  block.changed = false -- whether the block has changed anything, so that it must not be done twice
  if #block.taken > 0 then block.taken = {} end -- what has been taken (records.lua)
  return true
end

-- Return whether the call has other blocks.
function block.is_shared()
  return block.first > HEADER_SIZE + 1 + BLOCK_SIZE or block.last < #the_call.arguments
end

-- Begin a run. Messages that earlier runs of the block have taken are noted, and stay taken.
function block.begin_run()
  block.reserved_before = #the_call.reserved
  if #block.popped > 0 or next(block.taken_marks) then block.taken_marks, block.popped = {}, {} end
end

-- Begin the block on the general path (batch.lua, recovery.lua).
function block.begin_runs()
  block.patient = true -- whether operations may be left undone, to wait or for another call
  block.is_moving = false -- whether a message that leaves the queue is in another one already
  block.promoted = nil -- by base key, whether more jobs are due than have been promoted (job_times.lua)
  block.left_for_others = false -- whether clients of this server were refused a message in favour of others
  block.keeps = nil -- whether the queue has ACK NEXT, if the caller did not know (get.lua)
  block.at = nil -- the place of the next run
  block.base = nil -- the queue of the next run
  block.running = nil -- the number of the run that is being done
  block.has_failed = false -- whether an error has ended a run
  block.is_ending = false -- whether no run is left to be done
  block.reply = { 0 }
  block.more = { 0 } -- later results of runs, and news for the caller
  block.waiting = {} -- runs that lack a message, or room
  block.has_taken = false -- whether the last run that takes messages got any
  block.has_takers = false -- whether runs may wait for messages
  block.answered = 0 -- bytes
  block.room_due = nil -- when a message expires that is in the way of puts (room.lua), in milliseconds since 1970
  block.begin_run()
end

-- The names of runs that have been parsed. There are few.
local names = {}

-- Return the verb of a run's name, and its options as a set of words.
function block.read_name(name)
  local about = names[name]
  if not about then
    local verb, words = string.match(name, '^(%S+) ?(.*)$')
    about = { verb, {} }
    for word in string.gmatch(words, '%S+') do about[2][word] = true end
    names[name] = about
  end
  return about[1], about[2]
end
