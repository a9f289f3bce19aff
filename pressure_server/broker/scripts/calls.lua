-- Calls: what a block of a call has answered is kept until the caller has said that it arrived. A block that is sent
-- again is answered from there and not done twice; and what a server that died had taken can be put back.
--
-- Takes    ARGV[1]       our identity
--          block.slot    where the answer is kept, in place of what is there; '' to keep none
--          block.number  the block's number
--          block.how     'again' where it may have been done before; 'note' or 'share': waiting.lua; 'acknowledge'
--                        where its arguments are slots of answers that have arrived; else ''
-- Touches  :ext:calls  a hash: 'identity slot' -> the call's number, the reply, `places`, `taken_marks` and
--          `opened`, packed
--
-- `places` say where the messages are that were taken, in the order in which they were: a number is a result in
-- the reply, a negative one is in its first value; a table is the messages themselves. { marked = place } is of
-- messages with their flags behind them (get.lua). `taken_marks` are, for each queue, messages from where any have
-- marks, each followed by its own (marks.lua), or false: an equal one may have some. `opened` are the slots of
-- messages that have been opened, and are kept there.

local kept, places, taken_marks, opened

-- Begins a block. Returns the answer that is kept where the block has been done before, or nil.
local function begin_answer()
  kept = block.slot ~= '' and identity .. ' ' .. block.slot
  places, taken_marks, opened = {}, {}, {}
  if kept and block.how == 'again' then
    local record = call('HGET', block.home .. ':ext:calls', kept)
    record = record and cmsgpack.unpack(record)
    return record and record[1] == block.number and record[2] or nil
  end
end

-- Writes a record. Returns an error where nothing has been written.
local function write_record(key, field, record)
  record = cmsgpack.pack(record)
  local done = try('HSET', key, field, record)
  if type(done) == 'table' then
    if not string.find(done.err, 'WRONGTYPE', 1, true) then
      return done
    end
    -- What is taken must not be lost for whatever somebody has put there.
    call('DEL', key)
    call('HSET', key, field, record)
  end
end

-- Keeps the reply and returns it; where there is nothing to keep, what is there has arrived all the same.
local function keep(reply)
  local key = block.home .. ':ext:calls'
  if kept and changed then
    local record = { block.number, reply, places }
    local marks = taken_marks[block.home] or {}
    if #marks > 0 or #opened > 0 then
      record[4], record[5] = marks, opened
    end
    local refusal = write_record(key, kept, record)
    if refusal then
      return refusal -- it was the first write, so nothing has been done
    end
  elseif kept then
    try('HDEL', key, kept)
  end
  return reply
end

-- Drops what is kept in slots of ours; returns 1.
local function acknowledge()
  local fields = { unpack(ARGV, block.first, block.last) }
  for i, slot in ipairs(fields) do fields[i] = identity .. ' ' .. slot end
  call('HDEL', block.home .. ':ext:calls', unpack(fields))
  return 1
end
