-- Recovery: what calls.lua keeps is dropped when it has arrived, and what never will is put back.

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

  local function messages_of(record)
    local messages, reply = {}, record[2]
    for _, place in ipairs(record[3]) do
      local some = type(place) == 'table' and place or place > 0 and reply[place] or reply[1][-place]
      for i = 1, #some do messages[#messages + 1] = some[i] end
    end
    return messages
  end

  -- Takes    the identity of a server that is no more; or ours, a slot, and the number of a call whose answer
  --          nobody waits for any longer
  -- Returns  how many messages, which that server, or that call, had taken, are back at the head of the queue
  function operations.recover(who, slot, number)
    local records = {}
    if slot then
      local field = who .. ' ' .. slot
      local packed = call('HGET', calls, field)
      records[1] = packed and { field, cmsgpack.unpack(packed) } or nil
      if records[1] and records[1][2][1] ~= number then records[1] = nil end
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
