-- Marks: what belongs to a message beside its bytes, and has no place in the list: its flags, the time at which it
-- expires, and how often it has been delivered, if it has come back (docs/internals/marks.md).
--
-- Touches  :ext:marks  a hash: 'm' and a message, or 'h' and the hash of a long one -> 'position flags
--          expires', or 'position flags expires deliveries', for each copy that has marks, oldest first, separated by
--          ';'; state -> 'drift', and 'first last' for each gap, in ascending order
--
-- In a record, and between modules, a mark is { flags, expires }; or { flags, expires, false, deliveries }, because jobs
-- and logs have something else in the third place (job_gets.lua, log.lua).
--
-- A copy is identified by its position: the number of messages that had been consumed when it was put, plus the number
-- queued before it. The drift is by how much all positions have shifted, because a native client died between a pop and
-- its count. A copy can get another's marks only if equal messages have different marks, and native clients have put or
-- taken some of them, or there are more gaps than are stored one by one.

local marks = {}
local MAX_PLAIN = 64
-- Fields allowed beyond twice the number of queued messages before stale ones are dropped.
local MAX_STALE = 1000
local MAX_GAPS = 100
-- Copies without marks that one look at the list finds beside those with marks: as many as one call takes.
local MAX_UNMARKED = 1000

-- Takes    'flags expires message'; expires is 0 for never, '+seconds' from now on, or seconds since 1970
-- Returns  the message; { flags, when it expires in milliseconds since 1970, 0 for never }
function marks.unmark(marked)
  local flags, from_now, seconds, first = string.match(marked, '^(%d+) (%+?)([%d.]+) ()')
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

-- Return the marks of a queue, which need not have any. Call this before the first write: a wrong type ends the run.
function marks.open(base)
  local key = base .. ':ext:marks'
  local drift, rest = string.match(call('HGET', key, 'state') or '0', '^(%-?%d+)(.*)$')
  local gaps = {}
  for first, last in string.gmatch(rest, '(%-?%d+) (%-?%d+)') do gaps[#gaps + 1] = { tonumber(first), tonumber(last) } end
  return { key = key, drift = tonumber(drift), gaps = gaps, is_shifted = false }
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
  local texts = { string.format('%.0f', self.drift) }
  for _, gap in ipairs(self.gaps) do texts[#texts + 1] = string.format('%.0f %.0f', gap[1], gap[2]) end
  call('HSET', self.key, 'state', table.concat(texts, ' '))
  self.is_shifted = false
end

local function clear(self)
  call('UNLINK', self.key)
  self.drift, self.gaps = 0, {}
end

-- Return the position of a copy from its place: how many messages have been consumed, or are queued before it. `drift`,
-- if given, is used in place of the present one.
local function position_at(self, place, drift)
  local position = place - (drift or self.drift)
  for i = #self.gaps, 1, -1 do
    local gap = self.gaps[i]
    if gap[2] < position then break end
    position = position - (gap[2] - gap[1] + 1)
  end
  return position
end

-- Note that the copies at these positions have been removed.
local function add_gaps(self, positions)
  local head, old, at, gaps = position_at(self, queue.consumed), self.gaps, 1, {}
  local function add(first, last) -- in ascending order
    local previous = gaps[#gaps]
    if previous and previous[2] == first - 1 then
      previous[2] = last
    elseif last >= head then
      gaps[#gaps + 1] = { first, last }
    end
  end
  table.sort(positions)
  for _, position in ipairs(positions) do
    while old[at] and old[at][2] < position do
      add(unpack(old[at]))
      at = at + 1
    end
    add(position, position)
  end
  for i = at, #old do add(unpack(old[i])) end
  -- If there are too many, the copies between the first ones are found by counting. All others keep their positions.
  local excess, size = math.max(0, #gaps - MAX_GAPS), 0
  for i = 1, excess do size = size + gaps[i][2] - gaps[i][1] + 1 end
  self.gaps = commands.slice(gaps, excess + 1, #gaps)
  if excess > 0 then self.gaps[1][1] = self.gaps[1][1] - size end
  note_state(self)
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

-- Return where in the text of a field the first copy begins that has this position or a higher one.
local function begin_of(text, position)
  local low, high = 1, #text + 1
  while true do
    local at = string.find(text, ';', math.floor((low + high) / 2), true)
    if not at or at >= high then break end -- few are left
    if (tonumber(string.match(text, '^%-?%d+', at + 1)) or math.huge) < position then low = at + 1 else high = at end
  end
  while low <= #text and (tonumber(string.match(text, '^%-?%d+', low)) or math.huge) < position do
    low = (string.find(text, ';', low, true) or #text + 1) + 1
  end
  return low
end

-- Cut the text of a field in three. Return the copies whose positions are from `first` to `last`, the text before these
-- copies, and the text behind them. A call parses only the copies that it changes, and not all equal ones.
local function cut(text, first, last)
  local begin, behind = begin_of(text, first), begin_of(text, last + 1)
  local copies = read(string.sub(text, begin, behind - 1))
  return copies, string.sub(text, 1, math.max(0, begin - 2)), string.sub(text, behind)
end

local function write(self, field, text)
  if text ~= '' then
    call('HSET', self.key, field, text)
    return
  end
  call('HDEL', self.key, field)
  if (self.drift ~= 0 or self.gaps[1]) and call('HLEN', self.key) == 1 then clear(self) end
end

-- Write copies in place of those between two texts (`cut`).
local function write_between(self, field, before, copies, behind)
  local texts = {}
  for _, text in ipairs({ before, join(copies), behind }) do
    if text ~= '' then texts[#texts + 1] = text end
  end
  write(self, field, table.concat(texts, ';'))
end

-- Drop the fields of copies that native clients have taken, if these are the majority of the fields.
local function drop_stale(self)
  if call('HLEN', self.key) <= 2 * queue.length + MAX_STALE then return end
  local all, head = call('HGETALL', self.key), position_at(self, queue.consumed)
  for i = 1, #all, 2 do
    local newest = all[i] ~= 'state' and newest_in(all[i + 1])
    if newest and newest < head then call('HDEL', self.key, all[i]) end
  end
end

-- Store the marks of messages that are queued at the places from `first` on. marks_of[i] may be nil.
function marks.note(messages, marks_of, first)
  local self = marks.present(true)
  if queue.length == #messages then
    clear(self) -- no other message is queued, so native clients have taken all copies stored so far
  end
  local copies_of = {}
  for i, message in ipairs(messages) do
    if marks_of[i] then
      local field, mark = field_of(message), marks_of[i]
      local copy = { position_at(self, first + i - 1), mark[1], mark[2], mark[4] }
      if not copies_of[field] then
        copies_of[field] = { call('HGET', self.key, field) or nil }
      end
      local copies = copies_of[field]
      copies[#copies + 1] = join({ copy })
    end
  end
  for field, copies in pairs(copies_of) do write(self, field, table.concat(copies, ';')) end
  drop_stale(self)
end

-- Store the marks of messages that have been put back at the head. Native clients may have taken others from the same
-- places meanwhile, whose marks are still there.
function marks.restore(self, messages, marks_of)
  if queue.length == #messages then clear(self) end
  local back = {}
  for i, message in ipairs(messages) do
    local field = field_of(message)
    back[field] = back[field] or {}
    back[field][position_at(self, queue.consumed + i - 1)] = marks_of[i] or false
  end
  for field, mark_at in pairs(back) do
    local copies, first, last, text = {}, math.huge, -math.huge, call('HGET', self.key, field)
    for position, mark in pairs(mark_at) do
      first, last = math.min(first, position), math.max(last, position)
      if mark then copies[#copies + 1] = { position, mark[1], mark[2], mark[4] } end
    end
    local there, before, behind = cut(text or '', first, last)
    for _, copy in ipairs(there) do
      if mark_at[copy[1]] == nil then copies[#copies + 1] = copy end
    end
    table.sort(copies, function(one, other) return one[1] < other[1] end)
    if text or copies[1] then write_between(self, field, before, copies, behind) end
  end
end

-- Return the lowest position that a copy at this place may have been noted with.
local function lowest_at(self, place)
  if #self.gaps < MAX_GAPS then return math.min(position_at(self, place), position_at(self, place, 0)) end
  -- The first gap may stand for several.
  local lowest = math.min(place, place - self.drift)
  for _, gap in ipairs(self.gaps) do lowest = lowest - (gap[2] - gap[1] + 1) end
  return lowest
end

-- Return how many of the equal messages from this one on have no marks, at least; below 0 if fewer messages than copies
-- are left. copies.there is the number of these messages: `others` have been popped, but are not processed yet, and the
-- rest are among the newest `queued` messages of the list. They are counted once, and no further than the answer needs.
local function count_unmarked(copies, message, others, queued)
  if not copies.left then
    copies.left = select(2, string.gsub(string.sub(copies.text, copies.from), '[^;]+', ''))
  end
  if not copies.there or copies.is_capped and copies.there <= copies.left then
    local most, listed = copies.left + MAX_UNMARKED - others, 0
    if most > 0 and queued > 0 then
      listed = #call('LPOS', queue.base, message, 'COUNT', most, 'MAXLEN', queued)
    end
    copies.there, copies.is_capped = others + listed, listed >= most
  end
  return copies.there - copies.left
end

-- Return the position, flags, expiry and deliveries of the next copy; and where the copy after it begins.
local function next_copy(copies)
  local own, flags, expires, deliveries, behind =
    string.match(copies.text, '^(%-?%d+) (%d+) (%d+) ?(%d*);?()', copies.from)
  return tonumber(own), flags, expires, deliveries, behind
end

local function pass_over(copies, behind)
  copies.from, copies.left = behind, copies.left and copies.left - 1
end

-- Return the mark of the message at this place; nil if it has none. copies.text is the text of the message's field. In it,
-- the copies that have not been read begin at copies.from, which this function moves. `others` and `queued`: as in
-- `count_unmarked`.
local function read_mark(self, copies, message, place, others, queued)
  local position, lowest = position_at(self, place), lowest_at(self, place)
  copies.there = copies.there and copies.there - 1
  copies.from = copies.from or begin_of(copies.text, lowest)
  local own, flags, expires, deliveries, behind = next_copy(copies)
  while own and own < lowest do -- native clients have taken it, or it is before the first message looked at
    pass_over(copies, behind)
    own, flags, expires, deliveries, behind = next_copy(copies)
  end
  if own and own ~= position then -- in the usual case it is the same
    local unmarked = count_unmarked(copies, message, others, queued)
    if unmarked > 0 and own > position then return nil end
    for _ = unmarked, -1 do
      pass_over(copies, behind)
      own, flags, expires, deliveries, behind = next_copy(copies)
    end
  end
  if not own then return nil end
  self.is_shifted = self.is_shifted or own ~= position
  self.drift = self.drift + position - own
  pass_over(copies, behind)
  return marks.of(flags, expires, deliveries)
end

-- Return the field of a message, or nil if the message has no marks. After the first read of a field, `noted` has it.
-- `texts`, if given, has the texts of fields that the same call has read before.
local function copies_of(self, noted, message, texts)
  local field = field_of(message)
  if noted[field] == nil then
    local text = texts and texts[field]
    if text == nil then text = call('HGET', self.key, field) end
    if texts then texts[field] = text end
    noted[field] = text and { text = text }
  end
  return noted[field] or nil
end

-- Takes    marks; messages that have left the head of the list, oldest first, and the place of the first
-- Returns  the marks of each that has any, by its index; these are removed from the hash
function marks.take(self, messages, first)
  local found, noted, count_of = {}, {}, {}
  for _, message in ipairs(messages) do count_of[message] = (count_of[message] or 0) + 1 end
  for i, message in ipairs(messages) do
    local copies = copies_of(self, noted, message)
    found[i] = copies and read_mark(self, copies, message, first + i - 1, count_of[message], queue.length)
    count_of[message] = count_of[message] - 1
  end
  if self.is_shifted then note_state(self) end
  for field, copies in pairs(noted) do
    if copies then write(self, field, string.sub(copies.text, copies.from)) end
  end
  if queue.length == 0 then clear(self) end
  return found
end

-- Takes    marks; messages that stay queued, oldest first; the place of the first; how many messages the list has from
--          that place on; and a table, if the call looks at more messages of the same list
-- Returns  the marks of each that has any, by its index
function marks.look(self, messages, first, queued, texts)
  local found, noted = {}, {}
  for i, message in ipairs(messages) do
    local copies = copies_of(self, noted, message, texts)
    found[i] = copies and read_mark(self, copies, message, first + i - 1, 0, queued - i + 1)
  end
  if self.is_shifted then note_state(self) end
  return found
end

-- Forget the marks of messages that have been removed from these places, before they count as consumed.
function marks.remove(self, messages, places)
  local positions, gone, first, last = {}, {}, math.huge, -math.huge
  for i, place in ipairs(places) do
    local position = position_at(self, place)
    positions[i], gone[position] = position, true
    first, last = math.min(first, position), math.max(last, position)
  end
  local seen = {}
  for _, message in ipairs(messages) do
    local kept, text = {}, not seen[message] and call('HGET', self.key, field_of(message))
    seen[message] = true
    if text then
      local copies, before, behind = cut(text, first, last)
      for _, copy in ipairs(copies) do
        if not gone[copy[1]] then kept[#kept + 1] = copy end
      end
      write_between(self, field_of(message), before, kept, behind)
    end
  end
  if queue.length > 0 then add_gaps(self, positions) else clear(self) end
end

return marks
