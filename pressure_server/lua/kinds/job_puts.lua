-- Puts of jobs: makes jobs of messages that are put, come back, or are in the queue's list.

local room = require 'core/room'
local marks = require 'kinds/marks'
local job_ids = require 'kinds/job_ids'
local job_index = require 'kinds/job_index'
local group = require 'kinds/group'
local jobs = require 'kinds/jobs'

local job_puts = {}
local key_of = queue.key_of
-- Expired jobs that one call drops, and messages of the list that it adopts.
local EXPIRED_AT_ONCE, ADOPTED_AT_ONCE = 1000, 1000
-- The text before a plain message, with its flags and its expiry, or without.
local HEAD = JOB_DEFAULT_PRIORITY .. ' 0 ' .. JOB_DEFAULT_TTR .. ' %s %.0f '
local PLUS = 43
local PLAIN_HEAD = JOB_DEFAULT_PRIORITY .. ' 0 ' .. JOB_DEFAULT_TTR .. ' 0 0 '

-- Store jobs, each 'priority delay ttr flags expires message'; expires may be '+milliseconds' from now on. If `marks_of`
-- is given, store plain messages: marks_of[i], which may be nil, has the flags and the expiry of one. `names`, if given,
-- make each job unique instead of its message.
--
-- Returns  their ids; and the bytes of their messages
function job_puts.store(some, marks_of, names)
  local state, ids, bytes = queue.jobs, job_ids.new(#some), 0
  local fields, ready, delayed, at, queued = {}, {}, {}, 0, 0
  local has_index = names or state.settings.unique or state.indexed.equal
  for i, one in ipairs(some) do
    local id, head, priority, delay, first = ids[i], '', JOB_DEFAULT_PRIORITY, '0', 1
    if marks_of then
      local mark = marks_of[i]
      head = mark and string.format(HEAD, mark[1], mark[2]) or PLAIN_HEAD
    else
      local expires, at_expiry
      priority, delay, at_expiry, expires, first = string.match(one, '^(%d+) (%d+) %d+ %d+ ()%+?(%d+) ()')
      if string.byte(one, at_expiry) == PLUS then
        head, one = string.format('%s%.0f ', string.sub(one, 1, at_expiry - 1), the_call.clock() + expires), string.sub(one, first)
        first = 1
      end
    end
    bytes = bytes + #one - first + 1
    fields[at + 1], fields[at + 2] = id, job_ids.new_stamp() .. head .. one -- each copy of 32 MiB takes 10 ms
    at = at + 2
    if delay == '0' then
      ready[queued + 1], ready[queued + 2] = priority, id
      queued = queued + 2
    else
      delayed[#delayed + 1], delayed[#delayed + 2] = string.format('%.0f', the_call.clock() + delay), id
    end
    if has_index then
      local message = first == 1 and one or string.sub(one, first)
      if names then
        fields[at + 1], fields[at + 2] = id .. '#', names[i]
        at = at + 2
      end
      if state.indexed.single then job_index.note('single', names and names[i] or message, id, true) end
      if state.indexed.equal then job_index.note('equal', message, id, true) end
    end
  end
  if #delayed > 0 then
    commands.with_all('ZADD', key_of('delayed'), delayed)
    jobs.note_come('delayed', delayed)
  end
  if #ready > 0 then commands.with_all('ZADD', key_of('ready'), ready) end
  if #fields > 0 then commands.with_all('HSET', key_of('jobs'), fields) end
  state.ready = state.ready + #ready / 2
  queue.length = queue.length + #some
  block.changed = true
  return ids, bytes
end

-- Leave out jobs that are in an index already, by name or by message. Return the others, their marks and their names;
-- and for each job the id of the one in the index, or else its place among the others.
local function without_equals(some, marks_of, names, index)
  local fresh, fresh_marks, fresh_names, ids, places, first_of = {}, {}, {}, {}, {}, {}
  for i, one in ipairs(some) do
    local key = names and names[i] or marks_of and one or string.sub(one, (string.match(one, '^%d+ %d+ %d+ %d+ %+?%d+ ()')))
    ids[i] = job_index.ids_of(index, key, 1)[1]
    if not ids[i] and not first_of[key] then
      local at = #fresh + 1
      fresh[at], fresh_names[at], first_of[key], fresh_marks[at] = one, key, at, marks_of and marks_of[i]
    end
    places[i] = not ids[i] and first_of[key] or nil
  end
  return fresh, marks_of and fresh_marks, names and fresh_names, ids, places
end

-- Put jobs, or messages, as `store` does. If an index is given, each must be unique there: in `single` by its name, in
-- `equal` among the queued jobs. The index must be complete.
--
-- Returns  their ids. A job that is in the index already is not put, and gets the id of that one. With an index, also
--          1 for each that has been put, 0 for each other
function job_puts.put(some, marks_of, names, index)
  local fresh, ids, places, is_new = some, {}, nil, {}
  if index then fresh, marks_of, names, ids, places = without_equals(some, marks_of, names, index) end
  local new_ids, bytes = job_puts.store(fresh, marks_of, names)
  if #fresh > 0 then queue.count_as('produced', #fresh, bytes) end
  if not index then return new_ids end
  local put = 0
  for i = 1, #some do
    is_new[i] = places[i] == put + 1 and 1 or 0
    put = put + is_new[i]
    ids[i] = ids[i] or new_ids[places[i]]
  end
  return ids, is_new
end

-- Delete ready jobs to make room: the least urgent ones, and of these the oldest.
function job_puts.drop(count)
  local key = key_of('ready')
  while count > 0 and queue.jobs.ready > 0 do
    local priority = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    local ids = call('ZRANGE', key, priority, priority, 'BYSCORE', 'LIMIT', 0, math.min(count, jobs.AT_ONCE))
    jobs.happen('delete', jobs.read_in('ready', ids))
    count = count - #ids
  end
  room.settle()
end

-- Delete expired jobs to make room, in the order in which they are taken, up to the first that has not expired. Return
-- how many.
function job_puts.drop_expired()
  local expired, looked_at, dropped, found_all = {}, 1, 0, false
  repeat
    expired = {}
    for _, job in ipairs(jobs.read_in('ready', call('ZRANGE', key_of('ready'), 0, looked_at - 1))) do
      local expires = jobs.parse(job).expires
      if expires == '0' or tonumber(expires) > the_call.clock() then
        room.note_expiry(tonumber(expires))
        break
      end
      expired[#expired + 1] = job
    end
    dropped = dropped + #expired
    if #expired > 0 then jobs.happen('delete', expired) end
    found_all, looked_at = #expired == looked_at, jobs.AT_ONCE
  until not found_all or block.patient and dropped >= EXPIRED_AT_ONCE
  if dropped > 0 then room.settle() end
  return dropped
end

-- Put back a message that `pop` took, as the job that it was.
function job_puts.push_back(message, mark)
  local id, value, packed, name, offset = unpack(mark, 3, 7)
  local about = packed ~= '' and cmsgpack.unpack(packed)
  job_ids.note_back(id)
  call('ZADD', key_of('ready'), about and about[JOB_PRIORITY] or string.match(value, ' (%d+)'), id)
  call('HSET', key_of('jobs'), id, value .. message)
  if about then call('HSET', key_of('jobs'), id .. ':', packed) end
  if name then call('HSET', key_of('jobs'), id .. '#', name) end
  if offset and queue.jobs.source then
    call('ZADD', key_of('offsets'), offset, id)
    group.note_passed()
  end
  jobs.count(jobs.read({ id })[1], 'gone', 'ready')
end

-- Note for jobs that were made of a list's messages how often these had been reserved.
function job_puts.note_deliveries(ids, marks_of)
  local fields = {}
  for i, id in ipairs(ids) do
    local deliveries = marks_of[i] and marks_of[i][4]
    if deliveries then
      fields[#fields + 1] = id .. ':'
      fields[#fields + 1] = cmsgpack.pack({ JOB_DEFAULT_PRIORITY, 0, deliveries, 0, 0, 0, 0, '' })
    end
  end
  if #fields > 0 then commands.with_all('HSET', key_of('jobs'), fields) end
end

-- Make jobs of messages that are in the queue already.
local function make_jobs(messages, marks_of)
  queue.length = queue.length - #messages
  job_puts.note_deliveries(job_puts.store(messages, marks_of), marks_of)
  the_call.work = the_call.work + 4 * the_call.MESSAGE * #messages
end

-- Add a message as the newest of those that are not jobs yet. Return false if there are none, or one equals it.
function job_puts.add_unadopted(message)
  local state, key = queue.jobs, key_of('unadopted')
  if state.unadopted == 0 or call('ZSCORE', key, message) then return false end
  call('ZADD', key, call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] + 1, message)
  state.unadopted, queue.length, state.has_unadopted = state.unadopted + 1, queue.length + 1, true
  block.changed = true
  return true
end

-- Make jobs of messages in the list, unless a native client holds the consumer role. Return whether any are left.
local function adopt_list(most)
  if queue.in_use('consumer') then return false end
  local noted = marks.present()
  local messages = call('RPOP', queue.base, most) or {}
  local is_done, reason = pcall(function()
    make_jobs(messages, noted and marks.take(noted, messages, queue.consumed) or {})
  end)
  if not is_done then
    -- A key of the jobs or the marks has a wrong type, or the server has lost a right.
    for i = #messages, 1, -1 do call('RPUSH', queue.base, messages[i]) end
    error(reason, 0)
  end
  queue.act_as('consumer')
  return call('EXISTS', queue.base) == 1
end

-- Make jobs of messages that are not jobs yet: those from before the queue became one of jobs, and those that native
-- clients have put into the list; unless `all`, only the first ones. Return whether any are left.
function job_puts.adopt(all)
  local state, some = queue.jobs, {}
  if not the_call.has_records() then return false end
  local most = all and queue.length or ADOPTED_AT_ONCE
  if state.unadopted > 0 then
    some = call('ZRANGE', key_of('unadopted'), 0, most - 1)
    make_jobs(some, {})
    call('ZREMRANGEBYRANK', key_of('unadopted'), 0, #some - 1) -- last, so that an error before loses nothing
    state.unadopted = state.unadopted - #some
  end
  return state.unadopted > 0 or call('EXISTS', queue.base) == 1 and (#some == most or adopt_list(most - #some))
end

-- Make jobs of all messages that are not jobs yet.
function job_puts.adopt_rest()
  local state = queue.jobs
  if state.has_unadopted then state.has_unadopted = job_puts.adopt(true) end
end

return job_puts
