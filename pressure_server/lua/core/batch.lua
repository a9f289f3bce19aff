-- Batches: does blocks on the general path. A block has runs of equal operations, done one after the other.
--
-- Takes    ARGV[block.first…block.last]  runs: a name (a verb, and words for its options), a count, and as
--                                        many arguments
-- Returns  how many units of the last run (messages, or commands of a put) are left: the caller sends these,
--          and the runs after them, again. 0: none. -1: none, and the queue has a bound or a limit of bytes, so puts
--          may wait. -2: none, and there is no queue. Then a result for each run that was done: an error if the run is
--          refused (NOQUEUE, EXISTS, CLOSED, INUSE role holder, CREATING, DELETING) and nothing of it has been done; a
--          list with errors if some of its units are refused. If there is no result, many jobs are due at once, or
--          many messages become jobs: the caller sends the runs again
--
-- An error ends and refuses a run, and the messages that it has taken go back. Earlier runs are done, and keep their
-- results. Later runs are left for the next call; in a transaction they are done (docs/internals/recovery.md).
--
-- Runs that lack a message or room wait within the call. After each later run that has changed the queue they are
-- tried again, first come, first served. If they get further, or if there is news for the caller, the first value of
-- the reply is { left, run, result, run, result, … }. Runs count from 1; run 0 is news:
--   producer, consumer  a native client holds this role, and waiting runs need it
--   others              messages were left for clients of other servers (waiting.lua)
--   due                 the milliseconds until there may be another job, -1 for never, and :ext:due (job_times.lua)
--   room                the milliseconds until a message expires that is in the way of puts; not in a transaction
--   source              the queue is a group's: the bytes by which its name is longer than its log's (groups.lua); not
--                       in a transaction
--   limited             the queue has policies, so jobs may be ready although runs wait (kinds/policy.lua)
--   keeps               1 if pops must reserve, 0 if they must not; they have taken nothing (get.lua)
--
-- Three names are not operations and have no result. They make a transaction of the runs that follow:
--   on         switch to the queue of that base key; from here on no run waits
--   unchanged  refuse the whole block with CHANGED unless the queue has this version
--   free       refuse the whole block with INUSE if a role is named that is held and needed
-- The reply of a refused block is { 'refused', base key, error }: nothing has been done. The error is DUE if many
-- jobs are due, or many messages must be adopted, at once: the caller sends the block again.

local room = require 'core/room'
local records = require 'core/records'
local waiting = require 'core/waiting'
local recovery = require 'core/recovery'
local verbs = require 'core/verbs'
local dead_letters = require 'kinds/dead_letters'

local batch = {}
-- Limits in bytes of a block's answers. After the first, the rest is left for the next call. In a transaction, runs
-- with long answers are refused after the second, and all but puts after this much work (call.lua).
local ANSWERED_BYTES, ANSWERED_TOGETHER, WORK_TOGETHER = 1048576, 64 * 1048576, 500000
-- The estimated work of a try of a run that waits, in microseconds (call.lua). After this much work, a block with runs
-- that wait leaves the rest for the next call: each run that puts a message, or makes room, tries all that wait.
local TRY, WORK_WAITING = 40, 20000

-- Return whether more jobs of the queue are due, or more messages must be adopted, than one call can do: then the next
-- message is not known, and all but put-backs is left for another call. A transaction cannot be split.
local function is_late(name)
  local is_behind = queue.jobs and (queue.jobs.has_due or not block.patient and queue.jobs.has_unadopted)
    or queue.kind.is_behind and queue.kind.is_behind()
  if not is_behind or not the_call.has_records() then return false end
  return block.patient and name ~= 'put_back' or not block.patient and #block.reply == 1
end

-- Return whether runs that wait have been tried so often that the later runs are left for another call.
local function is_much()
  return #block.waiting > 0 and the_call.work > WORK_WAITING
end

-- Each returns an error that refuses the whole block, or nil.
local prelude = {
  on = function(base)
    block.patient = false
    block.base = base
    dead_letters.move()
    queue.enter(base)
    if is_late() then return { err = 'DUE' } end
    local work = the_call.work
    queue.kind.adopt()
    the_call.work = work -- what others have put is not the transaction's work
  end,
  unchanged = function(version)
    return queue.kind.version() ~= version and { err = 'CHANGED' } or nil
  end,
  free = function(roles)
    for role in string.gmatch(roles, '%l+') do
      local refusal = queue.bound and (role == 'producer' or queue.length > 0) and queue.in_use(role)
      if refusal then return refusal end
    end
  end,
}

-- Return whether a waiting run got anything.
local function got_on(result)
  if type(result) ~= 'table' then
    return false
  elseif result[1] == 'part' and type(result[4]) == 'table' then
    return result[2] > 0 or #result[4] > 0
  end
  return #result > 0
end

-- Note that the messages of the result at this place of the reply have been taken.
local function note(result, place, how)
  if type(result) == 'table' and #result > 0 then
    records.note_taken(how == 'marked' and { marked = place } or place)
  end
end

-- Add to the reply a run's later result, or with the number 0 news for the caller.
local function tell(number, result)
  local more = block.more
  more[#more + 1], more[#more + 2] = number, result
end

-- Return whether a waiting run would get nothing, and no news: there is no message, or no room. `known` has the answers
-- for each role since a run was tried.
local function is_in_vain(run, known)
  if run.role == 'producer' and not run.needs_room then return false end
  if known[run.role] == nil then
    if not queue.bound or queue.base ~= block.base then
      known[run.role] = false
    elseif run.role == 'consumer' then
      known.consumer = queue.kind.available() == 0 and not queue.is_finished()
    else
      known.producer = queue.bound > 0 and queue.length >= queue.bound and not queue.is_closed()
    end
  end
  return known[run.role]
end

-- Try a waiting run. Return whether it has made progress, and whether it waits on.
local function try_again(run)
  block.begin_run()
  block.running = run.number
  local result, _, go_on = run.go_on()
  block.running = nil
  local progress = not go_on or got_on(result)
  if progress then
    tell(run.number, result)
    if run.takes then note(result, -#block.more, run.takes) end
  end
  run.go_on = go_on
  return progress, go_on
end

-- Try the waiting runs until none makes progress.
local function serve()
  -- The number of the last run that made progress, in the round before and in this one.
  local last, progress = math.huge, nil
  while last and #block.waiting > 0 do
    local still, known = {}, {}
    progress = nil
    for _, run in ipairs(block.waiting) do
      local got_some, waits = false, true
      local is_tried = run.number > last and not progress -- since the last progress
      if not is_tried and not is_in_vain(run, known) then
        got_some, waits = try_again(run)
        known, the_call.work = {}, the_call.work + TRY
      end
      if got_some then progress = run.number end
      if waits then still[#still + 1] = run end
    end
    the_call.work = the_call.work + the_call.MESSAGE * #still
    block.waiting, last = still, progress
  end
end

-- Return the reply of the block, which is done.
local function answer()
  local reply, more = block.reply, block.more
  if block.has_failed and block.patient then
    tell(0, 'due 1000 ') -- waiting operations are tried again in a second
  end
  if #more > 1 then
    more[1] = reply[1]
    reply[1] = more
  end
  return records.keep(reply)
end

-- Do a run of the block, and add its result to the reply. Return whether later runs are left for another call.
local function add_run(name, first, count)
  local number, is_last = #block.reply, first + count > block.last
  local verb, options = block.read_name(name)
  local is_long = verbs.is_long(verb)
  -- How the reply holds the messages taken; false if these have records of their own.
  local takes = verb == 'get' and (options.flags and 'marked' or 'plain')
  local result, left, go_on
  block.has_takers = block.has_takers or options.waits
  if block.has_taken and options.otherwise then
    result = {}
  elseif block.answered > ANSWERED_TOGETHER and is_long then
    result = { err = 'TOOLARGE' }
  elseif not block.patient and the_call.work > WORK_TOGETHER and verb ~= 'put' and block.how ~= 'read' then
    result = { err = 'TOOLONG' }
  else
    block.running = number
    queue.enter(block.base) -- an error has left it
    result, left, go_on = verbs.execute(verb, options, first, count)
    block.running = nil
    if result == nil then return true end
    block.has_taken = type(result) == 'table' and #result > 0
  end
  block.reply[number + 1] = result
  the_call.work = the_call.work + the_call.MESSAGE * (count + (type(result) == 'table' and #result or 0))
  if is_long and (block.is_shared() or not is_last) and type(result) == 'table' then
    block.answered = block.answered + commands.sum_of_bytes(verb == 'scan' and result[2] or result)
  end
  if takes then note(result, number + 1, takes) end
  if go_on and block.patient then
    block.waiting[#block.waiting + 1] = {
      number = number, go_on = go_on, takes = takes, role = verb == 'put' and 'producer' or 'consumer',
      needs_room = verb == 'put' and not options.unique, -- what is queued already need not be put
    }
  end
  if left and left > 0 then block.reply[1] = left end
  if #block.waiting > 0 and (not go_on or got_on(result)) then serve() end
  return left and left > 0 or block.patient and block.answered > ANSWERED_BYTES
end

-- Tell other servers and the caller which runs wait; leave the queue.
local function finish()
  local runs = block.waiting
  if queue.bound and block.has_takers and (block.how == 'note' or block.how == 'share') then
    local wait = false
    for _, run in ipairs(runs) do wait = wait or run.role == 'consumer' end
    waiting.note(wait)
  end
  dead_letters.move()
  queue.kind.settle()
  if block.reply[1] == 0 then
    block.reply[1] = not queue.bound and -2 or room.may_be_full() and -1 or 0
  end
  for _, run in ipairs(queue.bound and runs or {}) do
    if queue.in_use(run.role) then tell(0, run.role) end
  end
  local due, noted = queue.kind.leave()
  if due then tell(0, string.format('due %.0f %s', due, noted)) end
  if block.patient and block.room_due then
    tell(0, string.format('room %.0f', math.max(0, block.room_due - the_call.clock())))
  end
  if block.patient and queue.jobs and queue.jobs.source then tell(0, 'source ' .. #queue.base - #queue.jobs.source) end
  if block.left_for_others then tell(0, 'others') end
  if #runs > 0 and queue.jobs and queue.jobs.settings.policy then tell(0, 'limited') end
  if block.keeps ~= nil then tell(0, block.keeps and 'keeps 1' or 'keeps 0') end
  the_call.answered = the_call.answered + block.answered
end

-- Do the runs from the next one on, and end the block. Return its reply.
local function do_runs()
  local arguments = the_call.arguments
  while block.at <= block.last do
    local name, count, first = arguments[block.at], tonumber(arguments[block.at + 1]), block.at + 2
    block.at = first + count
    block.begin_run()
    if prelude[name] then
      local refusal = prelude[name](arguments[first])
      if refusal then return { 'refused', queue.base, refusal.err } end
    elseif block.patient and (is_late(name) or is_much()) or add_run(name, first, count) then
      break
    end
  end
  block.begin_run()
  block.at, block.is_ending = math.huge, true
  queue.enter(block.base)
  finish()
  return answer()
end

-- End a run that an error has stopped: put back what it has taken. The error is its result, or that of the whole block
-- if nothing has been done.
local function fail(reason)
  recovery.leave_after_error()
  recovery.undo()
  local number, result = block.running, the_call.error_reply(reason)
  block.running = nil
  if not number and #block.reply == 1 then
    error(reason, 0)
  elseif number and number < #block.reply then
    tell(number, result)
  elseif number then
    block.reply[number + 1] = result
  end
  block.has_failed = true
  if block.patient then block.at = math.huge end
end

-- Do the current block on the general path; its queue has been read. Return its reply.
function batch.do_block()
  block.at, block.base = block.first, block.home
  local is_done, reply = pcall(queue.begin)
  if is_done then is_done, reply = pcall(do_runs) end
  while not is_done do
    fail(reply)
    if block.is_ending then return answer() end
    is_done, reply = pcall(do_runs)
  end
  return reply
end

return batch
