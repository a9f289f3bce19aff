-- Indexes of jobs: find jobs by a text. `equal` finds the queued jobs with a given message; it is made when a
-- message is first looked up. `single` finds the jobs that no equal one may join, by message or by the key that
-- was put with them; only queues that were created as unique have it, from their first put on.
--
-- Touches  :ext:equal, :ext:single  sorted sets, all with the score 0: the length of a text as a byte, the text, and
--                                   the id of a job; or 'h', the hash of a long text, and the id
--          :ext:settings            'indexed_equal', 'indexed_single': the cursor up to which the jobs that were
--                                   there before are in the index, or 'all'
--          :ext:same, :ext:unique   the indexes of earlier versions, for which all jobs of a text were one value

local function make_job_index(name)
  local self, key = {}, base .. ':ext:' .. name

  -- Return the prefix of a text's members. It has the text's length, so that no other text's members begin with it.
  local function prefix_of(text)
    return #text <= 40 and string.char(#text) .. text or 'h' .. redis.sha1hex(text)
  end

  -- Note whether the job with this id and this text is in the index.
  function self.note(text, id, is_in)
    if is_in then
      call('ZADD', key, 0, prefix_of(text) .. id)
    else
      call('ZREM', key, prefix_of(text) .. id)
    end
  end

  -- Return the ids of at most `most` jobs with this text, in the order of the puts; or the latest first.
  function self.ids_of(text, most, is_reversed)
    local prefix = prefix_of(text)
    local first, last, found = '[' .. prefix, '[' .. prefix .. 'g', nil -- ids are hexadecimal
    if is_reversed then
      found = call('ZREVRANGEBYLEX', key, last, first, 'LIMIT', 0, most)
    else
      found = call('ZRANGEBYLEX', key, first, last, 'LIMIT', 0, most)
    end
    for i, member in ipairs(found) do found[i] = string.sub(member, #prefix + 1) end
    return found
  end

  -- Enter more of the jobs that were there before the index was used. Return whether all have been entered.
  function self.is_complete()
    local jobs, settings = queue.jobs, base .. ':ext:settings'
    while jobs.indexed[name] ~= 'all' do
      if not jobs.indexed[name] then
        jobs.indexed[name] = '0'
        local old = name == 'equal' and ':ext:same' or ':ext:unique'
        set_aside({ [old] = 'HLEN' })
        call('UNLINK', base .. old)
      end
      local cursor, found = unpack(call('HSCAN', base .. ':ext:jobs', jobs.indexed[name], 'COUNT', SLICE))
      local ids = {}
      for i = 1, #found, 2 do
        if string.match(found[i], '^%x+$') then ids[#ids + 1] = found[i] end
      end
      for _, job in ipairs(jobs.read(ids)) do
        jobs.state_of(job)
        jobs.enter_into(name, job, 'gone', job.state)
      end
      jobs.indexed[name] = cursor == '0' and 'all' or cursor
      call('HSET', settings, 'indexed_' .. name, jobs.indexed[name])
      if patient then break end
    end
    return jobs.indexed[name] == 'all'
  end

  -- Return what a mirror returns (mirror.lua): 1 for each message that is queued, or 0; and how many messages
  -- were decided: none while the index is being made.
  function self.queued(messages)
    local found = {}
    if #messages == 0 or queue.jobs.has_unadopted and patient or not self.is_complete() then
      return found, 0
    end
    for i, message in ipairs(messages) do found[i] = #self.ids_of(message, 1) end
    work = work + MESSAGE * #messages
    return found, #messages
  end

  return self
end
