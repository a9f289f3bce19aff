-- Recovery: what records.lua keeps, and never will arrive, is put back.
--
-- What goes back leaves the record in the same call, so it goes back once, whoever asks for it and how often. It goes
-- back only to the queue from which it was taken, not to another one that has its name now.

-- Records of ours that blocks of this call have changed: number -> entries, with the messages themselves.
local changed_records = {}

local function make_recovery()
  local operations = {}

  -- What an entry has taken: of each message itself, its mark, and the word by which it is put back, which has its
  -- flags before it where these were returned with it.
  local function taken_by(entry, some_replies)
    local found, marks_of = {}, {}
    local reply, marks = some_replies and some_replies[entry[3]], entry[5] or {}
    for i = 1, #marks, 2 do
      marks_of[marks[i]] = marks_of[marks[i]] or {}
      table.insert(marks_of[marks[i]], marks[i + 1])
    end
    for _, place in ipairs(entry[4]) do
      local marked = type(place) == 'table' and place.marked
      local at = marked or place
      local some = type(at) == 'table' and at or at > 0 and reply[at] or reply[1][-at]
      local flags = marked and string.gmatch(some[#some], '%d+')
      for i = 1, marked and #some - 1 or #some do
        local message, its_marks = some[i], marks_of[some[i]]
        local one = { message = message, mark = its_marks and table.remove(its_marks, 1) }
        one.flags = flags and (flags() or '0')
        one.word = flags and one.flags .. ' ' .. message or message
        found[#found + 1] = one
      end
    end
    return found
  end

  -- The entry that still has these.
  local function entry_with(entry, found)
    local its_places, marks = {}, {}
    for i, one in ipairs(found) do
      its_places[i] = one.flags and { marked = { one.message, one.flags } } or { one.message }
      if one.mark ~= nil then
        marks[#marks + 1], marks[#marks + 2] = one.message, one.mark
      end
    end
    return { entry[1], entry[2], 0, its_places, marks }
  end

  -- Whether the queue is the one from which an entry has taken. Where native clients make and delete it, that shows
  -- only in what has been consumed.
  local function is_queue_of(entry, count)
    return queue.bound and queue.made == entry[2] and (queue.made or queue.consumed >= count)
  end

  -- Puts back what was taken from the queue. Returns how many messages these were: none if that queue is no more.
  local function give_back(entry, found)
    if #found == 0 or not is_queue_of(entry, #found) then
      return 0
    end
    local messages, marks = {}, {}
    for i, one in ipairs(found) do messages[i], marks[i] = one.message, one.mark or nil end
    make_get().restore(messages, marks)
    return #found
  end

  -- Puts back what an entry has taken from the queue; `reply` is that of its block. Returns how many messages.
  function operations.restore(entry, reply)
    return give_back(entry, taken_by(entry, { [0] = reply }))
  end

  -- What a call of ours has taken, with the messages themselves; nil if there is no record of it.
  local function entries_of(number)
    if changed_records[number] then
      return changed_records[number]
    end
    local packed = call('HGET', records, number)
    if not packed then
      return nil
    end
    local found = {}
    local _, some_replies, some_entries = unpack(cmsgpack.unpack(packed))
    for i, entry in ipairs(some_entries) do found[i] = entry_with(entry, taken_by(entry, some_replies)) end
    return found
  end

  -- Takes    the number of a call of ours, and messages that it has taken from this queue for a client that is gone
  -- Returns  how many are back at the head of the queue: none where a server that took us for dead was faster, or
  --          the queue has been deleted since
  function operations.put_back(words)
    local number, wanted = words[1], {}
    for i = 2, #words do wanted[words[i]] = (wanted[words[i]] or 0) + 1 end
    local rest = entries_of(number)
    if not rest then
      return 0
    end
    local count, now = 0, {}
    for _, entry in ipairs(rest) do
      local back, others = {}, {}
      for _, one in ipairs(entry[1] == base and taken_by(entry) or {}) do
        local is_wanted = (wanted[one.word] or 0) > 0
        wanted[one.word] = is_wanted and wanted[one.word] - 1 or nil
        table.insert(is_wanted and back or others, one)
      end
      count = count + give_back(entry, back)
      if #back == 0 then
        now[#now + 1] = entry
      elseif #others > 0 then
        now[#now + 1] = entry_with(entry, others)
      end
    end
    changed_records[number] = now
    changed = true
    return count
  end

  -- Notes in the records what has gone back in this call.
  function operations.save()
    -- A backend out of memory refuses a script whose first write needs some. This one does nothing.
    call('PERSIST', records)
    for number, rest in pairs(changed_records) do
      if #rest > 0 then
        write_record(number, false, rest)
      else
        call('HDEL', records, number)
      end
    end
  end

  -- Puts back what has been taken, if an error has ended the block or the call.
  function operations.undo(some_entries)
    for i = #some_entries, 1, -1 do
      local entry = some_entries[i]
      entry[5] = entry[5] or taken_marks[entry[1]] or {}
      local is_back = pcall(function()
        base, mirror = nil, nil
        enter(entry[1])
        give_back(entry, taken_by(entry, replies))
        save_mirror()
      end)
      if not is_back then
        -- It comes back when the caller is no more.
        pcall(write_record, 'e' .. ARGV[HEADER_NUMBER] .. '.' .. #replies .. '.' .. i, false, { entry })
      end
    end
  end

  -- Later calls first, and of what one call has opened the last first (get.lua): what was taken first is to be the
  -- oldest again.
  local function is_later(one, other)
    local call_of_one, n_of_one = string.match(one, '^%l?(%d+)%.?(%d*)')
    local call_of_other, n_of_other = string.match(other, '^%l?(%d+)%.?(%d*)')
    if call_of_one ~= call_of_other then
      return tonumber(call_of_one or 0) > tonumber(call_of_other or 0)
    end
    return (tonumber(n_of_one) or 0) > (tonumber(n_of_other) or 0)
  end

  -- The fields of all records of a server, the latest first.
  local function all_fields(key)
    local fields = {}
    for _, one in ipairs(call('HKEYS', key)) do
      if one ~= 'epoch' then fields[#fields + 1] = one end
    end
    table.sort(fields, is_later)
    return fields
  end

  -- The fields that the block names, each behind those that its call has opened; and the replies of the first.
  local function named_fields(key)
    local fields, first_replies = {}, nil
    for i = block.first, block.last do
      local packed = call('HGET', key, ARGV[i])
      local record = packed and cmsgpack.unpack(packed) or {}
      for n = record[4] or 0, 1, -1 do fields[#fields + 1] = 'o' .. ARGV[i] .. '.' .. n end
      fields[#fields + 1] = ARGV[i]
      first_replies = i == block.first and record[2] or first_replies
    end
    return fields, first_replies or { 0 }
  end

  -- Puts back what is in a record, counting messages by base key, and removes it. Returns why it cannot, or nil.
  local function put_back_record(key, field, packed, counts)
    local is_record, record = pcall(cmsgpack.unpack, packed)
    if not (is_record and type(record) == 'table' and type(record[3]) == 'table') then
      return 'a record that cannot be read'
    end
    for i = #record[3], 1, -1 do
      local entry = record[3][i]
      local is_done, count = pcall(function()
        enter(entry[1])
        local found = taken_by(entry, record[2])
        work = work + BLOCK + 4 * MESSAGE * #found
        return give_back(entry, found)
      end)
      if not is_done then
        base, mirror = nil, nil
        call('HSET', key, field, cmsgpack.pack(record))
        return error_text(count)
      end
      record[3][i] = nil
      counts[entry[1]] = (counts[entry[1]] or 0) + count
    end
    call('HDEL', key, field)
  end

  -- Puts back what calls have taken whose replies will not arrive. Does the block that has begun.
  --
  -- Takes    a key of records, which is the block's key; fields, the latest first, whose calls' open messages go back,
  --          too; or '' for all fields, of a server that has died
  -- Returns  1 if there is more to do, or 2 if that server lives; how many replies the first field's record had, 0 if
  --          there is none; how many records could not be put back, and why; then base keys, each with the number of
  --          messages that are back there
  function operations.recover()
    local key, is_all = block.home, ARGV[block.first] == ''
    if is_all and call('HGET', key, 'epoch') ~= '0' then
      return { 2, 0, 0, '' }
    end
    local fields, first_replies
    if is_all then
      fields, first_replies = all_fields(key), { 0 }
    else
      fields, first_replies = named_fields(key)
    end
    local reply, counts = { 0, #first_replies - 1, 0, '' }, {}
    base, mirror = nil, nil
    for i, one in ipairs(fields) do
      local packed = call('HGET', key, one)
      local why = packed and put_back_record(key, one, packed, counts)
      if why then
        reply[3], reply[4] = reply[3] + 1, why
        if not is_all then break end -- the record of a call says what it has opened
      end
      if is_all and work > MOST_WORK and i < #fields then
        reply[1] = 1
        break
      end
    end
    save_mirror()
    for other, count in pairs(counts) do
      reply[#reply + 1], reply[#reply + 2] = other, count
    end
    changed = true
    return reply
  end

  -- Cuts a record down. Does the block that has begun.
  --
  -- Takes    the number of a call of ours; base keys, each with a count, and so many messages by their words
  -- Returns  how many messages the record still has
  function operations.cut()
    local number = ARGV[block.first]
    local wanted, at = {}, block.first + 1
    while at <= block.last do
      local key, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
      wanted[key] = wanted[key] or {}
      for i = at + 2, last do wanted[key][ARGV[i]] = (wanted[key][ARGV[i]] or 0) + 1 end
      at = last + 1
    end
    local now, count = {}, 0
    for _, entry in ipairs(entries_of(number) or {}) do
      local left, words = {}, wanted[entry[1]] or {}
      for _, one in ipairs(taken_by(entry)) do
        work = work + MESSAGE
        if (words[one.word] or 0) > 0 then
          words[one.word] = words[one.word] - 1
          left[#left + 1] = one
        end
      end
      if #left > 0 then
        now[#now + 1] = entry_with(entry, left)
        count = count + #left
      end
    end
    changed_records[number] = now
    return count
  end

  return operations
end
