-- Move: moves a message to another queue, or to the other end of the same queue, in one atomic step.
--
-- Takes    the other queue's base key, which must also be one of KEYS; and the message, unless it is the next one
-- Options  existing  do not wait for the queue to be created
--          waits     wait for a message
--          unique    put the message only if it is not queued in the other queue
--          into      do not create the other queue
-- Returns  { message }; {} if there is none to move; false if there is no such queue; -1 if there is no room
--          yet; or an error, which begins with OTHER if it is about the other queue. Then how many moves are left for
--          another call, 0 or 1; then, if the move waits, the function that tries again
-- Touches  both queues: one as a get or remove, the other as a put

local waiting = require 'core/waiting'
local put = require 'core/put'

local move = {}

-- Return the message, or nil; the id of its job, if it is one; and whether only another call can tell.
local function what_to_move(wanted)
  if not queue.bound or queue.kind.length() == 0 then return nil end
  if not wanted then return queue.kind.next_to_move() end
  local is_queued, decided = queue.kind.queued({ wanted })
  return is_queued[1] == 1 and wanted or nil, nil, decided == 0
end

-- Move a message within one queue. It leaves before it is put, so the queue may be full.
local function go_round(options, message, wanted, id)
  if wanted then return { message } end
  local refusal = put.refusal({}) or queue.kind.refusal_to_put({}) or queue.kind.in_use('producer')
  if refusal then return refusal end
  queue.kind.take_moved(nil, id)
  local was_patient = block.patient
  block.patient = false -- nothing may be left for another call
  local result = put.put({ overfill = true, unique = options.unique, goes_round = true }, '1', { message })
  block.patient = was_patient
  if type(result) == 'table' and result.err then error(result) end -- the message goes back
  return { message }
end

function move.move(options, other, wanted)
  local from = queue.base
  local function again() return move.move(options, other, wanted) end
  if not queue.bound and options.existing then return { err = 'NOQUEUE' }, 0 end
  if queue.bound then queue.kind.drop_expired() end
  if options.waits and waiting.allowed(1) == 0 then return {}, 0, again end
  local message, id, is_undecided = what_to_move(wanted)
  if is_undecided then
    return {}, 1
  elseif not message then
    if not options.waits then return {}, 0 end
    if queue.bound and queue.is_finished() then return { err = 'CLOSED' }, 0 end
    return queue.bound and {} or false, 0, again
  end
  local refusal = queue.kind.refusal_to_remove(wanted)
  if refusal then return refusal, 0 end
  if other == from then return go_round(options, message, wanted, id), 0 end
  local turn = queue.turn
  queue.enter(other)
  local result, left, go_on = put.put({ existing = options.into, unique = options.unique }, '1', { message })
  queue.enter(from)
  queue.turn = turn
  if left and left > 0 then return {}, 1 end
  if type(result) == 'table' and result.err then return { err = 'OTHER ' .. result.err }, 0 end
  if go_on then return put.FULL, 0, again end
  if type(result) == 'table' and result[1] == put.FULL then return { err = 'OTHER FULL' }, 0 end
  block.is_moving = true -- the message is in the other queue already
  queue.kind.take_moved(wanted, id)
  block.is_moving = false
  return { message }, 0
end

return move
