-- Marks: what clients may give with a message besides its bytes: flags, which only clients interpret, and the
-- time at which it expires. The list has no place for these.
--
-- Touches  :ext:marks  a hash: 'm' and a message, or 'h' and the hash of a long one -> 'position flags
--          expires' for each copy that has marks, oldest first, separated by ';'; state -> 'drift removed'
--
-- A copy is identified by its position: the number of messages that had been consumed when it was put, plus
-- the number queued before it. So the position of the message at the head is the number of consumed messages.
-- Marks with a lower position belong to copies that native clients have taken.
--
-- Positions shift if messages are removed from the middle, or if a native client dies between a pop and its
-- count. If no position fits, the copies in the list are counted, and surplus marks belong to copies that are
-- gone. The shift is then stored as the drift, so copies are counted once. A copy can get another's marks
-- only if equal messages have different marks and native clients have put or taken some of them.

local MAX_PLAIN = 64
-- Fields allowed beyond twice the number of queued messages before stale ones are dropped.
local MAX_STALE = 1000
-- Milliseconds, and microseconds, since 1970 by the backend's clock, once it has been read.
local now, microseconds

local function clock()
  if not now then
    local time = call('TIME')
    now, microseconds = time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
  end
  return now
end

-- Takes    'flags expires message'; expires is 0 for never, '+seconds' from now on, or seconds since 1970
-- Returns  the message; { flags, when it expires in milliseconds since 1970, 0 for never }
local function unmark(marked)
  local flags, from_now, seconds, first = string.match(marked, '^(%d+) (%+?)(%d+) ()')
  local expires = tonumber(seconds) * 1000
  return string.sub(marked, first), { flags, from_now == '+' and clock() + expires or expires }
end

-- Return the position of the newest copy in the text of a field.
local function newest_in(text)
  return tonumber(string.match(string.sub(text, -64), '(%-?%d+) %d+ %d+$'))
end

-- Call this before the first write: if the key has the wrong type, the call ends here.
local function make_marks()
  local key = base .. ':ext:marks'
  local self = {}
  local drift, removed = string.match(call('HGET', key, 'state') or '0 0', '(%-?%d+) (%d+)')
  drift, removed = tonumber(drift), tonumber(removed)

  local function note_state()
    call('HSET', key, 'state', string.format('%.0f %.0f', drift, removed))
  end

  local function field_of(message)
    return #message <= MAX_PLAIN and 'm' .. message or 'h' .. redis.sha1hex(message)
  end

  local function read(text)
    local copies = {}
    for position, flags, expires in string.gmatch(text or '', '(%-?%d+) (%d+) (%d+)') do
      copies[#copies + 1] = { tonumber(position), flags, tonumber(expires) }
    end
    return copies
  end

  local function join(copies)
    local texts = {}
    for i, copy in ipairs(copies) do
      texts[i] = string.format('%.0f %s %.0f', copy[1], copy[2], copy[3])
    end
    return table.concat(texts, ';')
  end

  local function write(field, text)
    if text ~= '' then
      call('HSET', key, field, text)
      return
    end
    call('HDEL', key, field)
    if (drift ~= 0 or removed > 0) and call('HLEN', key) == 1 then
      call('UNLINK', key)
      drift, removed = 0, 0
    end
  end

  -- Drop the fields of copies that native clients have taken, if these are the majority.
  local function drop_stale()
    if call('HLEN', key) <= 2 * (queue.length + removed) + MAX_STALE then
      return
    end
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local newest = all[i] ~= 'state' and newest_in(all[i + 1])
      if newest and newest < queue.consumed - removed then
        call('HDEL', key, all[i])
      end
    end
  end

  -- Store the marks of messages that are queued at positions from `first` on; marks[i] may be nil.
  function self.note(messages, marks, first)
    if queue.length == #messages then
      -- Nothing else is queued, so native clients have taken all copies noted so far.
      call('UNLINK', key)
      drift, removed = 0, 0
    end
    local copies_of, newest = {}, {}
    for i, message in ipairs(messages) do
      if marks[i] then
        local field, copy = field_of(message), { first + i - 1 - drift, marks[i][1], marks[i][2] }
        if not copies_of[field] then
          local text = call('HGET', key, field)
          copies_of[field], newest[field] = { text or nil }, text and newest_in(text)
        end
        local copies = copies_of[field]
        if not newest[field] or newest[field] < copy[1] then
          copies[#copies + 1], newest[field] = join({ copy }), copy[1]
        else
          -- The message has been put back at the head.
          local sorted = read(table.concat(copies, ';'))
          sorted[#sorted + 1] = copy
          table.sort(sorted, function(one, other) return one[1] < other[1] end)
          copies_of[field] = { join(sorted) }
        end
      end
    end
    for field, copies in pairs(copies_of) do write(field, table.concat(copies, ';')) end
    drop_stale()
  end

  -- Return the index of the copy at this position, which is the oldest one queued; nil if it has no marks.
  -- `others` is the number of copies, this one included, that were popped but are not processed yet.
  local function find(copies, message, position, others)
    while copies[1] and copies[1][1] < position - removed do
      table.remove(copies, 1)
    end
    for i, copy in ipairs(copies) do
      -- After a removal from the middle, a later copy may seem to be at the position of the first.
      if copy[1] + drift == position and (i == 1 or removed == 0) then return i end
    end
    if not copies[1] then
      return nil
    end
    -- Count no further than needed: what matters is whether a copy without marks exists.
    local most = #copies + 1 - others
    local there = others + (most > 0 and #call('LPOS', base, message, 'RANK', -1, 'COUNT', most) or 0)
    local first = math.max(1, #copies - there + 1)
    if not copies[first] or (there > #copies and copies[first][1] + drift > position) then
      return nil
    end
    drift = position - copies[first][1]
    note_state()
    return first
  end

  -- Takes    messages that have left the head of the list, oldest first, and the position of the first
  -- Returns  the marks of each that has any, by its index; these are removed from the hash
  function self.take(messages, first)
    local found, count_of, noted = {}, {}, {}
    for _, message in ipairs(messages) do count_of[message] = (count_of[message] or 0) + 1 end
    for i, message in ipairs(messages) do
      local field, position = field_of(message), first + i - 1
      local text = noted[field] and noted[field].text or call('HGET', key, field)
      if text then
        noted[field] = noted[field] or { text = text, from = 1 }
        local copies = noted[field]
        local own, flags, expires, behind = string.match(text, '^(%-?%d+) (%d+) (%d+);?()', copies.from)
        if own and tonumber(own) + drift == position then
          -- The usual case. It reads only the first of many equal copies.
          found[i], copies.from = { flags, tonumber(expires) }, behind
        elseif own then
          local others = read(string.sub(text, copies.from))
          local at = find(others, message, position, count_of[message])
          if at then
            found[i] = { others[at][2], others[at][3] }
            for _ = 1, at do table.remove(others, 1) end
          end
          noted[field] = { text = join(others), from = 1 }
        end
      end
      count_of[message] = count_of[message] - 1
    end
    for field, copies in pairs(noted) do write(field, string.sub(copies.text, copies.from)) end
    if queue.length == 0 then
      call('UNLINK', key)
    end
    return found
  end

  -- Return the marks of a message that stays queued at this position, or nil.
  function self.look(message, position)
    local copies = read(call('HGET', key, field_of(message)))
    local at = find(copies, message, position, 0)
    return at and { copies[at][2], copies[at][3] } or nil
  end

  -- Forget the marks of a message of which all copies, `count` of them, have been removed.
  function self.forget(message, count)
    removed = removed + count
    note_state()
    write(field_of(message), '')
  end

  -- Return whether any copy of a message has marks.
  function self.has(message)
    return call('HEXISTS', key, field_of(message)) == 1
  end

  -- Forget the marks of copies from a position on, which have been removed and count as consumed.
  function self.cut(messages, first)
    for _, message in ipairs(messages) do
      local kept = {}
      for _, copy in ipairs(read(call('HGET', key, field_of(message)))) do
        if copy[1] + drift < first then kept[#kept + 1] = copy end
      end
      write(field_of(message), join(kept))
    end
    drift = drift + #messages -- the others seem to be so much further from the beginning
    note_state()
  end

  return self
end

local function has_marks()
  return call('EXISTS', base .. ':ext:marks') == 1
end

local function is_expired(mark)
  return mark and mark[2] > 0 and mark[2] <= clock()
end
