-- Records: a call stores its replies, and the messages that it took from each queue, in a hash of the server that sent
-- it, until that server says that everything has arrived (docs/internals/recovery.md).
--
-- Takes    ARGV[HEADER_NUMBER], HEADER_EPOCH, HEADER_AGAIN and HEADER_DONE (layout.py)
-- Touches  the server's records, ${PREFIX}!calls:${identity}, the last of KEYS; a hash:
--            epoch -> the epoch of the server's last connection; 0 after another server found this one dead
--            number -> { FORMAT, replies, entries, { base key, ids, owners, reserves } for each run that has reserved
--            jobs }, packed
--            last -> a record without entries, and the number of the last recorded call: if a backend lacks the latest
--            calls, this tells which ones
--            j<base key> -> 1, or a cursor (job_gets.lua), while clients of this server may have reserved jobs of the
--            queue (jobs.lua)
--
-- An entry says what was taken from one queue: { base key, when the queue was made, reply, places, marks }. A place says
-- where messages are: a number is a result in that reply, a negative number is in the reply's first value, a table
-- contains the messages themselves. { marked = place } is for messages followed by their flags (get.lua). `marks` is
-- empty if no message has any; else a list of messages, of long ones only the beginning (records.key_of), each followed
-- by its marks (marks.lua), or by false, because an equal message may have marks.

local records = {}
local FORMAT = 1
-- Bytes. A record repeats only this beginning of a message in its marks: a record of 32 MiB takes 40 ms.
local LONG = 1024
local SPACE = 32
-- { FORMAT, false, {}, false, and a string of fewer than 32 bytes, packed.
local LAST, SHORT_STRING = '\149\1\194\144\194', 160

-- Check that the call may be done. If not, return its reply.
function records.begin()
  local key, arguments = the_call.records, the_call.arguments
  if the_call.is_recorded then
    local epoch = try('HGET', key, 'epoch')
    if type(epoch) == 'table' then -- not a hash
      call('DEL', key)
      epoch = nil
    end
    if not redis.acl_check_cmd('HSET', key, 'last', '') then
      -- Without records, no server could put back what the call takes.
      return { err = 'NOPERM this server has no permissions to write its records: HSET ' .. key }
    elseif tonumber(epoch or 0) ~= tonumber(arguments[HEADER_EPOCH]) then
      return { err = 'BURIED the call is of an epoch that has ended' }
    end
    local record = arguments[HEADER_AGAIN] == 'again' and call('HGET', key, arguments[HEADER_NUMBER])
    if record then return cmsgpack.unpack(record)[2] end
  end
  if arguments[HEADER_DONE] ~= '' then
    local fields = {}
    for field in string.gmatch(arguments[HEADER_DONE], '%S+') do fields[#fields + 1] = field end
    local dropped = try('HDEL', key, unpack(fields))
    if type(dropped) == 'table' then return the_call.error_reply(dropped) end
  end
end

function records.write(field, replies, entries)
  return call('HSET', the_call.records, field, cmsgpack.pack({ FORMAT, replies, entries }))
end

-- Return the beginning of a message, which stands for it in the marks of an entry. The order tells messages of the same
-- beginning apart, as it does equal ones.
function records.key_of(message)
  return #message > LONG and string.sub(message, 1, LONG) or message
end

-- Note that the messages at that place in the block's reply have been taken from the queue.
function records.note_taken(place)
  local taken, base = block.taken, queue.base
  local entry = taken[#taken]
  if not entry or entry[1] ~= base or entry[2] ~= queue.made then
    entry = { base, queue.made, #the_call.replies + 1, {}, {} }
    taken[#taken + 1] = entry
  end
  local places, marks = entry[4], entry[5]
  places[#places + 1] = place
  local its_marks = block.taken_marks[base]
  if its_marks then
    for _, part in ipairs(its_marks) do marks[#marks + 1] = part end
    block.taken_marks[base] = nil
  end
end

-- Note messages as soon as they have left the list: Redis rolls nothing back if an error ends the run.
function records.note_popped(messages)
  if not block.is_moving then
    block.popped[#block.popped + 1] = { queue.base, queue.made, 0, { messages } }
  end
end

-- Note that the messages that `note_popped` has noted last, if any, are now reserved jobs, or queued again.
function records.note_held()
  block.popped[#block.popped] = nil
end

-- Note that jobs of the queue have been reserved for these owners. `reserves` has how often each has been, or is empty.
function records.note_reserved(ids, owners, reserves)
  if #ids > 0 then the_call.reserved[#the_call.reserved + 1] = { queue.base, ids, owners, reserves } end
end

-- End a block that has been done. Return its reply.
function records.keep(reply)
  for _, entry in ipairs(block.taken) do the_call.entries[#the_call.entries + 1] = entry end
  return reply
end

-- Return whether some of these reservations end with their connection: the owners of the others begin with a space.
local function end_with_connection(owners)
  for _, owner in ipairs(owners) do
    if string.byte(owner) ~= SPACE then return true end
  end
  return false
end

-- Return the fields j<base key> of the queues in which the call has reserved jobs, each followed by its value.
local function fields_of_jobs()
  local fields, seen = {}, {}
  for _, reserved in ipairs(the_call.reserved) do
    local base = reserved[1]
    if not seen[base] and end_with_connection(reserved[3]) then
      fields[#fields + 1], fields[#fields + 2], seen[base] = 'j' .. base, 1, true
    end
  end
  return fields
end

-- End the call. Return its reply.
function records.finish()
  local replies = the_call.replies
  if the_call.is_recorded and the_call.changed then
    replies[1] = 1
    local number = the_call.arguments[HEADER_NUMBER]
    local packed = cmsgpack.pack({ FORMAT, replies, the_call.entries, the_call.reserved })
    local last = LAST .. string.char(SHORT_STRING + #number) .. number
    if #the_call.reserved > 0 then
      call('HSET', the_call.records, number, packed, 'last', last, unpack(fields_of_jobs()))
    else
      call('HSET', the_call.records, number, packed, 'last', last)
    end
  end
  return replies
end

return records
