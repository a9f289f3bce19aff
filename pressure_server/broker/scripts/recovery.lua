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

  local function messages_of(record)
    local messages, reply = {}, record[2]
    for _, place in ipairs(record[3]) do
      local some = type(place) == 'table' and place or place > 0 and reply[place] or reply[1][-place]
      for i = 1, #some do messages[#messages + 1] = some[i] end
    end
    return messages
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
    for _, message in ipairs(messages_of(record)) do
      local count = wanted[message] or 0
      if count > 0 then
        wanted[message], back[#back + 1] = count - 1, message
      else
        rest[#rest + 1] = message
      end
    end
    if #back > 0 then
      make_get().restore(back)
    end
    if #rest > 0 then
      call('HSET', calls, field, cmsgpack.pack({ number, false, { rest } }))
    else
      call('HDEL', calls, field)
    end
    return #back
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
    else
      local all = call('HGETALL', calls)
      for i = 1, #all, 2 do
        if string.sub(all[i], 1, #who + 1) == who .. ' ' then
          records[#records + 1] = { all[i], cmsgpack.unpack(all[i + 1]) }
        end
      end
    end
    -- What was taken first is to be the oldest again.
    table.sort(records, function(one, other) return tonumber(one[2][1]) > tonumber(other[2][1]) end)
    local count = 0
    for _, record in ipairs(records) do
      local messages = messages_of(record[2])
      if queue.bound and #messages > 0 then
        make_get().restore(messages)
        count = count + #messages
      end
      call('HDEL', calls, record[1])
    end
    return count
  end

  return operations
end
