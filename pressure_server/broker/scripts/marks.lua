-- Marks: what some clients give with a message, and the list has no place for: flags, which mean something to
-- clients, and when the message expires.
--
-- Touches  :ext:marks  a hash: 'm' and a message, or 'h' and the hash of a long one -> 'position flags expires'
--          of each copy that has marks, oldest first, with ';' between; and state -> 'drift removed'
--
-- A copy is known by its position: how many messages had been produced before it. Taken from the head, its position
-- is how many have been consumed. Marks of a lower one are those of a copy that a native client has taken.
--
-- Positions are off where messages were removed from the middle (by up to as many), and where a native client
-- died before it had counted what it took. So where there is none that fits, the copies are counted: marks that
-- are too many belong to copies that are gone. By how much positions are off is then noted as the drift, so that
-- this is done once. Only of equal messages with different marks, some of which native clients put or took
-- meanwhile, can one then have those of another.

local MOST_PLAIN = 64
local now -- milliseconds since 1970, by the backend's clock, where that was asked for

local function clock()
  if not now then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
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

-- To be made before anything is written: where the key is of a wrong type, the call ends here.
local function make_marks()
  local key = base .. ':ext:marks'
  local self = {}
  local drift, removed = string.match(call('HGET', key, 'state') or '0 0', '(%-?%d+) (%d+)')
  drift, removed = tonumber(drift), tonumber(removed)

  local function note_state()
    call('HSET', key, 'state', string.format('%.0f %.0f', drift, removed))
  end

  local function field_of(message)
    return #message <= MOST_PLAIN and 'm' .. message or 'h' .. redis.sha1hex(message)
  end

  local function read(text)
    local copies = {}
    for position, flags, expires in string.gmatch(text or '', '(%-?%d+) (%d+) (%d+)') do
      copies[#copies + 1] = { tonumber(position), flags, tonumber(expires) }
    end
    return copies
  end

  local function write(field, copies)
    if #copies == 0 then
      call('HDEL', key, field)
      if (drift ~= 0 or removed > 0) and call('HLEN', key) == 1 then
        call('UNLINK', key)
        drift, removed = 0, 0
      end
      return
    end
    for i, copy in ipairs(copies) do
      copies[i] = string.format('%.0f %s %.0f', copy[1], copy[2], copy[3])
    end
    call('HSET', key, field, table.concat(copies, ';'))
  end

  -- Notes the marks of messages that are queued at positions from `first` on; marks[i] may be nil.
  function self.note(messages, marks, first)
    if queue.length == #messages then
      -- Nothing else is queued. What is noted yet, native clients have taken; where only these take, nobody else
      -- drops it.
      call('UNLINK', key)
      drift, removed = 0, 0
    end
    for i, message in ipairs(messages) do
      if marks[i] then
        local field = field_of(message)
        local copies = read(call('HGET', key, field))
        copies[#copies + 1] = { first + i - 1 - drift, marks[i][1], marks[i][2] }
        table.sort(copies, function(one, other) return one[1] < other[1] end)
        write(field, copies)
      end
    end
  end

  -- Which of the copies is the oldest one queued, which is at this position; nil where that has no marks.
  -- `others` is how many more there are, beside those in the list.
  local function find(copies, message, position, others)
    while copies[1] and copies[1][1] < position - removed do
      table.remove(copies, 1)
    end
    for i, copy in ipairs(copies) do
      if copy[1] + drift == position then return i end
    end
    if not copies[1] then
      return nil
    end
    -- Whether there is one more than those that have marks is all that matters of how many there are.
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
  -- Returns  the marks of each that has any, by its number; they are noted no longer
  function self.take(messages, first)
    local found, count_of = {}, {}
    for _, message in ipairs(messages) do count_of[message] = (count_of[message] or 0) + 1 end
    for i, message in ipairs(messages) do
      local field = field_of(message)
      local text = call('HGET', key, field)
      if text then
        local copies = read(text)
        local at = find(copies, message, first + i - 1, count_of[message])
        if at then
          found[i] = { copies[at][2], copies[at][3] }
          for _ = 1, at do table.remove(copies, 1) end
        end
        write(field, copies)
      end
      count_of[message] = count_of[message] - 1
    end
    if queue.length == 0 then
      call('UNLINK', key)
    end
    return found
  end

  -- The marks of a message that stays queued at this position, or nil.
  function self.look(message, position)
    local copies = read(call('HGET', key, field_of(message)))
    local at = find(copies, message, position, 0)
    return at and { copies[at][2], copies[at][3] } or nil
  end

  -- All copies of a message, so many, have been removed.
  function self.forget(message, count)
    removed = removed + count
    note_state()
    write(field_of(message), {})
  end

  return self
end

local function has_marks()
  return call('EXISTS', base .. ':ext:marks') == 1
end

local function is_expired(mark)
  return mark and mark[2] > 0 and mark[2] <= clock()
end
