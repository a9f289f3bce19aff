-- Marks: what clients may give with a message besides its bytes: flags, which only clients interpret, and the
-- time at which it expires; and how often it has been delivered, if it has come back. The list has no place for these.
--
-- Touches  :ext:marks  a hash: 'm' and a message, or 'h' and the hash of a long one -> 'position flags
--          expires', or 'position flags expires deliveries', for each copy that has marks, oldest first, separated by
--          ';'; state -> 'drift removed'
--
-- In a record, and between modules, a mark is { flags, expires }; or { flags, expires, false, deliveries }, because jobs
-- and logs have something else in the third place (job_gets.lua, log.lua).
--
-- A copy is identified by its position: the number of messages that had been consumed when it was put, plus
-- the number queued before it. So the position of the message at the head is the number of consumed messages.
-- Marks with a lower position belong to copies that native clients have taken.
--
-- Positions shift if messages are removed from the middle, or if a native client dies between a pop and its
-- count. If no position fits, the copies in the list are counted, and surplus marks belong to copies that are
-- gone. The shift is then stored as the drift, so copies are counted once. A copy can get another's marks
-- only if equal messages have different marks and native clients have put or taken some of them.

local the_call = require 'core/call'
local queue = require 'core/queue'

local marks = {}
local MAX_PLAIN = 64
-- Fields allowed beyond twice the number of queued messages before stale ones are dropped.
local MAX_STALE = 1000

-- Takes    'flags expires message'; expires is 0 for never, '+seconds' from now on, or seconds since 1970
-- Returns  the message; { flags, when it expires in milliseconds since 1970, 0 for never }
function marks.unmark(marked)
  local flags, from_now, seconds, first = string.match(marked, '^(%d+) (%+?)(%d+) ()')
  local expires = tonumber(seconds) * 1000
  return string.sub(marked, first), { flags, from_now == '+' and the_call.clock() + expires or expires }
end

-- Return a mark; `deliveries` may be nil or ''.
function marks.of(flags, expires, deliveries)
  local count = tonumber(deliveries or nil) or 0
  return count > 0 and { flags, tonumber(expires), false, count } or { flags, tonumber(expires) }
end

-- Return whether a message with this mark, which may be nil or false, has expired.
function marks.is_expired(mark)
  return mark and mark[2] > 0 and mark[2] <= the_call.clock()
end

-- Return the marks of a queue, which need not have any. Call this before the first write: if the key has the wrong
-- type, the call ends here.
function marks.open(base)
  local key = base .. ':ext:marks'
  local drift, removed = string.match(call('HGET', key, 'state') or '0 0', '(%-?%d+) (%d+)')
  return { key = key, drift = tonumber(drift), removed = tonumber(removed) }
end

-- Return the marks of the present queue; false if it has none, unless `anyway`.
function marks.present(anyway)
  if queue.marks == nil or anyway and not queue.marks then
    queue.marks = (anyway or call('EXISTS', queue.base .. ':ext:marks') == 1) and marks.open(queue.base)
  end
  return queue.marks
end

-- Return the position of the newest copy in the text of a field.
local function newest_in(text)
  return tonumber(string.match(string.sub(text, -64), '(%-?%d+) [^;]*$'))
end

local function note_state(self)
  call('HSET', self.key, 'state', string.format('%.0f %.0f', self.drift, self.removed))
end

local function clear(self)
  call('UNLINK', self.key)
  self.drift, self.removed = 0, 0
end

local function field_of(message)
  return #message <= MAX_PLAIN and 'm' .. message or 'h' .. redis.sha1hex(message)
end

local function read(text)
  local copies = {}
  for position, flags, expires, deliveries in string.gmatch(text or '', '(%-?%d+) (%d+) (%d+) ?(%d*)') do
    copies[#copies + 1] = { tonumber(position), flags, tonumber(expires), tonumber(deliveries) }
  end
  return copies
end

local function join(copies)
  local texts = {}
  for i, copy in ipairs(copies) do
    texts[i] = string.format('%.0f %s %.0f', copy[1], copy[2], copy[3]) .. (copy[4] and string.format(' %d', copy[4]) or '')
  end
  return table.concat(texts, ';')
end

local function write(self, field, text)
  if text ~= '' then
    call('HSET', self.key, field, text)
    return
  end
  call('HDEL', self.key, field)
  if (self.drift ~= 0 or self.removed > 0) and call('HLEN', self.key) == 1 then
    clear(self)
  end
end

-- Drop the fields of copies that native clients have taken, if these are the majority.
local function drop_stale(self)
  if call('HLEN', self.key) <= 2 * (queue.length + self.removed) + MAX_STALE then
    return
  end
  local all = call('HGETALL', self.key)
  for i = 1, #all, 2 do
    local newest = all[i] ~= 'state' and newest_in(all[i + 1])
    if newest and newest < queue.consumed - self.removed then
      call('HDEL', self.key, all[i])
    end
  end
end

-- Store the marks of messages that are queued at positions from `first` on; marks_of[i] may be nil.
function marks.note(messages, marks_of, first)
  local self = marks.present(true)
  if queue.length == #messages then
    clear(self) -- nothing else is queued, so native clients have taken all copies noted so far
  end
  local copies_of, newest = {}, {}
  for i, message in ipairs(messages) do
    if marks_of[i] then
      local field, mark = field_of(message), marks_of[i]
      local copy = { first + i - 1 - self.drift, mark[1], mark[2], mark[4] }
      if not copies_of[field] then
        local text = call('HGET', self.key, field)
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
  for field, copies in pairs(copies_of) do write(self, field, table.concat(copies, ';')) end
  drop_stale(self)
end

-- Return the index of the copy at this position, which is the oldest one queued; nil if it has no marks.
-- `others` is the number of copies, this one included, that were popped but are not processed yet.
local function find(self, copies, message, position, others)
  while copies[1] and copies[1][1] < position - self.removed do
    table.remove(copies, 1)
  end
  for i, copy in ipairs(copies) do
    -- After a removal from the middle, a later copy may seem to be at the position of the first.
    if copy[1] + self.drift == position and (i == 1 or self.removed == 0) then return i end
  end
  if not copies[1] then
    return nil
  end
  -- Count no further than needed: what matters is whether a copy without marks exists.
  local most = #copies + 1 - others
  local there = others + (most > 0 and #call('LPOS', queue.base, message, 'RANK', -1, 'COUNT', most) or 0)
  local first = math.max(1, #copies - there + 1)
  if not copies[first] or (there > #copies and copies[first][1] + self.drift > position) then
    return nil
  end
  self.drift = position - copies[first][1]
  note_state(self)
  return first
end

-- Takes    marks; messages that have left the head of the list, oldest first, and the position of the first
-- Returns  the marks of each that has any, by its index; these are removed from the hash
function marks.take(self, messages, first)
  local found, count_of, noted = {}, {}, {}
  for _, message in ipairs(messages) do count_of[message] = (count_of[message] or 0) + 1 end
  for i, message in ipairs(messages) do
    local field, position = field_of(message), first + i - 1
    local text = noted[field] and noted[field].text or call('HGET', self.key, field)
    if text then
      noted[field] = noted[field] or { text = text, from = 1 }
      local copies = noted[field]
      local own, flags, expires, deliveries, behind = string.match(text, '^(%-?%d+) (%d+) (%d+) ?(%d*);?()', copies.from)
      if own and tonumber(own) + self.drift == position then
        -- The usual case. It reads only the first of many equal copies.
        found[i], copies.from = marks.of(flags, expires, deliveries), behind
      elseif own then
        local others = read(string.sub(text, copies.from))
        local at = find(self, others, message, position, count_of[message])
        if at then
          found[i] = marks.of(unpack(others[at], 2, 4))
          for _ = 1, at do table.remove(others, 1) end
        end
        noted[field] = { text = join(others), from = 1 }
      end
    end
    count_of[message] = count_of[message] - 1
  end
  for field, copies in pairs(noted) do write(self, field, string.sub(copies.text, copies.from)) end
  if queue.length == 0 then clear(self) end
  return found
end

-- Return the marks of a message that stays queued at this position, or nil.
function marks.look(self, message, position)
  local copies = read(call('HGET', self.key, field_of(message)))
  local at = find(self, copies, message, position, 0)
  return at and marks.of(unpack(copies[at], 2, 4)) or nil
end

-- Forget the marks of a message of which all copies, `count` of them, have been removed.
function marks.forget(self, message, count)
  self.removed = self.removed + count
  note_state(self)
  write(self, field_of(message), '')
end

-- Return whether any copy of a message has flags, or an expiry.
function marks.has(self, message)
  for _, copy in ipairs(read(call('HGET', self.key, field_of(message)))) do
    if copy[2] ~= '0' or copy[3] > 0 then return true end
  end
  return false
end

-- Forget the marks of copies from a position on, which have been removed and count as consumed.
function marks.cut(self, messages, first)
  for _, message in ipairs(messages) do
    local kept = {}
    for _, copy in ipairs(read(call('HGET', self.key, field_of(message)))) do
      if copy[1] + self.drift < first then kept[#kept + 1] = copy end
    end
    write(self, field_of(message), join(kept))
  end
  self.drift = self.drift + #messages -- the others seem to be so much further from the beginning
  note_state(self)
end

return marks
