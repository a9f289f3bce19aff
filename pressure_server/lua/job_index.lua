-- Indexes of jobs: find jobs by a text. `same` finds the queued jobs with a given message; it is made when a
-- message is first looked up. `unique` finds the jobs that no equal one may join, by message or by the key
-- that was put with them; only queues that were created as unique have it.
--
-- Touches  :ext:same, :ext:unique  hashes: 'm' and a text, or 'h' and the hash of a long one -> ids of jobs
--          :ext:settings           'indexed': the cursor up to which older jobs are in :ext:same, or 'all'

local function make_job_index(name)
  local self, key = {}, base .. ':ext:' .. name

  local function field_of(text)
    return #text <= 40 and 'm' .. text or 'h' .. redis.sha1hex(text)
  end

  -- Note whether the job with this id and this text is in the index.
  function self.note(text, id, is_in)
    local field = field_of(text)
    local ids = call('HGET', key, field)
    local others = string.gsub(' ' .. (ids or '') .. ' ', ' ' .. id .. ' ', ' ', 1)
    others = string.match(others, '^ *(.-) *$')
    if is_in then
      call('HSET', key, field, others == '' and id or others .. ' ' .. id)
    elseif others ~= '' then
      call('HSET', key, field, others)
    elseif ids then
      call('HDEL', key, field)
    end
  end

  -- Return for each text the ids of its jobs, separated by spaces, or false.
  function self.ids_of(texts)
    local found = {}
    for first = 1, #texts, CHUNK do
      local fields = {}
      for i = first, math.min(first + CHUNK - 1, #texts) do fields[#fields + 1] = field_of(texts[i]) end
      for _, ids in ipairs(call('HMGET', key, unpack(fields))) do found[#found + 1] = ids end
    end
    return found
  end

  -- Enter more of the jobs that were there before the index was used. Return whether all have been entered.
  function self.is_complete()
    local jobs, settings = queue.jobs, base .. ':ext:settings'
    while name == 'same' and jobs.indexed ~= 'all' do
      local cursor, found = unpack(call('HSCAN', base .. ':ext:jobs', jobs.indexed or '0', 'COUNT', SLICE))
      local ids = {}
      for i = 1, #found, 2 do
        if string.match(found[i], '^%x+$') then ids[#ids + 1] = found[i] end
      end
      for first = 1, #ids, JOBS_AT_ONCE do
        for _, job in ipairs(jobs.read({ unpack(ids, first, math.min(first + JOBS_AT_ONCE - 1, #ids)) })) do
          local state = jobs.state_of(job)
          if state == 'ready' or state == 'delayed' then self.note(jobs.message_of(job), job.id, true) end
        end
      end
      jobs.indexed = cursor == '0' and 'all' or cursor
      call('HSET', settings, 'indexed', jobs.indexed)
      if patient then break end
    end
    return name == 'unique' or jobs.indexed == 'all'
  end

  -- Return what a mirror returns (mirror.lua): 1 for each message that is queued, or 0; and how many messages
  -- were decided: none while the index is being made.
  function self.queued(messages)
    local found = {}
    if #messages == 0 or queue.jobs.has_unadopted and patient or not self.is_complete() then
      return found, 0
    end
    for i, ids in ipairs(self.ids_of(messages)) do found[i] = ids and 1 or 0 end
    return found, #messages
  end

  return self
end
