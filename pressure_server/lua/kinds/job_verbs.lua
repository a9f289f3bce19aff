-- Verbs on jobs: events that clients cause, reservations by id, and questions.

local room = require 'core/room'
local recovery = require 'core/recovery'
local jobs = require 'kinds/jobs'
local groups = require 'kinds/groups'
local job_gets = require 'kinds/job_gets'
local job_ids = require 'kinds/job_ids'

local job_verbs = {}
-- A word for all jobs between two ids has a hyphen after the first id.
local HYPHEN, AFTER_ID = 45, 14

-- Call a function for each word. Return the values; an error is the value of its own word only.
local function each(words, what)
  local values, base = {}, queue.base
  for i, word in ipairs(words) do
    local is_done, value = pcall(what, word)
    if not is_done then
      value = the_call.error_reply(value)
      recovery.leave_after_error()
      queue.enter(base)
    end
    values[i] = value
  end
  return values
end

local function overlap(pairs_of_ids)
  local sorted = commands.slice(pairs_of_ids, 1, #pairs_of_ids)
  table.sort(sorted, function(one, other) return one[1] < other[1] end)
  for i = 2, #sorted do
    if sorted[i][1] <= sorted[i - 1][2] then return true end
  end
  return false
end

-- Return the jobs from each id to its final one, or only to itself if there is none; and for each job the place of its
-- word. A job that several words name is one table.
local function jobs_between(ids, finals)
  local pairs_of_ids, some, places = {}, {}, {}
  for i, id in ipairs(ids) do pairs_of_ids[i] = { tonumber(id, 16), tonumber(finals[i] or id, 16), i } end
  if not overlap(pairs_of_ids) then
    local covers = {}
    for i, id in ipairs(ids) do
      for _, job in ipairs(jobs.between(id, finals[i] or id, covers)) do some[#some + 1], places[#places + 1] = job, i end
    end
    return some, places
  end
  local each = {}
  for _, pair in ipairs(pairs_of_ids) do
    for number = pair[1], pair[2] do each[#each + 1], places[#places + 1] = job_ids.word_of(number), pair[3] end
  end
  return jobs.read(each), places
end

-- Let an event happen to jobs, as `jobs_between` finds them. Return for each word to how many it has happened.
local function happen_between(event, ids, finals, owners)
  local done, its_owners = {}, {}
  local some, places = jobs_between(ids, finals)
  for i = 1, #ids do done[i] = 0 end
  for i, place in ipairs(places) do its_owners[i] = owners[place] end
  for i, count in ipairs(jobs.happen(event, some, its_owners)) do done[places[i]] = done[places[i]] + count end
  return done
end

-- Let an event happen to the jobs that the words name: 'id', 'id owner', 'id-final owner' for all between two ids, or
-- 'id owner reserves'. Return for each word to how many it has happened; and how many words are left for another call.
local function for_each(words, event)
  local done, known, last = {}, {}, 0 -- known: owners
  local portion = #words > 1 and queue.bound and jobs.portion(jobs.AT_ONCE) or jobs.AT_ONCE
  while last < #words do
    local first, count = last + 1, 0
    while last < #words and count < portion do
      last, count = last + 1, count + 1
      if string.byte(words[last], AFTER_ID) == HYPHEN then
        local id, final = string.match(words[last], '^(%x+)%-(%x+)')
        count = count + tonumber(final, 16) - tonumber(id, 16)
      end
    end
    local ids, finals, owners, reserves = {}, {}, {}, {}
    for i = first, last do
      local id, final, owner, reserved = string.match(words[i], '^(%x+)%-?(%x*) ?(%S*) ?(%d*)$')
      if known[owner] == nil then known[owner] = owner ~= '' and job_gets.owner_of(owner) end
      local at = event == 'give_up' and last - i + 1 or i - first + 1 -- give_up names the latest job first
      ids[at], owners[at], reserves[at] = id, known[owner], tonumber(reserved)
      if final ~= '' then finals[at] = final end
    end
    local found
    if next(finals) then
      found = happen_between(event, ids, finals, owners)
    else
      found = jobs.happen(event, job_gets.of_reservation(jobs.read(ids), reserves), owners)
    end
    for i = 1, #ids do done[#done + 1] = found[i] or 0 end
    if block.patient and the_call.work >= the_call.MAX_WORK then break end
  end
  if queue.bound then
    room.settle()
  else
    call('HDEL', the_call.records, 'j' .. queue.base) -- the queue was deleted, with its reserved jobs
  end
  return done, #words - #done
end

local function verb_for(event)
  return function(words)
    return for_each(words, event)
  end
end

job_verbs.delete_job, job_verbs.give_up = verb_for('delete'), verb_for('give_up')
job_verbs.touch, job_verbs.kick_job = verb_for('touch'), verb_for('kick')

-- Return the id of the last message of a job, which is a range or one message.
local function last_id(job)
  return job_ids.word_of(tonumber(job.id, 16) + (job.count or 1) - 1)
end

-- Describe reservations, in the order in which they end.
--
-- Takes    how many to skip; and how many to describe
-- Returns  for each the first and the last id; the offset of the first message in a group's log, else ''; the token of
--          the owner, '' for a connection; in how many milliseconds it ends, -1 for never; and the number of reserves
function job_verbs.pending(words)
  local first, ids, ends, found = tonumber(words[1]), {}, {}, {}
  local places = call('ZRANGE', queue.key_of('reserved'), first, first + words[2] - 1, 'WITHSCORES')
  for i = 1, #places, 2 do ids[#ids + 1], ends[#ends + 1] = places[i], tonumber(places[i + 1]) end
  for i, job in ipairs(jobs.read(ids, true)) do
    if job then
      local about = jobs.parse(job).about
      local offset = job.offset or queue.jobs.source and call('ZSCORE', queue.key_of('offsets'), job.id) or about[JOB_OFFSET]
      found[#found + 1] = {
        job.id, last_id(job), offset and string.format('%.0f', offset) or '', string.match(about[JOB_OWNER], '^ (.*)$') or '',
        ends[i] < math.huge and math.max(0, ends[i] - the_call.clock()) or -1, about[JOB_RESERVES],
      }
    end
  end
  return found
end

-- Tell which jobs clients of this server have reserved until their connections end.
--
-- Takes    a cursor, '0' at first
-- Returns  the next cursor, '0' at the end; and for each reservation the first and the last id, the number of reserves, and
--          the owner
function job_verbs.reserved(words)
  local next_cursor, places = unpack(call('ZSCAN', queue.key_of('reserved'), words[1], 'COUNT', jobs.portion(jobs.AT_ONCE)))
  local ids, found = {}, { next_cursor }
  for i = 1, #places, 2 do ids[#ids + 1] = places[i] end
  for _, job in ipairs(jobs.read(ids, true)) do
    local about = job and jobs.parse(job).about
    local owner = job and job_gets.client_of(about[JOB_OWNER])
    if owner then found[#found + 1] = { job.id, last_id(job), about[JOB_RESERVES], owner } end
  end
  return found
end

-- Takes    a claim (job_gets.lua); for how many milliseconds a reservation of another client must not have been
--          extended; and how many jobs to take over. Returns them, as `reserve` does (get.lua)
function job_verbs.claim(words)
  return job_gets.take_over(words[1], tonumber(words[2]), tonumber(words[3]))
end

-- Takes    'id owner', or 'id owner priority', for each
function job_verbs.bury(words)
  return each(words, function(word)
    local id, owner, priority = string.match(word, '^(%x+) (%S+) ?(%d*)$')
    local job = jobs.read({ id })[1]
    if job then jobs.parse(job).about[JOB_PRIORITY] = tonumber(priority) or job.about[JOB_PRIORITY] end
    return jobs.happen('bury', { job }, { job_gets.owner_of(owner) })[1] or 0
  end)
end

-- Takes    'id owner priority delay' for each; an empty priority changes nothing, and with the delay 'now' the job has no
--          retry delay. A priority or a delay that a message of a list cannot have makes the queue one of jobs
function job_verbs.release(words)
  return each(words, function(word)
    local id, owner, priority, delay = string.match(word, '^(%x+) (%S+) (%d*) (%w+)$')
    local event = delay == 'now' and 'release_now' or delay ~= '0' and 'release_later' or 'release'
    if delay == 'now' then delay = '0' end
    owner = job_gets.owner_of(owner)
    local job = jobs.read({ id })[1]
    if job and jobs.is_owned(job, owner) then
      local is_plain = delay == '0' and (tonumber(priority) or JOB_DEFAULT_PRIORITY) == JOB_DEFAULT_PRIORITY
      local refusal = not is_plain and jobs.convert()
      if refusal then return refusal end
      job.about[JOB_PRIORITY] = tonumber(priority) or job.about[JOB_PRIORITY]
      job.about[JOB_DELAY] = tonumber(delay)
    end
    return jobs.happen(event, { job }, { owner })[1] or 0
  end)
end

-- Takes    how many jobs to kick; and their state: '' for buried jobs, or if there are none, delayed ones
-- Returns  { how many have been kicked; the state to pass to the next call, '' if nothing is left to do }
function job_verbs.kick(words)
  local most, state, count, is_more = tonumber(words[1]), words[2], 0, words[1] ~= '0'
  if state == '' then state = call('EXISTS', queue.key_of('buried')) == 1 and 'buried' or 'delayed' end
  local portion = jobs.portion(jobs.AT_ONCE)
  while is_more and (count == 0 or not block.patient or the_call.work < the_call.MAX_WORK) do
    local wanted = math.min(most - count, portion)
    local ids = call('ZRANGE', queue.key_of(state), 0, wanted - 1)
    count = count + #jobs.happen('kick', jobs.read_in(state, ids))
    is_more = count < most and #ids == wanted
  end
  return { count, is_more and state or '' }
end

-- Takes    the id of a job, and a claim
-- Returns  a list of the job, as `give` returns it; or {} if it cannot be reserved
function job_verbs.reserve_job(words)
  local job = jobs.read({ words[1] })[1]
  return job and job_gets.give('reserve_any', { job }, { words[2] }) or {}
end

-- Takes    for how long no job is reserved, in milliseconds
function job_verbs.pause(words)
  local refusal = jobs.convert()
  if refusal then return refusal end
  local before = queue.jobs.settings.paused or 0
  queue.jobs.settings.paused = the_call.clock() + tonumber(words[1])
  call('HSET', queue.key_of('settings'), 'paused', string.format('%.0f', queue.jobs.settings.paused))
  if queue.jobs.settings.paused < before and queue.jobs.ready + queue.jobs.lag > 0 then
    queue.jobs.is_due_now = true
  end
  block.changed = true
  return 1
end

-- Takes    an id; or ready, delayed or buried, for the next job in that state
-- Returns  { id, message }, or {}; nothing if the queue has become one of jobs, and other calls must adopt messages first
function job_verbs.peek_job(words)
  local id = words[1]
  if id == 'ready' and queue.kind.become_jobs then
    queue.kind.become_jobs()
    if queue.jobs.has_due then return nil end
  end
  if #id < 10 then
    if id == 'ready' then groups.fill(1) end
    id = (id == 'ready' and jobs.next_ids(1) or call('ZRANGE', queue.key_of(id), 0, 0))[1]
  end
  local job = id and jobs.read({ id })[1]
  return job and { job.id, jobs.message_of(job) } or {}
end

-- Takes    an id
-- Returns  {}, or state, priority, age, delay, time to run, time left, the queue from which a dead letter came, reserves,
--          timeouts, releases, buries and kicks; times in milliseconds
function job_verbs.job_info(words)
  local job = jobs.read(words)[1]
  if not job then return {} end
  local state, about = jobs.state_of(job), jobs.parse(job).about
  local has_time = state == 'delayed' or state == 'reserved'
  local due = has_time and tonumber(call('ZSCORE', queue.key_of(state), (job.cover or job).id)) or 0
  return {
    state, about[JOB_PRIORITY], math.max(0, the_call.clock() - string.sub(job.made, 1, 13)), about[JOB_DELAY], jobs.ttr_of(job),
    due < math.huge and math.max(0, due - the_call.clock()) or 0, string.sub(about[JOB_ORIGIN] or '', #the_call.own_key('') + 1),
    unpack(about, 3, 7),
  }
end

return job_verbs
