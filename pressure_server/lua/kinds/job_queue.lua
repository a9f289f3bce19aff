-- Queues of jobs: all their messages are jobs (jobs.lua). Positions count the queued jobs in the order in which they are
-- taken, and delayed jobs after ready ones. Native clients put messages into the list; these become jobs when a server
-- uses the queue. kinds/list.lua says what the functions of a kind are.

local room = require 'core/room'
local records = require 'core/records'
local taking = require 'core/taking'
local group = require 'kinds/group'
local groups = require 'kinds/groups'
local jobs = require 'kinds/jobs'
local policy = require 'kinds/policy'
local job_index = require 'kinds/job_index'
local job_times = require 'kinds/job_times'
local job_puts = require 'kinds/job_puts'
local job_gets = require 'kinds/job_gets'
local dead_letters = require 'kinds/dead_letters'
local list_reads = require 'kinds/list_reads'

local function nothing() end

local job_queue = {
  has_deliveries = true,
  -- Jobs need no role, and are not weighed.
  in_use = nothing, act_as = nothing, bytes_queued = nothing,
  refusal_to_take = nothing, refusal_to_reserve = nothing,
  leave = job_times.note_due, adopt = job_puts.adopt_rest,
  drop_oldest = job_puts.drop, drop_expired = job_puts.drop_expired,
  -- Only logs have offsets (log.lua).
  at = list_reads.at, from = list_reads.from, offsets = list_reads.offsets, length = list_reads.length,
}
local key_of = queue.key_of
-- Reserved and buried jobs whose bytes are counted; the rest counts as queued.
local HELD_AT_ONCE = 5000
local SCANNED_AT_ONCE = 2000

-- Begin to use the queue: read how many jobs it has, and promote those that are due.
function job_queue.begin()
  jobs.open()
  local state, source, following = queue.jobs, jobs.read_settings()
  local is_ordered = state.settings.type == 'lifo' or state.settings.type == 'random'
  state.unadopted = is_ordered and call('ZCARD', key_of('unadopted')) or 0
  local delayed, unadopted = call('ZCARD', key_of('delayed')), queue.length + state.unadopted
  state.ready = call('ZCARD', key_of('ready'))
  queue.length = unadopted + state.ready + delayed
  if source then
    group.read_source(source, following)
    queue.length = queue.length + state.lag
  end
  if the_call.refusal then return end -- questions are answered as the queue is
  state.has_unadopted = unadopted > 0 and job_puts.adopt()
  job_times.promote(delayed)
  state.has_due = state.has_due or is_ordered and state.has_unadopted
  dead_letters.move()
end

function job_queue.settle()
  groups.settle_group()
  -- Releases, kicks, ended reservations and adopted messages change the length as well.
  if block.changed and queue.bound and room.may_be_full() then room.settle() end
end

-- Count the bytes of up to HELD_AT_ONCE reserved and buried jobs of a queue that has just got a limit of bytes.
function job_queue.count_held()
  local bytes = 0
  for _, state in ipairs(room.max_bytes() and { 'reserved', 'buried' } or {}) do
    for first = 0, HELD_AT_ONCE - 1, jobs.AT_ONCE do
      for _, job in ipairs(jobs.read(call('ZRANGE', key_of(state), first, first + jobs.AT_ONCE - 1), true)) do
        bytes = bytes + (job and jobs.bytes_of(job) or 0)
      end
    end
  end
  if room.max_bytes() then call('HSET', key_of('settings'), 'held_bytes', bytes) end
end

function job_queue.altered(new)
  jobs.read_settings()
  if new.max_bytes then job_queue.count_held() end
end

function job_queue.held_bytes()
  return math.max(0, tonumber(call('HGET', key_of('settings'), 'held_bytes') or nil) or 0)
end

-- Return how many jobs are reserved or buried: neither queued nor gone.
function job_queue.outstanding()
  return call('ZCARD', key_of('reserved')) + queue.jobs.ranged + call('ZCARD', key_of('buried'))
end

function job_queue.available()
  local count = queue.jobs.ready + queue.jobs.lag
  if count > 0 and job_times.is_paused() then return 0 end
  return count > 0 and queue.jobs.settings.policy and policy.left(count) or count
end

-- Take the best jobs.
function job_queue.pop(self, count, most)
  if self.claims then return job_gets.reserve(self.claims, count, most) end
  local some, marks_of, expired = job_gets.pop(math.min(count, taking.JOBS))
  local left, _, dropped = taking.unexpired(self, some, marks_of)
  return left, dropped + expired
end

-- Split the arguments of a put with the option `by` into jobs and their keys.
local function split_keys(keyed)
  local some, names = {}, {}
  for i, one in ipairs(keyed) do
    local size, first = string.match(one, '^(%d+) ()')
    names[i], some[i] = string.sub(one, first, first + size - 1), string.sub(one, first + size)
  end
  return some, names
end

-- Put messages; return their ids.
function job_queue.push(self, messages, marks_of)
  local options, names = self.options, nil
  if options.by then messages, names = split_keys(messages) end
  -- An add has just looked its messages up.
  local index = not self.is_add and (queue.jobs.settings.unique and 'single' or options.unique and 'equal')
  return job_puts.put(messages, not options.job and (marks_of or {}), names, index)
end

function job_queue.refusal_to_put(options)
  local word = queue.jobs.source and 'is-group' or options.offset and 'no-offsets'
    or options.by and not queue.jobs.settings.unique and 'not-unique'
  return word and { err = 'TYPE ' .. word } or nil
end

-- Return whether all messages of the list are adopted, and the index, if any, is complete; if not, add jobs to it.
local function is_ready(index)
  return not (queue.jobs.has_unadopted and block.patient) and (not index or jobs.complete_index(index))
end

-- Messages of the list must be adopted first, so that older messages get lower ids.
function job_queue.is_ready_for_put(options)
  return is_ready(queue.jobs.settings.unique and 'single' or options.job and options.unique and 'equal')
end

function job_queue.droppable() return queue.jobs.ready end

-- Delete the jobs in a state (life.lua).
function job_queue.purge(state)
  local skipped = 0
  if state == 'ready' then
    job_puts.adopt_rest()
    if queue.jobs.source then skipped = group.skip_lag(math.huge) end
  end
  local count, is_more = jobs.purge(state)
  return skipped + count, is_more
end

-- Takes    messages that have not been delivered, and what `pop` returned with each, if it was a job then
function job_queue.restore(messages, marks_of)
  local first, last, step = 1, #messages, 1
  if queue.jobs.settings.type == 'lifo' then first, last, step = last, 1, -1 end -- the first one taken is the newest
  for i = first, last, step do
    local message, mark = messages[i], marks_of and marks_of[i]
    if mark and mark[3] then
      job_puts.push_back(message, mark)
    elseif mark or not job_puts.add_unadopted(message) then
      job_puts.note_deliveries(job_puts.put({ message }, { mark }, nil, queue.jobs.settings.unique and 'single'), { mark })
      queue.count_as('produced', -1, -#message)
    end
  end
  queue.count_as('consumed', -#messages, -commands.sum_of_bytes(messages))
  room.settle()
  return 1, 0
end

-- Return the number of queued jobs. Messages that are not adopted yet do not count, except for those of a group's log.
local function count_queued()
  return queue.length - call('LLEN', queue.base) - queue.jobs.unadopted
end

-- Return the ids of the queued jobs from `first` to `last`, which are not negative.
local function queued_ids(first, last)
  local ready, ids = queue.jobs.ready, jobs.ready_ids(first, last)
  if last >= ready then
    for _, id in ipairs(call('ZRANGE', key_of('delayed'), math.max(0, first - ready), last - ready)) do ids[#ids + 1] = id end
  end
  return ids
end

function job_queue.range(first, last)
  local count, lag = (first < 0 or last < 0) and count_queued() or 0, queue.jobs.lag
  first = math.max(0, first < 0 and first + count or first)
  last = last < 0 and last + count or last
  if last < first then return {} end
  local found, ids = {}, queued_ids(first, last)
  for some in commands.parts(ids, jobs.AT_ONCE) do
    for _, job in ipairs(jobs.read(some)) do found[#found + 1] = job and jobs.message_of(job) or '' end
  end
  the_call.work = the_call.work + 8 * the_call.MESSAGE * #found -- a job takes five times a message
  if lag > 0 then
    local own = count_queued() - lag
    local skipped = math.max(0, first - own)
    for _, message in ipairs(group.messages_ahead(skipped, math.min(last + 1 - own, lag) - skipped)) do
      found[#found + 1] = message
    end
  end
  return found
end

-- Takes    the number of messages returned before; and a count: one call returns at most SCANNED_AT_ONCE. If jobs are taken
--          meanwhile, the scan may skip others. A scan from before the messages became jobs begins again
function job_queue.scan(position, wanted)
  wanted = jobs.portion(math.min(wanted, SCANNED_AT_ONCE))
  if position >= list_reads.SET_CURSOR then position = 0 end
  local messages = job_queue.range(position, position + wanted - 1)
  local following = position + #messages
  local is_more = following < count_queued() or queue.jobs.has_unadopted
  return { is_more and string.format('%d', following) or '0', messages }
end

function job_queue.sample(seed, wanted)
  local function message_at(position) return job_queue.range(position, position)[1] end
  return list_reads.pick(seed, wanted, count_queued(), message_at)
end

function job_queue.peek()
  groups.fill(1)
  local job = job_gets.best(1)[1]
  return job and { jobs.message_of(job), job.flags ~= '0' and job.flags or '' } or {}
end

-- Return for each message 1 if it is queued, else 0; and how many were decided: none while the index is being made. With
-- `to_put`, search the jobs that a put must not equal.
function job_queue.queued(messages, to_put)
  local found = {}
  if queue.jobs.source then
    for i = 1, #messages do found[i] = 1 end
    return found, #messages -- a group has no index: the operation that asks is refused
  end
  local name = to_put and queue.jobs.settings.unique and 'single' or 'equal'
  if #messages == 0 or not is_ready(name) then return found, 0 end
  for i, message in ipairs(messages) do found[i] = #job_index.ids_of(name, message, 1) end
  the_call.work = the_call.work + the_call.MESSAGE * #messages
  return found, #messages
end

function job_queue.contains(messages)
  if queue.jobs.source then return { err = 'TYPE is-group-no-index' } end
  return list_reads.contains(messages)
end

function job_queue.positions() return { err = 'TYPE no-positions' } end

function job_queue.refusal_to_remove(newest)
  return queue.jobs.source and newest and { err = 'TYPE is-group-no-removal' } or nil
end

-- Takes    messages
-- Returns  for each 1 if it was queued, else 0; and how many are left for another call. While only some jobs of a message
--          are deleted, :ext:settings has its hash as 'removing'
function job_queue.remove(messages)
  local refusal = job_queue.refusal_to_remove(true)
  if refusal then return refusal, 0 end
  local removed, settings, deleted = {}, key_of('settings'), 0
  if not is_ready('equal') then return removed, #messages end
  local begun = call('HGET', settings, 'removing')
  for i, message in ipairs(messages) do
    local count, is_more = 0, true
    local is_begun = begun and begun == job_index.hash_of(message)
    while is_more and not (block.patient and deleted >= jobs.DELETED_AT_ONCE) do
      local ids = job_index.ids_of('equal', message, jobs.AT_ONCE)
      for at, is_done in ipairs(jobs.happen('delete', jobs.read(ids))) do
        if is_done == 0 then job_index.note('equal', message, ids[at], false) end
        count = count + is_done
      end
      deleted, is_more = deleted + #ids, #ids == jobs.AT_ONCE
    end
    if is_more then
      if count > 0 then call('HSET', settings, 'removing', job_index.hash_of(message)) end
      break
    end
    if is_begun then call('HDEL', settings, 'removing') end
    removed[i] = (count > 0 or is_begun) and 1 or 0
  end
  room.settle()
  return removed, #messages - #removed
end

-- See list.lua. If more copies may be left than one call deletes, returns { how many have been removed, 1 }, 1.
function job_queue.remove_copies(wanted, message)
  local refusal = queue.length > 0 and job_queue.refusal_to_remove(true)
  if refusal then return refusal, 0 end
  wanted = tonumber(wanted)
  if not queue.jobs.source and not is_ready('equal') then return {}, 1 end
  local most = wanted == 0 and -1 or math.abs(wanted)
  if block.patient and (most < 0 or most > jobs.DELETED_AT_ONCE) then most = jobs.DELETED_AT_ONCE end
  local ids = job_index.ids_of('equal', message, most, wanted < 0)
  jobs.delete(ids)
  room.settle()
  local is_more = #ids == most and most ~= math.abs(wanted)
  return { #ids, is_more and 1 or nil }, is_more and 1 or 0
end

-- Keep the jobs from position `first` to `last`, which are in the queue, or none if `last` is before `first`. A group has
-- jobs of the next messages of its log only; it passes the others. Return the ids of the others if other calls must delete
-- them, because they are many.
function job_queue.keep(first, last)
  local count = queue.length
  local others = last < count - 1 and queued_ids(last + 1, count - 1) or {}
  if first > 0 then
    if queue.jobs.source then groups.fill(first) end
    local own = queue.length - queue.jobs.lag
    for _, id in ipairs(own > 0 and queued_ids(0, math.min(first, own) - 1) or {}) do others[#others + 1] = id end
    if first > own then group.skip_lag(first - own) end
  end
  if block.patient and #others > jobs.DELETED_AT_ONCE then return others end
  jobs.delete(others)
end

function job_queue.next_to_move()
  groups.fill(1)
  local job = job_queue.available() > 0 and job_gets.best(1)[1]
  if job then return jobs.message_of(job), job.id end
end

function job_queue.take_moved(wanted, id)
  if wanted then
    job_queue.remove({ wanted })
  else
    local job = jobs.read({ id })
    local message, mark = job_gets.with_mark(job[1])
    records.note_popped({ message })
    taking.unexpired({}, { message }, { mark })
    jobs.happen('delete', job)
    if queue.jobs.settings.policy then policy.note_taken(1) end
    room.settle()
  end
end

-- As list.version. The text changes with every event of a job, except touch, and when a delay or a reservation ends;
-- not when a call notices that a delay has ended, or makes jobs of messages of the list or of a group's log.
function job_queue.version()
  local state = queue.jobs
  local stats = call('MGET', queue.base .. ':stats:produced_messages', queue.base .. ':stats:consumed_messages')
  local noted = call('HMGET', key_of('settings'), 'deliveries', 'buried')
  local put = state.source and math.max(state.next, state.head) + state.lag or tonumber(stats[1] or 0)
  local present = string.format('(%.0f', the_call.clock())
  return string.format('jobs %.0f %.0f %s %d %d %d %.0f %d %s %s %s', put, queue.length + job_queue.outstanding(),
    stats[2] or '', call('ZCOUNT', key_of('delayed'), present, '+inf'),
    call('ZCOUNT', key_of('reserved'), present, '+inf'), call('ZCARD', key_of('buried')), state.settings.paused or 0,
    queue.is_closed() and 1 or 0, queue.made or '', noted[1] or '', noted[2] or '')
end

queue.kinds.jobs = job_queue

return job_queue
