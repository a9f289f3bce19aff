-- Trim: what Redis's commands on positions and copies do to a queue: LTRIM, LREM and LPOS. Positions count from the
-- oldest message. What is removed counts as consumed.

local trims = {}
do
  local operations = trims

  -- Return why messages cannot be removed, or nil; `newest` says that some of them are not the oldest ones.
  local function refusal_to_remove(newest)
    if queue.kind == 'log' and make_log().refusal_to_take(newest) then
      return make_log().refusal_to_take(newest)
    elseif queue.jobs and queue.jobs.source and newest then
      return { err = 'TYPE is that of a group: nothing leaves it from the middle' }
    end
    return queue.kind ~= 'jobs' and in_use('consumer') or nil
  end

  -- Remove the newest messages of a list.
  local function drop_newest(count)
    local marks = has_marks() and make_marks()
    while count > 0 do
      local some = call('LPOP', base, math.min(count, CHUNK))
      queue.length = queue.length - #some
      if marks then marks.cut(some, queue.consumed + queue.length) end
      count_as('consumed', #some, sum_of_bytes(some))
      count = count - #some
    end
    if mirror then mirror.start_over() end
  end

  -- Delete the first `count` of these jobs.
  local function delete(ids, count)
    for at = 1, count, JOBS_AT_ONCE do
      queue.jobs.happen('delete', queue.jobs.read({ unpack(ids, at, math.min(at + JOBS_AT_ONCE - 1, count)) }))
    end
  end

  local function delete_jobs(first, last)
    local ids = last >= first and job_lists.ids(first, last) or {}
    delete(ids, #ids)
  end

  -- Keep the messages from position `first` to `last`; -1 is the newest. Returns 1, or an error.
  function operations.trim(first, last)
    if queue.kind == 'jobs' then job_puts().adopt_rest() end
    local count = queue.length
    first = math.min(count, math.max(0, first < 0 and first + count or first))
    last = math.max(first - 1, math.min(count - 1, last < 0 and last + count or last))
    local refusal = (first > 0 or last < count - 1) and refusal_to_remove(last < count - 1)
    if refusal then
      return refusal
    elseif queue.kind == 'jobs' then
      delete_jobs(last + 1, count - 1)
      delete_jobs(0, first - 1)
    else
      if last < count - 1 then drop_newest(count - 1 - last) end
      if first > 0 then gets.drop_oldest(math.min(first, queue.length)) end
      if queue.length < count then act_as('consumer') end
    end
    settle_not_full()
    return 1
  end

  -- Remove copies of a message: all if `wanted` is 0, else so many of the oldest, or if it is negative, of the newest.
  -- Returns { how many there were to remove }, or an error; and 1 if this is left for another call.
  function operations.remove_copies(wanted, message)
    wanted = tonumber(wanted)
    local refusal = queue.length > 0 and refusal_to_remove(true)
    if refusal then
      return refusal, 0
    elseif queue.kind == 'jobs' then
      local index, _, decided = need_mirror(), need_mirror().queued({ message })
      if decided == 0 then return {}, 1 end
      local ids = index.ids_of(message, wanted == 0 and -1 or math.abs(wanted), wanted < 0)
      delete(ids, #ids)
      settle_not_full()
      return { #ids }, 0
    end
    local marks = has_marks() and make_marks()
    if marks and wanted ~= 0 and marks.has(message) then
      return { err = 'TYPE has flags or an expiry time for this message: only all its copies can be removed (LREM key 0)' }, 0
    end
    work = work + ENTRY * queue.length
    -- The list begins with the newest message. (Redis 7.0 would get -0 as an argument, and refuse it.)
    local count = call('LREM', base, 0 - wanted, message)
    if count > 0 then
      act_as('consumer')
      queue.length = queue.length - count
      count_as('consumed', count, count * #message)
      if mirror then mirror.start_over() end
      if marks then marks.forget(message, count) end
      settle_not_full()
    end
    return { count }, 0
  end

  -- Takes    a message; its rank, the count, and how many messages to look at, as Redis's LPOS
  -- Returns  positions
  function operations.positions(message, rank, count, most)
    if queue.kind == 'jobs' then
      return { err = 'TYPE has jobs: their positions change by themselves' }
    end
    local found = call('LPOS', base, message, 'RANK', string.format('%.0f', -tonumber(rank)), 'COUNT', count, 'MAXLEN', most)
    work = work + ENTRY * queue.length
    for i, position in ipairs(found) do found[i] = queue.length - 1 - position end
    return found
  end
end
