-- Recovery: puts back messages that are in records (records.lua) and will never be delivered.
--
-- A message leaves its record in the call that puts it back, so it goes back once, however often servers ask. It goes
-- back only to the queue from which it was taken, never to a later queue of the same name.

local records = require 'core/records'
local mirror = require 'kinds/mirror'
local job_gets = require 'kinds/job_gets'
local dead_letters = require 'kinds/dead_letters'

local recovery = {}
local JOBS = 106 -- the first byte of a field j<base key>

-- Return the messages of an entry, each with its mark and its `word`. The word identifies the message in a request to
-- put it back; it begins with the flags if these were returned with the message.
local function taken_by(entry, some_replies)
  local found, marks_of = {}, {}
  local reply, marks = some_replies and some_replies[entry[3]], entry[5] or {}
  for i = 1, #marks, 2 do
    local key = records.key_of(marks[i]) -- earlier versions noted the whole message
    marks_of[key] = marks_of[key] or {}
    table.insert(marks_of[key], marks[i + 1])
  end
  for _, place in ipairs(entry[4]) do
    local marked = type(place) == 'table' and place.marked
    local at = marked or place
    local some = type(at) == 'table' and at or at > 0 and reply[at] or reply[1][-at]
    local flags = marked and string.gmatch(some[#some], '%d+')
    for i = 1, marked and #some - 1 or #some do
      local message, its_marks = some[i], marks_of[records.key_of(some[i])]
      local one = { message = message, mark = its_marks and table.remove(its_marks, 1) }
      one.flags = flags and (flags() or '0')
      one.word = flags and one.flags .. ' ' .. message or message
      found[#found + 1] = one
    end
  end
  return found
end

-- Return the entry reduced to these messages.
local function entry_with(entry, found)
  local its_places, marks = {}, {}
  for i, one in ipairs(found) do
    its_places[i] = one.flags and { marked = { one.message, one.flags } } or { one.message }
    if one.mark ~= nil then
      marks[#marks + 1], marks[#marks + 2] = records.key_of(one.message), one.mark
    end
  end
  return { entry[1], entry[2], 0, its_places, marks }
end

-- Return whether the queue is the one from which the messages of the entry were taken. For a queue made by a native
-- client, only the count of consumed messages can tell.
local function is_queue_of(entry, count)
  return queue.bound and queue.made == entry[2] and (queue.made or queue.consumed >= count)
end

-- Put messages back. Return how many: 0 if their queue no longer exists.
local function give_back(entry, found)
  if #found == 0 or not is_queue_of(entry, #found) then return 0 end
  local messages, marks = {}, {}
  for i, one in ipairs(found) do messages[i], marks[i] = one.message, one.mark or nil end
  queue.kind.restore(messages, marks)
  return #found
end

-- Return the entries of one of this server's calls, with the messages themselves; nil if it has no record.
local function entries_of(number)
  if the_call.changed_records[number] then return the_call.changed_records[number] end
  local packed = call('HGET', the_call.records, number)
  if not packed then return nil end
  local found = {}
  local _, some_replies, some_entries = unpack(cmsgpack.unpack(packed))
  for i, entry in ipairs(some_entries) do found[i] = entry_with(entry, taken_by(entry, some_replies)) end
  return found
end

-- Count words in `counts`, which has the number of each.
local function count_words(counts, words, first, last)
  for i = first, last do counts[words[i]] = (counts[words[i]] or 0) + 1 end
end

-- Return the messages of an entry with these words, and the others. Count down the words that are found.
local function split(entry, counts)
  local found, others = {}, {}
  for _, one in ipairs(taken_by(entry)) do
    local left = counts[one.word] or 0
    counts[one.word] = math.max(0, left - 1)
    table.insert(left > 0 and found or others, one)
  end
  return found, others
end

-- Takes    the number of one of this server's calls, and messages that it took from this queue for a lost client
-- Returns  how many have been put back: 0 if another server has done that, or if the queue has been deleted since
function recovery.put_back(words)
  local number, wanted = words[1], {}
  count_words(wanted, words, 2, #words)
  local rest = entries_of(number)
  if not rest then return 0 end
  local count, now = 0, {}
  for _, entry in ipairs(rest) do
    local back, others = split(entry, entry[1] == queue.base and wanted or {})
    count = count + give_back(entry, back)
    if #back == 0 then
      now[#now + 1] = entry
    elseif #others > 0 then
      now[#now + 1] = entry_with(entry, others)
    end
  end
  the_call.changed_records[number] = now
  block.changed = true
  return count
end

function recovery.save()
  for number, rest in pairs(the_call.changed_records) do
    if #rest > 0 then
      records.write(number, false, rest)
    else
      call('HDEL', the_call.records, number)
    end
  end
end

-- Give up the jobs that a call has reserved, and count them by the base keys of their queues.
function recovery.give_up(some_reserved, counts)
  for i = #some_reserved, 1, -1 do
    local key, ids, owners, reserves = unpack(some_reserved[i])
    queue.enter(key)
    counts[key] = (counts[key] or 0) + (queue.bound and job_gets.give_up(ids, owners, reserves or {}) or 0)
    dead_letters.move()
  end
end

-- Leave the queue after an error. As far as possible, finish what earlier runs have begun.
function recovery.leave_after_error()
  if queue.base then
    mirror.start_over()
    pcall(dead_letters.move)
    pcall(function() queue.kind.settle() end)
    pcall(function() queue.kind.leave() end)
  end
  queue.forget()
  block.is_moving = false
end

-- After an error has ended the present run, put back what it has taken, and give up what it has reserved.
function recovery.undo()
  local before, popped = block.reserved_before, block.popped
  pcall(recovery.give_up, { unpack(the_call.reserved, before + 1) }, {})
  for i = #the_call.reserved, before + 1, -1 do the_call.reserved[i] = nil end
  for i = #popped, 1, -1 do
    local entry = popped[i]
    entry[5] = block.taken_marks[entry[1]] or {}
    local is_back = pcall(function()
      queue.forget()
      queue.enter(entry[1])
      give_back(entry, taken_by(entry))
      mirror.save()
    end)
    if not is_back then
      -- An index of the jobs has a wrong type. The messages are put back when this server has ended.
      local place = string.format('e%s.%d.%d.%d', the_call.arguments[HEADER_NUMBER], #the_call.replies, block.running or 0, i)
      pcall(records.write, place, false, { entry })
    end
  end
  block.begin_run()
  queue.forget()
end

-- Sort later calls before earlier ones: so the message taken first is the oldest again.
local function is_later(one, other)
  return tonumber(string.match(one, '%d+') or 0) > tonumber(string.match(other, '%d+') or 0)
end

-- Return the fields of all records of a dead server: reservations, which may be in many queues, in any order, and then
-- the calls, the latest first; and no replies.
local function all_fields(key)
  local fields, calls = {}, {}
  call('HDEL', key, 'last')
  for _, one in ipairs(call('HKEYS', key)) do
    if string.byte(one) == JOBS then
      fields[#fields + 1] = one
    elseif one ~= 'epoch' then
      calls[#calls + 1] = one
    end
  end
  table.sort(calls, is_later)
  for _, one in ipairs(calls) do fields[#fields + 1] = one end
  return fields, { 0 }
end

-- Call a function, which uses queues. Return nil and its values; or the text of the error that has ended it.
local function attempt(what)
  local is_done, value, other = pcall(what)
  if is_done then return nil, value, other end
  queue.forget()
  return the_call.error_text(value)
end

-- Return the fields that the block names, and the replies in the first record.
local function named_fields(key)
  local packed = call('HGET', key, the_call.arguments[block.first])
  return { unpack(the_call.arguments, block.first, block.last) }, packed and cmsgpack.unpack(packed)[2] or { 0 }
end

-- Give up jobs that clients of a dead server have reserved. Return as `put_back_record`; and whether there are more.
local function give_up_jobs(key, field, cursor, counts)
  local home = string.sub(field, 2)
  local why, count, next_cursor = attempt(function()
    queue.enter(home)
    the_call.work = the_call.work + the_call.BLOCK
    if not queue.bound then return 0, '0' end
    local given_up, following = job_gets.recover(job_gets.server_of(key), cursor)
    dead_letters.move()
    return given_up, following
  end)
  if why then return why end
  counts[home] = (counts[home] or 0) + count
  if next_cursor == '0' then
    call('HDEL', key, field)
  else
    call('HSET', key, field, next_cursor)
    return nil, true
  end
end

-- Put back the messages of a record, count them by base key, and delete it. Return an error text, or nil.
local function put_back_record(key, field, packed, counts)
  local is_record, record = pcall(cmsgpack.unpack, packed)
  if not (is_record and type(record) == 'table' and type(record[3]) == 'table') then
    return 'a record that cannot be read'
  end
  local why = type(record[4]) == 'table' and attempt(function() recovery.give_up(record[4], counts) end)
  if why then return why end
  for i = #record[3], 1, -1 do
    local entry, count = record[3][i], nil
    why, count = attempt(function()
      queue.enter(entry[1])
      local found = taken_by(entry, record[2])
      the_call.work = the_call.work + the_call.BLOCK + 4 * the_call.MESSAGE * #found
      return give_back(entry, found)
    end)
    if why then
      call('HSET', key, field, cmsgpack.pack(record))
      return why
    end
    record[3][i] = nil
    counts[entry[1]] = (counts[entry[1]] or 0) + count
  end
  call('HDEL', key, field)
end

-- Put back what calls have taken if their replies will not arrive. Does the current block.
--
-- Takes    a key of records, which is the block's key; the fields of calls, the latest first, or '' for all fields of a
--          dead server. Jobs that these calls have reserved are given up, too
-- Returns  1 if there is more to do, or 2 if that server is alive, else 0; how many replies the first field's record
--          had; how many records could not be put back, and why; then base keys, each with the number of messages
function recovery.recover()
  local key, is_all = block.home, the_call.arguments[block.first] == ''
  if is_all and call('HGET', key, 'epoch') ~= '0' then return { 2, 0, 0, '' } end
  local fields, first_replies = (is_all and all_fields or named_fields)(key)
  local reply, counts = { 0, #first_replies - 1, 0, '' }, {}
  queue.forget()
  for i, one in ipairs(fields) do
    local packed = call('HGET', key, one)
    local undo = string.byte(one) == JOBS and give_up_jobs or put_back_record
    local why, is_unfinished
    if packed then why, is_unfinished = undo(key, one, packed, counts) end
    if why then reply[3], reply[4] = reply[3] + 1, why end
    if is_unfinished or is_all and the_call.work > the_call.MAX_WORK and i < #fields then
      reply[1] = 1
      break
    end
  end
  if queue.base then
    queue.kind.settle()
    queue.kind.leave()
  end
  for other, count in pairs(counts) do reply[#reply + 1], reply[#reply + 2] = other, count end
  block.changed = true
  return reply
end

-- Reduce a record to the messages that have not arrived. Does the current block. Return how many these are.
--
-- Takes    the number of one of this server's calls; base keys, each with a count and that many words (taken_by)
function recovery.cut()
  local number = the_call.arguments[block.first]
  local wanted, at = {}, block.first + 1
  while at <= block.last do
    local key, last = the_call.arguments[at], at + 1 + tonumber(the_call.arguments[at + 1])
    wanted[key] = wanted[key] or {}
    count_words(wanted[key], the_call.arguments, at + 2, last)
    at = last + 1
  end
  local now, count = {}, 0
  for _, entry in ipairs(entries_of(number) or {}) do
    local left, arrived = split(entry, wanted[entry[1]] or {})
    the_call.work = the_call.work + the_call.MESSAGE * (#left + #arrived)
    if #left > 0 then
      now[#now + 1] = entry_with(entry, left)
      count = count + #left
    end
  end
  the_call.changed_records[number] = now
  return count
end

return recovery
