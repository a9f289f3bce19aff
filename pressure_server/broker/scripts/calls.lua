-- Calls: what a call has answered is kept until the caller has said that it arrived. A call that is sent again is
-- answered from there and not done twice; and what a server that died had taken can be put back.
--
-- Takes    ARGV[1]  our identity
--          ARGV[4]  the slot where the answer is kept, in place of what is there; '' to keep none
--          ARGV[5]  the call's number
--          ARGV[6]  'again' where it may have been done before; 'note' or 'share': waiting.lua; else ''
-- Touches  :ext:calls  a hash: 'identity slot' -> the call's number, the reply, `places`, `taken_marks` and
--          `opened`, packed
--
-- `places` say where the messages are that were taken, in the order in which they were: a number is a result in
-- the reply, a negative one is in its first value; a table is the messages themselves. { marked = place } is of
-- messages with their flags behind them (get.lua). `taken_marks` are, for each queue, messages from where any have
-- marks, each followed by its own (marks.lua), or false: an equal one may have some. `opened` are the slots of
-- messages that have been opened, and are kept there.

local kept = ARGV[4] ~= '' and identity .. ' ' .. ARGV[4]
local places, taken_marks, opened = {}, {}, {}

if kept and ARGV[6] == 'again' then
  local record = call('HGET', KEYS[1] .. ':ext:calls', kept)
  record = record and cmsgpack.unpack(record)
  if record and record[1] == ARGV[5] then
    return record[2]
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
  local key = KEYS[1] .. ':ext:calls'
  if kept and changed then
    local record = { ARGV[5], reply, places }
    local marks = taken_marks[KEYS[1]] or {}
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
