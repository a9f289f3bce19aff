-- Purge: deletes the messages of a queue that are in given states, some at a time. They count as consumed.

local purges = {}
do
  local operations = purges

  -- Delete jobs in a state, at most DELETED_AT_ONCE if the operation may be left undone. Return how many; and whether
  -- there are more.
  local function purge_jobs(state)
    local count = 0
    repeat
      local ids = call('ZRANGE', key_of(state), 0, JOBS_AT_ONCE - 1)
      for _, is_done in ipairs(queue.jobs.happen('purge', queue.jobs.jobs_in(state, ids))) do count = count + is_done end
    until #ids < JOBS_AT_ONCE or patient and count >= DELETED_AT_ONCE
    return count, call('EXISTS', key_of(state)) == 1
  end

  -- Takes    states: ready, delayed, reserved, buried
  -- Returns  { how many messages have been deleted, 1 if there are more, else 0 }; or an error
  function operations.purge(...)
    local count = 0
    for _, state in ipairs({ ... }) do
      local some, is_more = 0, false
      if state == 'ready' and queue.kind ~= 'jobs' then
        some = (queue.kind == 'log' and make_log() or gets).flush()
      elseif queue.jobs then
        if state == 'ready' then
          job_puts().adopt_rest()
          if queue.jobs.source then count = count + skip_lag() end
        end
        some, is_more = purge_jobs(state)
      end
      if type(some) == 'table' then
        return some
      end
      count = count + some
      if is_more then
        return { count, 1 }
      end
    end
    if queue.bound then settle_not_full() end
    return { count, 0 }
  end
end
