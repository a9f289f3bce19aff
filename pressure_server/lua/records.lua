-- Records: what a call has answered, and what it has taken from which queue, is kept under one key of the caller
-- until the caller says that it has arrived. A call that is sent again is answered from its record, and not done
-- twice; and what a server that died had taken can be put back.
--
-- Takes    KEYS[#KEYS]            the caller's records, ${PREFIX}!calls:${identity}, if it has any
--          ARGV[HEADER_NUMBER]    the call's number; '' to keep no record
--          ARGV[HEADER_EPOCH]     of the caller's connection
--          ARGV[HEADER_AGAIN]     'again' if the call may have been done before
--          ARGV[HEADER_DONE]      fields whose records are not needed any longer, with spaces between
-- Touches  the records, a hash:
--            epoch -> that of the caller's last connection; 0 once another server has taken the caller for dead
--            number -> { FORMAT, replies, entries, how many messages the call has opened }, packed
--            o<number>.<n> -> the same of the n-th message that the call has opened (get.lua)
--
-- A late call, of a connection that was lost or of a server that was taken for dead, has another epoch, and is
-- refused with BURIED before it has done anything.
--
-- An entry is what was taken from one queue: { base key, when the queue was made, reply, places, marks }. A place is
-- where messages are in that reply: a number is one of its results, a negative one is in its first value; a table is
-- the messages themselves. { marked = place } is of messages with their flags behind them (get.lua). Marks are
-- messages from where any have marks, each followed by its own (marks.lua), or false: an equal one may have some.

local FORMAT = 1

local records = KEYS[#KEYS]
local is_recorded = ARGV[HEADER_NUMBER] ~= ''
local replies = { 0 } -- of the call: see layout.py
local entries, call_changed = {}, false
local open_count = 0 -- messages that the call has opened
local out_of_memory -- the error, where the backend is

-- Of the block:
local taken = {} -- entries of what it has taken
local taken_marks, opened = {}, {}
local popped = {} -- entries of the same, for the case that an error ends the block

-- Checks that the call may be done. The first write proves that records can be written: Redis does not refuse a
-- script's later ones for want of memory.
--
-- Returns  the reply, if the call is not to be done; else nil
local function begin_call()
  if is_recorded then
    local epoch = try('HINCRBY', records, 'epoch', 0)
    local refusal = type(epoch) == 'table' and error_text(epoch)
    if refusal and string.sub(refusal, 1, 4) == 'OOM ' then
      out_of_memory = refusal
      epoch = tonumber(call('HGET', records, 'epoch') or 0)
    elseif refusal and string.sub(refusal, 1, 10) == 'WRONGTYPE ' then
      call('DEL', records)
      epoch = 0
    elseif refusal then
      return { err = refusal }
    end
    if epoch ~= tonumber(ARGV[HEADER_EPOCH]) then
      if epoch == 0 and call('HLEN', records) == 1 then
        call('DEL', records)
      end
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

local function write_record(field, some_replies, some_entries, has_opened)
  return call('HSET', records, field, cmsgpack.pack({ FORMAT, some_replies, some_entries, has_opened }))
end

local function begin_records()
  if #taken > 0 or #popped > 0 or #opened > 0 or next(taken_marks) then
    taken, taken_marks, opened, popped = {}, {}, {}, {}
  end
end

-- Notes that the messages at that place of the block's reply have been taken from the queue.
local function note_taken(place)
  local entry = taken[#taken]
  if not entry or entry[1] ~= base or entry[2] ~= queue.made then
    entry = { base, queue.made, #replies + 1, {} }
    taken[#taken + 1] = entry
  end
  table.insert(entry[4], place)
end

-- Notes messages as soon as they have left the list: Redis undoes nothing when an error ends the block.
local function note_popped(messages)
  if not block.is_moving then
    popped[#popped + 1] = { base, queue.made, 0, { messages } }
  end
end

-- Ends a block that has been done. Returns its reply.
local function keep(reply)
  for _, entry in ipairs(taken) do
    entry[5] = taken_marks[entry[1]] or {}
    entries[#entries + 1] = entry
  end
  return reply
end

-- Ends the call. Returns its reply; or nil and the error if it has to be recorded, and cannot be.
local function end_call()
  if is_recorded and call_changed then
    replies[1] = 1
    local is_done, reason = pcall(write_record, ARGV[HEADER_NUMBER], replies, entries, open_count)
    if not is_done then
      return nil, error_reply(reason)
    end
  end
  return replies
end
