-- Ranges: neighbouring messages of a log that one consumer of a group has reserved are one job of the group's queue, as
-- long as the same happens to all of them (docs/internals/logs.md#groups). jobs.lua calls this module when it reads
-- jobs and before it changes them. The ids of a range are neighbours, too, in one block (job_ids.lua).
--
-- Touches  :ext:jobs      'made =count bytes offset' in place of a job: the number of messages, their bytes, and the
--                         offset of the first
--          :ext:settings  'ranged': how many messages the ranges of the queue have, without the first of each

local group = require 'kinds/group'
local job_ids = require 'kinds/job_ids'

local ranges = {}
local key_of, word_of = queue.key_of, job_ids.word_of
-- The byte of '=', and its place in a range. A job has its priority at this place.
local SIGN, SIGN_AT = 61, 18
-- After these events a range stays one: they leave its messages reserved, or delete them.
local KEEPS = { delete = true, purge = true, touch = true, claim = true }
local IS_DELETED = { delete = true, purge = true }

function ranges.is_range(value) return string.byte(value, SIGN_AT) == SIGN end

function ranges.parse(job)
  local made, count, bytes, offset = string.match(job.value, '^(%d+) =(%d+) (%d+) (%d+)$')
  job.made, job.count, job.bytes, job.offset = made, tonumber(count), tonumber(bytes), tonumber(offset)
  job.ttr, job.flags, job.expires = JOB_DEFAULT_TTR, '0', '0'
  return job
end

local function value_of(range)
  return string.format('%s =%d %.0f %.0f', range.made, range.count, range.bytes, range.offset)
end

-- Return a new range: `count` messages of another one, after `skipped` messages. `cover` is that one, if it stays.
local function cut(range, skipped, count, bytes, cover)
  return {
    id = word_of(tonumber(range.id, 16) + skipped), value = '', about = { unpack(range.about) }, state = 'reserved',
    made = range.made, count = count, bytes = bytes, offset = range.offset + skipped, cover = cover,
    ttr = range.ttr, flags = range.flags, expires = range.expires,
  }
end

-- Return the job of one message of a range, which stays as it is.
function ranges.part(range, skipped)
  return cut(range, skipped, 1, nil, range)
end

-- Return the range that has this id, but does not begin with it; or nil. `read` returns the job that begins with an id.
function ranges.cover_of(id, read)
  local number = tonumber(id, 16)
  local before = (number - 1) % job_ids.OF_BLOCK
  if before == 0 then return nil end
  local ids = {}
  for i = 1, before do ids[i] = word_of(number - i) end
  for i, value in ipairs(call('HMGET', key_of('jobs'), unpack(ids))) do
    if value then
      local job = ranges.is_range(value) and read(ids[i])
      return job and job.count > i and job or nil, i
    end
  end
end

-- Store by how many messages ranges have become longer or shorter.
local function note_ranged(change)
  if change ~= 0 then
    queue.jobs.ranged = queue.jobs.ranged + change
    call('HINCRBY', key_of('settings'), 'ranged', change)
  end
end

-- Reserve the group's next messages of the log, from this offset on; each has an owner, and a time to run
-- (milliseconds, or nil). Return the ranges; and their scores and ids in :ext:reserved, for jobs.note_come.
function ranges.reserve(messages, offset, owners, ttrs)
  local made, some, at = string.sub(job_ids.new_stamp(), 1, -2), {}, 0
  for _, span in ipairs(job_ids.spans(#messages)) do
    local range
    for number = span[1], span[1] + span[2] - 1 do
      at = at + 1
      if not range or owners[at] ~= owners[at - 1] or ttrs[at] ~= ttrs[at - 1] then
        range = { id = word_of(number), made = made, count = 0, bytes = 0, offset = offset + at - 1, ttr = JOB_DEFAULT_TTR, flags = '0' }
        range.about = { JOB_DEFAULT_PRIORITY, 0, 1, 0, 0, 0, 0, owners[at], ttrs[at] }
        some[#some + 1] = range
      end
      range.count, range.bytes = range.count + 1, range.bytes + #messages[at]
    end
  end
  local fields, places, offsets, ranged, now = {}, {}, {}, 0, the_call.clock()
  for i, range in ipairs(some) do
    local at, ttr = 4 * i, range.about[JOB_OWN_TTR] or JOB_DEFAULT_TTR
    fields[at - 3], fields[at - 2], fields[at - 1], fields[at] = range.id, value_of(range), range.id .. ':', cmsgpack.pack(range.about)
    places[2 * i - 1], places[2 * i] = ttr > 0 and now + ttr or 'inf', range.id
    offsets[2 * i - 1], offsets[2 * i] = string.format('%.0f', range.offset), range.id
    ranged = ranged + range.count - 1
  end
  call('ZADD', key_of('offsets'), unpack(offsets))
  call('ZADD', key_of('reserved'), unpack(places))
  call('HSET', key_of('jobs'), unpack(fields))
  note_ranged(ranged)
  return some, places
end

-- Return the ids of the jobs that exist between two ids, which are numbers. A range has its first id here.
function ranges.ids_between(first, last)
  local found = {}
  for start = first, last, job_ids.OF_BLOCK do
    local ids = {}
    the_call.work = the_call.work + the_call.MESSAGE
    for number = start, math.min(last, start + job_ids.OF_BLOCK - 1) do ids[#ids + 1] = word_of(number) end
    for i, value in ipairs(call('HMGET', key_of('jobs'), unpack(ids))) do
      if value then found[#found + 1] = ids[i] end
    end
  end
  return found
end

-- Return which messages of a range an event concerns, as intervals { first, last, … }; positions count from 0.
local function intervals(parts)
  local is_sorted = true
  for i = 2, #parts do is_sorted = is_sorted and parts[i - 1].offset < parts[i].offset end
  if not is_sorted then table.sort(parts, function(one, other) return one.offset < other.offset end) end
  local found, start = {}, parts[1].cover.offset
  for _, part in ipairs(parts) do
    local at = part.offset - start
    if found[#found] == at - 1 then
      found[#found] = at
    else
      found[#found + 1], found[#found + 2] = at, at
    end
  end
  return found
end

-- Make jobs of messages of a range, and `write` each. `abouts` has the new states of some. A message that the log has
-- dropped becomes no job.
local function jobs_of(range, first, last, messages, abouts, write)
  local some = {}
  for at = first, last do
    local message = messages[at + 1]
    if message then
      local job = cut(range, at, nil, nil)
      job.value = string.format('%s %d 0 %d 0 0 ', range.made, JOB_DEFAULT_PRIORITY, JOB_DEFAULT_TTR) .. message
      job.about = abouts[at] or job.about
      job.first, job.offset, job.bytes = #job.value - #message + 1, nil, nil
      write(job, range.offset + at)
      some[#some + 1] = job
    end
  end
  return some
end

-- Take the messages in the intervals, to which an event happens, out of a range. The others stay reserved. Return the
-- ranges, or jobs, to which it happens.
local function carve(range, found, abouts, event)
  local fields, places, offsets, some = {}, {}, {}, {}
  local key, ranged, due = key_of('jobs'), 1 - range.count, nil
  local messages = group.messages_at(range.offset, range.count)
  local function write(job, offset, is_range)
    due = due or call('ZSCORE', key_of('reserved'), range.id)
    local at = #fields
    fields[at + 1], fields[at + 2] = job.id, is_range and value_of(job) or job.value
    fields[at + 3], fields[at + 4] = job.id .. ':', cmsgpack.pack(job.about)
    at = #places
    places[at + 1], places[at + 2] = due, job.id
    offsets[at + 1], offsets[at + 2] = string.format('%.0f', offset), job.id
    if is_range then ranged = ranged + job.count - 1 end
  end
  local left, gone = range.bytes, 0
  -- Cut the messages from `first` to `last` out of the range. The last piece gets all bytes that are left.
  local function piece(first, last)
    local bytes = left
    if last < range.count - 1 then
      bytes = 0
      for at = first, last do bytes = bytes + #(messages[at + 1] or '') end
    end
    left = left - bytes
    return cut(range, first, last - first + 1, bytes)
  end
  local function keep(first, last)
    if last >= first then
      local rest = piece(first, last)
      write(rest, rest.offset, true)
    end
  end
  local following = 0
  for i = 1, #found, 2 do
    local first, last = found[i], found[i + 1]
    keep(following, first - 1)
    following = last + 1
    if KEEPS[event] then
      local one = piece(first, last)
      some[#some + 1] = one
      if not IS_DELETED[event] then write(one, one.offset, true) end
    else
      local bytes, its_jobs = piece(first, last).bytes, jobs_of(range, first, last, messages, abouts, write)
      for _, job in ipairs(its_jobs) do some[#some + 1], bytes = job, bytes - (#job.value - job.first + 1) end
      gone = last - first + 1 - #its_jobs
      if gone > 0 then
        queue.count_as('consumed', gone, bytes)
        call('HINCRBY', key_of('settings'), 'missed', gone)
      end
    end
  end
  keep(following, range.count - 1)
  if #fields > 0 then
    commands.with_all('ZADD', key_of('offsets'), offsets)
    commands.with_all('ZADD', key_of('reserved'), places)
    commands.with_all('HSET', key, fields)
  end
  -- If a written piece has the range's id, it has replaced the range. Deleted messages are deleted by `happen`.
  if fields[1] ~= range.id and not IS_DELETED[event] then
    call('HDEL', key, range.id, range.id .. ':')
    call('ZREM', key_of('reserved'), range.id)
    group.pass({ range.id })
  end
  if found[1] > 0 and IS_DELETED[event] then group.note_passed() end
  note_ranged(ranged)
  return some
end

-- Split a range in two. Return the first part, which has `count` messages.
function ranges.begin_of(range, count)
  return carve(range, { 0, count - 1 }, {}, 'claim')[1]
end

-- Prepare jobs for an event. If the event concerns only some messages of a range, they become ranges or jobs of their own.
-- Each job has its owner. may(job, event, owner) tells whether the event may happen to a reserved job.
--
-- Returns  the jobs to which it happens, or false; their owners; and for each the places of its messages in `some`. A whole
--          range has one place
function ranges.prepare(event, some, owners, may)
  local ready, its_owners, places = {}, {}, {}
  local covers, parts_of, seen = {}, {}, {}
  local function add(job, owner, its_places)
    local n = #ready + 1
    ready[n], its_owners[n], places[n] = job, owner, its_places
  end
  for i, job in ipairs(some) do
    local owner = owners and owners[i]
    if not job or not job.count then
      add(job, owner, { i })
    elseif seen[job] and event == 'touch' then
      table.insert(parts_of[job.cover or job].places[job], i)
    elseif seen[job] or not may(job, event, owner) then
      add(false, owner, { i })
    else
      local cover = job.cover or job
      seen[job] = true
      if not parts_of[cover] then
        covers[#covers + 1] = cover
        parts_of[cover] = { owner = owner, places = {} }
      end
      local parts = parts_of[cover]
      parts[#parts + 1] = job
      parts.places[job] = { i }
    end
  end
  for _, cover in ipairs(covers) do
    local parts = parts_of[cover]
    local is_whole = parts[1] == cover
    local pieces
    if is_whole and KEEPS[event] then
      pieces = { cover }
      if IS_DELETED[event] then note_ranged(1 - cover.count) end
    else
      local abouts = {}
      for _, part in ipairs(is_whole and {} or parts) do abouts[part.offset - cover.offset] = part.about end
      pieces = carve(cover, is_whole and { 0, cover.count - 1 } or intervals(parts), abouts, event)
    end
    local place_of = {}
    for _, part in ipairs(is_whole and {} or parts) do place_of[part.offset] = parts.places[part] end
    for _, piece in ipairs(pieces) do
      local its_places = is_whole and parts.places[cover] or {}
      local first = cover.offset + tonumber(piece.id, 16) - tonumber(cover.id, 16)
      for offset = first, is_whole and first - 1 or first + (piece.count or 1) - 1 do
        for _, place in ipairs(place_of[offset]) do its_places[#its_places + 1] = place end
      end
      its_places.is_whole = is_whole
      add(piece, parts.owner, its_places)
    end
  end
  return ready, its_owners, places
end

return ranges
