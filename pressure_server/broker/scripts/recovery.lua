-- Recovery: what calls.lua keeps is dropped when it has arrived, and what never will is put back.
--
-- What goes back leaves the record in the same step, so it goes back once, whoever asks for it and how often.

local function make_recovery()
  local operations = {}
  local calls = base .. ':ext:calls'

  -- Takes    slots of ours whose answers have arrived
  -- Returns  1
  function operations.acknowledge(...)
    local fields = { ... }
    for i, slot in ipairs(fields) do fields[i] = identity .. ' ' .. slot end
    call('HDEL', calls, unpack(fields))
    return 1
  end

  -- The record of a call, or nil.
  local function record_of(field, number)
    local packed = call('HGET', calls, field)
    local record = packed and cmsgpack.unpack(packed)
    return record and record[1] == number and record or nil
  end

  -- What a call has taken: of each message itself, its marks, and the word by which it is put back, which has its
  -- flags before it where these were returned with it.
  local function taken_by(record)
    local taken, reply, marks_of = {}, record[2], {}
    local noted = record[4] or {}
    for i = 1, #noted, 2 do
      marks_of[noted[i]] = marks_of[noted[i]] or {}
      table.insert(marks_of[noted[i]], noted[i + 1])
    end
    for _, place in ipairs(record[3]) do
      local marked = type(place) == 'table' and place.marked
      local at = marked or place
      local some = type(at) == 'table' and at or at > 0 and reply[at] or reply[1][-at]
      local flags = marked and string.gmatch(some[#some], '%d+')
      for i = 1, marked and #some - 1 or #some do
        local message, marks = some[i], marks_of[some[i]]
        taken[#taken + 1] = {
          message = message, mark = marks and table.remove(marks, 1), flags = flags and (flags() or '0'),
        }
        taken[#taken].word = flags and taken[#taken].flags .. ' ' .. message or message
      end
    end
    return taken
  end

  local function restore(taken)
    local messages, marks = {}, {}
    for i, one in ipairs(taken) do messages[i], marks[i] = one.message, one.mark or nil end
    make_get().restore(messages, marks)
  end

  -- The record of a call that has still taken these.
  local function record_with(number, taken)
    local places, marks = {}, {}
    for i, one in ipairs(taken) do
      places[i] = one.flags and { marked = { one.message, one.flags } } or { one.message }
      if one.mark ~= nil then
        marks[#marks + 1], marks[#marks + 2] = one.message, one.mark
      end
    end
    return cmsgpack.pack({ number, false, places, marks })
  end

  -- Takes    the slot and the number of a call of ours, and messages that it has taken for a client that is gone
  -- Returns  how many are back at the head of the queue: none where a neighbour that took us for dead was
  --          faster, or the queue has been deleted since
  function operations.put_back(words)
    local field, number = identity .. ' ' .. words[1], words[2]
    local record = queue.bound and record_of(field, number)
    if not record then
      return 0
    end
    local wanted, back, rest = {}, {}, {}
    for i = 3, #words do wanted[words[i]] = (wanted[words[i]] or 0) + 1 end
    for _, one in ipairs(taken_by(record)) do
      local count = wanted[one.word] or 0
      if count > 0 then
        wanted[one.word], back[#back + 1] = count - 1, one
      else
        rest[#rest + 1] = one
      end
    end
    if #back > 0 then
      restore(back)
    end
    if #rest > 0 then
      call('HSET', calls, field, record_with(number, rest))
    else
      call('HDEL', calls, field)
    end
    return #back
  end

  -- Which of those that its call has opened a field of :ext:calls is; 0 for one that keeps an answer.
  local function opened_as(field)
    return tonumber(string.match(field, ' o%d+%.(%d+)$') or 0)
  end

  -- Takes    the identity of a server that is no more; or ours, a slot, and the number of a call whose answer
  --          nobody waits for any longer
  -- Returns  how many messages, which that server, or that call, had taken, are back at the head of the queue
  function operations.recover(who, slot, number)
    local records = {}
    if slot then
      local field = who .. ' ' .. slot
      local record = record_of(field, number)
      records[1] = record and { field, record }
      for _, other in ipairs(record and record[5] or {}) do
        local opened_by_it = record_of(who .. ' ' .. other, number)
        if opened_by_it then records[#records + 1] = { who .. ' ' .. other, opened_by_it } end
      end
    else
      local all = call('HGETALL', calls)
      for i = 1, #all, 2 do
        if string.sub(all[i], 1, #who + 1) == who .. ' ' then
          records[#records + 1] = { all[i], cmsgpack.unpack(all[i + 1]) }
        end
      end
    end
    -- What was taken first is to be the oldest again, also of what one call has opened (get.lua).
    table.sort(records, function(one, other)
      local call_of_one, call_of_other = tonumber(one[2][1]), tonumber(other[2][1])
      if call_of_one ~= call_of_other then
        return call_of_one > call_of_other
      end
      return opened_as(one[1]) > opened_as(other[1])
    end)
    local count = 0
    for _, record in ipairs(records) do
      local taken = taken_by(record[2])
      if queue.bound and #taken > 0 then
        restore(taken)
        count = count + #taken
      end
      call('HDEL', calls, record[1])
    end
    return count
  end

  return operations
end
