-- Gets of jobs: clients take the best ones for good, or reserve them; if a client leaves, its reservations end.

local records = require 'core/records'
local job_ids = require 'kinds/job_ids'
local group = require 'kinds/group'
local groups = require 'kinds/groups'
local jobs = require 'kinds/jobs'
local policy = require 'kinds/policy'
local ranges = require 'kinds/ranges'
local taking = require 'core/taking'

local job_gets = {}
-- Reservations that one call checks for a client that takes some over.
local OFFERED = 1000
-- The identity that `server_of` was asked for last, and its answer: it takes as long as a job takes besides.
local own_identity, own_server
-- The states that `first_state` has returned, by owner; how many; and how many are kept.
local first_states, first_count, MOST_STATES = {}, 0, 1000
local NO_MARK = { '0', 0 }
local key_of = queue.key_of

-- Return the part of a server's identity that is in the owners of reservations.
function job_gets.server_of(identity)
  return string.match(identity, '[^:]*$')
end

-- Return an owner, for '=token' of a client of this server, or '@token' of a reservation that outlives its connection.
function job_gets.owner_of(text)
  local identity = the_call.identity
  if identity ~= own_identity then own_identity, own_server = identity, job_gets.server_of(identity) end
  return (string.sub(text, 1, 1) == '=' and own_server or '') .. ' ' .. string.sub(text, 2)
end

-- Return '=token' for an owner that is a client of this server; else nil.
function job_gets.client_of(owner)
  local server, token = string.match(owner, '^(%S+) (.*)$')
  return server == job_gets.server_of(the_call.identity) and '=' .. token or nil
end

-- Return the owners in the first claims, and the times to run, nil for a job's own. A claim is 'owner' or 'owner ttr'.
-- With `claims.ttr`, all have this time to run, and each claim is only its owner.
local function owners_in(claims, count)
  local owners, ttrs = {}, {}
  for i = 1, count do
    if claims.ttr then
      owners[i], ttrs[i] = job_gets.owner_of(claims[i]), claims.ttr
    elseif claims[i] == claims[i - 1] then
      owners[i], ttrs[i] = owners[i - 1], ttrs[i - 1]
    else
      local owner, ttr = string.match(claims[i], '^(%S+) ?(%d*)$')
      owners[i], ttrs[i] = job_gets.owner_of(owner), tonumber(ttr)
    end
  end
  return owners, ttrs
end

-- Add a reserved job to those found: 'id ttr flags reserves message'; in a group's queue, '@' and the offset of the
-- message follow the id. `messages` has those of a range, by their positions. The later ones are added as '+message',
-- because their ids and offsets are one more each.
local function add_given(found, job, messages)
  local offset = job.offset and string.format('%.0f', job.offset)
    or queue.jobs.source and (call('ZSCORE', key_of('offsets'), job.id) or job.about[JOB_OFFSET])
  local id = offset and job.id .. '@' .. offset or job.id
  local about = string.format('%s %.0f %s %d ', id, jobs.ttr_of(job), job.flags, job.about[JOB_RESERVES])
  found[#found + 1] = about .. (messages and messages[1] or jobs.message_of(job))
  for i = 2, messages and job.count or 0 do found[#found + 1] = '+' .. messages[i] end
end

-- Leave out jobs that have been reserved again: reserves[i], which may be nil, is how often the job had been before.
function job_gets.of_reservation(some, reserves)
  for i, job in ipairs(some) do
    if job and reserves[i] and jobs.parse(job).about[JOB_RESERVES] ~= reserves[i] then some[i] = false end
  end
  return some
end

-- Reserve jobs for clients, one for each claim. Return each as `add_given` says, without those that cannot be reserved.
function job_gets.give(event, some, claims)
  local owners, ttrs = owners_in(claims, #some)
  local ids, reserves, found = {}, {}, {}
  for i, job in ipairs(some) do
    local about = jobs.parse(job).about
    ids[i], reserves[i], about[JOB_OWN_TTR] = job.id, about[JOB_RESERVES] + 1, ttrs[i]
  end
  records.note_reserved(ids, owners, reserves)
  for i, is_done in ipairs(jobs.happen(event, some, owners)) do
    local job = some[i]
    if is_done > 0 then add_given(found, job, job.count and group.messages_at(job.offset, job.count)) end
  end
  if #found > 0 and queue.word == 'jobs' then call('HINCRBY', key_of('settings'), 'deliveries', #found) end
  if event == 'reserve' and queue.jobs.settings.policy then policy.note_taken(#found) end
  return found
end

-- Return the best ready jobs, at most `wanted`; and how many others have expired, and are deleted.
function job_gets.best(wanted)
  local found, expired = {}, {}
  if wanted > 1 then wanted = jobs.portion(math.min(wanted, jobs.AT_ONCE)) end
  for _, job in ipairs(jobs.read_in('ready', jobs.next_ids(wanted))) do
    local expires = jobs.parse(job).expires
    local some = expires ~= '0' and tonumber(expires) <= the_call.clock() and expired or found
    some[#some + 1] = job
  end
  if #expired > 0 then jobs.happen('delete', expired) end
  return found, #expired
end

-- Return the message of a job; and its mark, by which it can be put back as that job: { flags, expires, id, the job without
-- its message, its state, the key that makes it unique, and its offset in a group's log }.
function job_gets.with_mark(job)
  local message, about = jobs.message_of(job), job.about
  local is_touched = about[JOB_RESERVES] + about[JOB_KICKS] + about[JOB_BURIES] > 0 or about[JOB_DELAY] > 0
  return message, {
    job.flags, tonumber(job.expires), job.id, string.sub(job.value, 1, job.first - 1),
    is_touched and cmsgpack.pack(about) or '',
    queue.jobs.settings.unique and call('HGET', key_of('jobs'), job.id .. '#') or false,
    queue.jobs.source and call('ZSCORE', key_of('offsets'), job.id) or false,
  }
end

-- Take up to `wanted` jobs for good, best first. Return their messages, their marks, and how many others have expired.
function job_gets.pop(wanted)
  if queue.jobs.lag > 0 then groups.fill(wanted) end
  local found, expired = job_gets.best(wanted)
  local messages, marks_of = {}, {}
  for i, job in ipairs(found) do messages[i], marks_of[i] = job_gets.with_mark(job) end
  records.note_popped(messages)
  jobs.happen('delete', found)
  if queue.jobs.settings.policy then policy.note_taken(#found) end
  return messages, marks_of, expired
end

-- Reserve the next messages of the log, one for each claim, about `bytes` at most. Return each as `add_given` says.
local function reserve_ahead(claims, wanted, bytes)
  local messages, offset = groups.look_ahead(wanted, bytes)
  local owners, ttrs = owners_in(claims, #messages)
  local some, places = ranges.reserve(messages, offset, owners, ttrs)
  local ids, its_owners, reserves, found, at = {}, {}, {}, {}, 1
  for i, range in ipairs(some) do
    ids[i], its_owners[i], reserves[i] = range.id, range.about[JOB_OWNER], 1
    add_given(found, range, commands.slice(messages, at, at + range.count - 1))
    at = at + range.count
  end
  records.note_reserved(ids, its_owners, reserves)
  groups.note_taken(messages, offset)
  jobs.note_come('reserved', places)
  call('HINCRBY', key_of('settings'), 'deliveries', #messages)
  return found
end

-- Reserve up to `wanted` jobs, best first, one for each claim, about `bytes` at most. Return what `give` does; and how
-- many others have expired.
function job_gets.reserve(claims, wanted, bytes)
  if queue.jobs.lag > 0 then
    if group.has_marks() then
      groups.fill(wanted)
    elseif #jobs.next_ids(1) == 0 then
      return reserve_ahead(claims, wanted, bytes), 0
    end
  end
  local found, expired = job_gets.best(math.min(wanted, taking.JOBS))
  return job_gets.give('reserve', found, claims), expired
end

-- Let a client take over at most `most` reservations of others that were not extended for `idle` milliseconds, in the
-- order in which they end. The time to run of jobs that have been delivered often enough, and of messages that a log has
-- dropped, ends instead. Return each as `add_given` says.
function job_gets.take_over(claim, idle, most)
  local owners, ttrs = owners_in({ claim }, 1)
  local ids, taken, ended, count = call('ZRANGE', key_of('reserved'), 0, OFFERED - 1, 'WITHSCORES'), {}, {}, 0
  local now, spent = the_call.clock(), queue.jobs.settings.max_deliveries or math.huge
  for i = 1, #ids, 2 do
    if count >= most then break end
    local job, due = jobs.read({ ids[i] }, true)[1], tonumber(ids[i + 1])
    local about = job and jobs.parse(job).about
    -- For a reservation without an end, it is not known when it began.
    if job and about[JOB_OWNER] ~= owners[1] and due < math.huge and now - due + jobs.ttr_of(job) >= idle then
      job.state = 'reserved'
      if (job.count or 1) > most - count then job = ranges.begin_of(job, most - count) end
      local messages = job.count and group.messages_at(job.offset, job.count)
      if about[JOB_RESERVES] >= spent or messages and not messages[1] then
        ended[#ended + 1] = job
      else
        taken[#taken + 1], count = job, count + (job.count or 1)
      end
    end
  end
  jobs.happen('time_out', ended)
  local claims = {}
  for i = 1, #taken do claims[i] = claim end
  return job_gets.give('claim', taken, claims)
end

-- Return the packed state of a message of a list that has become a reserved job.
local function held_state(owner, reserves, ttr)
  return cmsgpack.pack({ JOB_DEFAULT_PRIORITY, 0, reserves, 0, 0, 0, 0, owner, ttr })
end

-- Return the state of a message that an owner has for the first time, and without an end. Workers reserve again and
-- again, and to look it up takes a quarter of the time.
function job_gets.first_state(owner)
  local state = first_states[owner]
  if not state then
    if first_count == MOST_STATES then first_states, first_count = {}, 0 end
    state, first_count = held_state(owner, 1, 0), first_count + 1
    first_states[owner] = state
  end
  return state
end

-- Make reserved jobs of messages that have just left the list, one for each claim. Return as `add_given` says.
function job_gets.hold(messages, marks_of, claims)
  local owners, ttrs = owners_in(claims, #messages)
  jobs.open()
  local ids, fields, places, found = job_ids.new(#messages), {}, {}, {}
  local of, head, reply_head -- of the last message: its mark and its time to run, and the texts that depend on these
  local made, last_ttr = job_ids.new_stamp(), nil
  for i, message in ipairs(messages) do
    local mark, ttr = marks_of[i] or NO_MARK, ttrs[i] or 0
    local id, reserves = ids[i], (mark[4] or 0) + 1
    if mark ~= of or ttr ~= last_ttr then
      of, last_ttr = mark, ttr
      head = made .. string.format('%d 0 0 %s %.0f ', JOB_DEFAULT_PRIORITY, mark[1], mark[2])
      reply_head = string.format(' %.0f %s %d ', ttr, mark[1], reserves)
    end
    local n = 4 * i
    fields[n - 3], fields[n - 2], fields[n - 1] = id, head .. message, id .. ':'
    local is_first = reserves == 1 and ttr == 0
    fields[n] = is_first and job_gets.first_state(owners[i]) or held_state(owners[i], reserves, ttr)
    places[2 * i - 1], places[2 * i] = ttr > 0 and the_call.clock() + ttr or 'inf', id
    found[i] = id .. reply_head .. message
  end
  commands.with_all('ZADD', key_of('reserved'), places)
  if queue.word ~= 'reserved' and queue.word ~= 'kept' then queue.set_kind('reserved') end
  commands.with_all('HSET', key_of('jobs'), fields)
  -- From here on, an error gives up the jobs instead of putting the messages back.
  records.note_held()
  records.note_reserved(ids, owners, {})
  jobs.note_come('reserved', places)
  return found
end

-- Give up those of these jobs that clients of a server have reserved. Return how many; and whether there are more.
local function give_up_of(server, ids)
  local its, owners = {}, {}
  for _, job in ipairs(jobs.read_in('reserved', ids)) do
    local owner = jobs.parse(job).about[JOB_OWNER]
    if string.match(owner, '^(%S+) ') == server then its[#its + 1], owners[#owners + 1] = job, owner end
  end
  local some = jobs.at_once(its)
  local count = 0
  for _, is_done in ipairs(jobs.happen('give_up', some, owners)) do count = count + is_done end
  return count, #some < #its
end

-- Give up jobs that clients of a server, given by the end of its identity, have reserved. Return how many, and the
-- cursor for the next call, '0' at the end. The first cursor is any other word.
--
-- Jobs of a list go back to its head, so those whose reservations end last are given up first: the cursor is 'after' and
-- a position from the end. A scan follows, because positions shift: the cursor is 'scan' and a cursor of ZSCAN.
function job_gets.recover(server, cursor)
  jobs.open()
  local key, phase, at = key_of('reserved'), string.match(cursor, '^(%l+)(%d+)$')
  if phase == 'after' or not phase and queue.word ~= 'jobs' then
    local first = tonumber(at or 0)
    local ids = call('ZRANGE', key, first, first + jobs.AT_ONCE - 1, 'REV')
    local count = give_up_of(server, ids)
    return count, #ids < jobs.AT_ONCE and 'scan0' or string.format('after%.0f', first + #ids - count)
  end
  local next_cursor, found = unpack(call('ZSCAN', key, at or '0', 'COUNT', jobs.AT_ONCE))
  local ids = {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local count, are_more = give_up_of(server, ids)
  if are_more then return count, 'scan' .. (at or '0') end
  return count, next_cursor == '0' and '0' or 'scan' .. next_cursor
end

-- Give up jobs that these owners still have reserved (of_reservation). Return how many.
function job_gets.give_up(ids, owners, reserves)
  jobs.open()
  local count = 0
  for first = 1, #ids, jobs.AT_ONCE do
    local last = math.min(first + jobs.AT_ONCE - 1, #ids)
    local some = job_gets.of_reservation(jobs.read({ unpack(ids, first, last) }, true), { unpack(reserves, first, last) })
    for _, is_done in ipairs(jobs.happen('give_up', some, { unpack(owners, first, last) })) do count = count + is_done end
  end
  return count
end

return job_gets
