-- Move: moves a message to another queue, or to the other end of the same queue, in one atomic step.
--
-- Takes    the other queue's base key, which must also be one of KEYS; and the message, if not the oldest
-- Options  existing  do not wait for the queue to be created
--          waits     wait for a message
--          unique    put the message only if it is not queued in the other queue
--          into      do not create the other queue
-- Returns  { message }; {} if there is none to move; false if there is no such queue; -1 if there is no room
--          yet; or an error, which begins with OTHER if it is about the other queue. Then 0; then the
--          function to call when that may have changed
-- Touches  both queues: as a get or remove, and as a put.

local function make_move(options)
  local operations = {}

  -- Return the message, or nil; whether more of the queue must be looked at to tell; and the id of the job to take.
  local function what_to_move(wanted)
    if not queue.bound or queue.length == 0 then
      return nil
    end
    if not wanted then
      if queue.kind == 'jobs' then
        local job = queue.jobs.available() > 0 and job_gets().best(1)[1]
        return job and queue.jobs.message_of(job) or nil, false, job and job.id
      end
      return call('LINDEX', base, -1) or nil
    end
    local is_queued, decided = need_mirror().queued({ wanted })
    return is_queued[1] == 1 and wanted or nil, decided == 0
  end

  local function take_it(wanted, id)
    if id then
      queue.jobs.happen('delete', queue.jobs.read({ id }))
      settle_not_full()
    elseif wanted then
      (queue.kind == 'jobs' and job_lists or gets).remove({ wanted })
    else
      block.is_moving = true -- the message is in the other queue already
      gets.get(1)
      block.is_moving = false
    end
  end

  -- Move a message within one queue. It leaves before it is put, so the queue may be full.
  local function go_round(message, wanted, id)
    if wanted then
      return { message }
    end
    local refusal = put_refusal({}) or queue.kind ~= 'jobs' and in_use('producer')
    if refusal then
      return refusal
    end
    take_it(nil, id)
    local was_patient = patient
    patient = false -- nothing may be left for another call
    make_put({ overfill = true, unique = options.unique }).put('1', { message })
    patient = was_patient
    return { message }
  end

  function operations.move(other, wanted)
    local from = base
    local function again()
      return operations.move(other, wanted)
    end
    if not queue.bound and options.existing then
      return { err = 'NOQUEUE' }, 0
    end
    gets.drop_expired()
    if options.waits and allowed(1) == 0 then
      return {}, 0, again
    end
    local message, is_undecided, id = what_to_move(wanted)
    if is_undecided then
      return {}, 1
    elseif not message then
      if not options.waits then
        return {}, 0
      elseif queue.bound and is_finished() then
        return { err = 'CLOSED' }, 0
      end
      return queue.bound and {} or false, 0, again
    end
    local refusal = queue.kind ~= 'jobs' and in_use('consumer')
    if queue.kind == 'log' then refusal = make_log().refusal_to_take(wanted) or refusal end
    if refusal then
      return refusal, 0
    end
    if other == from then
      return go_round(message, wanted, id), 0
    end
    enter(other)
    local into = { existing = options.into, unique = options.unique }
    local result, left, go_on = make_put(into).put('1', { message })
    enter(from)
    if left and left > 0 then
      return {}, 1
    end
    if type(result) == 'table' and result.err then
      return { err = 'OTHER ' .. result.err }, 0
    elseif go_on then
      return FULL, 0, again
    elseif type(result) == 'table' and result[1] == FULL then
      return { err = 'OTHER FULL' }, 0
    end
    take_it(wanted, id)
    return { message }, 0
  end

  return operations
end
