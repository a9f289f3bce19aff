-- Records: a call stores its replies, and the messages that it took from each queue, in a hash of the server
-- that sent it, until that server says that all of it has arrived. A call that is sent again is answered from
-- its record, not done twice. Messages that a dead server had taken can be put back.
--
-- Takes    KEYS[#KEYS]            the server's records, ${PREFIX}!calls:${identity}, if it has any
--          ARGV[HEADER_NUMBER]    the number of the call; '' to keep no record
--          ARGV[HEADER_EPOCH]     the epoch of the server's connection
--          ARGV[HEADER_AGAIN]     'again' if the call may have been done before
--          ARGV[HEADER_DONE]      fields of records that are not needed any longer, separated by spaces
-- Touches  the records, a hash:
--            epoch -> the epoch of the server's last connection; 0 after another server found this one dead
--            number -> { FORMAT, replies, entries, { base key, ids, owners } for each run that has reserved
--            jobs }, packed
--            j<base key> -> 1, or a cursor (job_gets.lua), while clients of this server may have reserved jobs of the
--            queue (jobs.lua)
--
-- A late call, from a lost connection or from a server that was found dead, has another epoch. It is refused
-- with BURIED before it has done anything.
--
-- An entry says what was taken from one queue: { base key, when the queue was made, reply, places, marks }. A
-- place says where messages are: a number is a result in that reply, a negative number is in the reply's
-- first value, a table holds the messages themselves. { marked = place } is for messages followed by their
-- flags (get.lua). `marks` is empty if no message has any; else a list of messages, each followed by its
-- marks (marks.lua) or false. False is needed because an equal message may have marks.

local FORMAT = 1

local records
-- The doctor has no records. It only notices what has ended.
local has_records
local is_recorded
local replies -- of the call (layout.py)
local entries, call_changed
local reserved, reserved_before -- jobs that the call has reserved; how many entries there were before the run
local out_of_memory -- the error, if the backend is out of memory

local taken -- entries for the messages that the block has taken
-- State of the run:
local taken_marks
local popped -- the messages that it has taken, to put back if an error ends the run

-- Return the key of a server's own, or of all servers: ${PREFIX}!name.
function own_key(name)
  return string.sub(records, 1, -1 - #'calls:' - #identity) .. name
end

-- Check that the call may be done.
--
-- Returns  the reply, if the call is not to be done; else nil
local function begin_call()
  if is_recorded then
    local epoch = try('HGET', records, 'epoch')
    if type(epoch) == 'table' then -- not a hash
      call('DEL', records)
      epoch = nil
    end
    epoch = tonumber(epoch or 0)
    if epoch ~= tonumber(ARGV[HEADER_EPOCH]) then
      return { err = 'BURIED the call is of an epoch that has ended' }
    end
    if ARGV[HEADER_AGAIN] == 'again' then
      local record = call('HGET', records, ARGV[HEADER_NUMBER])
      if record then
        return cmsgpack.unpack(record)[2]
      end
    end
  end
  if ARGV[HEADER_DONE] ~= '' then
    local fields = {}
    for field in string.gmatch(ARGV[HEADER_DONE], '%S+') do fields[#fields + 1] = field end
    local dropped = try('HDEL', records, unpack(fields))
    if type(dropped) == 'table' then
      return error_reply(dropped)
    end
  end
end

local function write_record(field, some_replies, some_entries, some_reserved)
  return call('HSET', records, field, cmsgpack.pack({ FORMAT, some_replies, some_entries, some_reserved }))
end

-- Begin a run. What earlier runs of the block have taken is noted, and stays taken.
local function begin_run()
  reserved_before = #reserved
  if #popped > 0 or next(taken_marks) then
    taken_marks, popped = {}, {}
  end
end

local function begin_records()
  if #taken > 0 then taken = {} end
  begin_run()
end

-- Note that the messages at that place in the block's reply have been taken from the queue.
local function note_taken(place)
  local entry = taken[#taken]
  if not entry or entry[1] ~= base or entry[2] ~= queue.made then
    entry = { base, queue.made, #replies + 1, {}, {} }
    taken[#taken + 1] = entry
  end
  table.insert(entry[4], place)
  for _, part in ipairs(taken_marks[base] or {}) do table.insert(entry[5], part) end
  taken_marks[base] = nil
end

-- Note messages as soon as they have left the list: Redis rolls nothing back if an error ends the run.
local function note_popped(messages)
  if not block.is_moving then
    popped[#popped + 1] = { base, queue.made, 0, { messages } }
  end
end

-- Note that the messages that were popped last are reserved jobs now.
local function note_held()
  popped[#popped] = nil
end

-- Note that jobs of the queue have been reserved for these owners.
local function note_reserved(ids, owners)
  if #ids > 0 then reserved[#reserved + 1] = { base, ids, owners } end
end

-- End a block that has been done. Return its reply.
local function keep(reply)
  for _, entry in ipairs(taken) do entries[#entries + 1] = entry end
  return reply
end

-- End the call. Return its reply; or nil and an error if its record is needed and cannot be written.
local function end_call()
  if is_recorded and call_changed then
    replies[1] = 1
    local is_done, reason = pcall(write_record, ARGV[HEADER_NUMBER], replies, entries, reserved)
    if not is_done then
      return nil, error_reply(reason)
    end
  end
  return replies
end
