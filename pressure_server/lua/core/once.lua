-- Puts with transaction ids: each command is done whole or not at all, and once. For some time, the queue keeps what
-- each has answered: its outcome. If the id is known, the command gets the value of the first time. It begins with
-- 'seconds most id'; see the option `once` in put.lua.
--
-- Touches  :ext:outcomes       a hash: transaction id -> 'kind value offset', as `text_of` makes it
--          :ext:outcome_times  a sorted set: transaction id, with the time of its put in milliseconds since 1970
--          :ext:settings       'forgotten': the time of the last put that has been forgotten

local room = require 'core/room'

local once = {}
-- Outcomes that one put may forget in addition to the number that it stores.
local FORGOTTEN_AT_ONCE = 10

-- Return for each id the stored text of its outcome, or false.
local function outcomes_of(ids)
  return commands.values_of('HMGET', queue.base .. ':ext:outcomes', ids)
end

-- Store outcomes, each an id and its text. Forget those that are older than `seconds`, and the oldest above `most`.
local function note(texts, seconds, most)
  local key, times = queue.base .. ':ext:outcomes', queue.base .. ':ext:outcome_times'
  local places, now = {}, the_call.clock()
  for i = 1, #texts, 2 do places[i], places[i + 1] = now, texts[i] end
  commands.with_all('HSET', key, texts)
  commands.with_all('ZADD', times, places)
  local excess = call('ZCARD', times) - most
  local oldest, gone, last = call('ZRANGE', times, 0, FORGOTTEN_AT_ONCE + #texts / 2 - 1, 'WITHSCORES'), {}, nil
  for i = 1, #oldest, 2 do
    if #gone >= excess and tonumber(oldest[i + 1]) > the_call.clock() - 1000 * seconds then break end
    gone[#gone + 1], last = oldest[i], oldest[i + 1]
  end
  if last then
    commands.with_all('ZREM', times, gone)
    commands.with_all('HDEL', key, gone)
    call('HSET', queue.base .. ':ext:settings', 'forgotten', last)
  end
end

-- Return the kind of a put's value: the same transaction id must not be used for puts of two kinds.
local function kind_of_value(options)
  return options.job and 'job' or options.offset and 'offset' or options.unique and 'count' or 'length'
end

-- Return the commands, each with its id, the place of its messages, and its known outcome; and `seconds` and `most`.
local function parse(sizes, words)
  local some, ids, at, seconds, most = {}, {}, 1, nil, nil
  for i, size in ipairs(sizes) do
    local id
    seconds, most, id = string.match(words[at], '^(%d+) (%d+) (.*)$')
    some[i], ids[i] = { id = id, first = at + 1, size = size - 1 }, id
    at = at + size
  end
  for i, noted in ipairs(queue.bound and outcomes_of(ids) or {}) do some[i].noted = noted or nil end
  return some, tonumber(seconds), tonumber(most)
end

-- Return the value that a known outcome stands for.
local function value_of(noted, options)
  local kind, value = string.match(noted, '^(%l+) (%x+) ')
  if kind ~= kind_of_value(options) then return { err = 'TXN' } end
  return kind == 'job' and value or tonumber(value)
end

-- Return the text of an outcome. The command has just put `new` messages, and later commands `after` others.
local function text_of(options, value, new, after)
  local offset = queue.kind.has_groups and new > 0
    and string.format('%.0f', queue.consumed + queue.length - after - new) or ''
  return string.format('%s %s %s', kind_of_value(options), type(value) == 'number' and string.format('%.0f', value) or value, offset)
end

-- Put the new commands all together, because nothing can be refused to one of them alone. Return the values.
local function put_together(self, some, words, seconds, most, put)
  local messages, sizes, fresh, first_of = {}, {}, {}, {}
  for _, one in ipairs(some) do
    if not one.noted and not first_of[one.id] then
      first_of[one.id] = one
      fresh[#fresh + 1], sizes[#sizes + 1] = one, one.size
      for at = one.first, one.first + one.size - 1 do messages[#messages + 1] = words[at] end
    end
  end
  local result, left = 0, 0
  if #fresh > 0 then result, left = put.any(self, table.concat(sizes, ' '), messages) end
  if left > 0 then return {}, #some end
  local refusal = type(result) == 'table' and result.err and result or nil
  -- Commands that wait for a role wait together.
  if refusal and (#fresh == #some or string.match(refusal.err, '^INUSE')) then return refusal, 0 end
  local put_before, texts = 0, {}
  for i, one in ipairs(refusal and {} or fresh) do
    put_before = put_before + one.size
    one.value = type(result) == 'table' and result[i] or result + put_before
    texts[2 * i - 1], texts[2 * i] = one.id, text_of(self.options, one.value, one.size, #messages - put_before)
  end
  if #texts > 0 then note(texts, seconds, most) end
  local values = {}
  for i, one in ipairs(some) do
    values[i] = one.noted and value_of(one.noted, self.options) or refusal or first_of[one.id].value
  end
  return values, 0
end

-- Put one command. Return its value, or an error; how many commands are left for another call; and whether it waits.
local function put_one(self, one, words, seconds, most, put)
  local noted = one.noted or queue.bound and outcomes_of({ one.id })[1]
  if noted then return value_of(noted, self.options), 0 end
  local messages = commands.slice(words, one.first, one.first + one.size - 1)
  local result, left = put.any(self, tostring(one.size), messages)
  if type(result) == 'table' and result.err or left > 0 then return result, left end
  local value = type(result) == 'number' and result + #messages or result[1]
  if value == put.FULL then
    return value, 0, put.may_wait(self.options) and not (queue.bound > 0 and #messages > queue.bound)
  end
  note({ one.id, text_of(self.options, value, self.is_add and value or #messages, 0) }, seconds, most)
  return value, 0
end

-- Return what the commands from `first` on get, the first of which is refused: those that are known, their outcomes. If
-- they may wait, or none is known, it is one error for all.
local function refused(self, some, first, refusal)
  local values, are_known = {}, false
  for i = first, #some do
    values[#values + 1] = some[i].noted and value_of(some[i].noted, self.options) or refusal
    are_known = are_known or some[i].noted
  end
  local may_wait = string.match(refusal.err, '^INUSE') or refusal.err == 'CREATING'
  return are_known and not may_wait and values or refusal
end

local put_in_turn

-- Put the commands from `first` on, one after the other, up to one that waits.
function put_in_turn(self, some, first, words, seconds, most, put)
  local values = {}
  for i = first, #some do
    local value, left, waits = put_one(self, some[i], words, seconds, most, put)
    local is_refused = type(value) == 'table' and value.err and value.err ~= 'TXN'
    if i == first and is_refused then
      return refused(self, some, first, value), 0
    elseif is_refused or left > 0 then
      return values, #some - i + 1 -- it is the first of another call
    elseif waits then
      return { 'part', 0, 0, values }, 0, function()
        if not queue.bound then return { err = 'NOQUEUE' }, 0 end
        return put_in_turn(self, some, i, words, seconds, most, put)
      end
    end
    values[#values + 1] = value
  end
  return values, 0
end

-- Takes    the put (put.lua); the number of words of each command, and all words; and functions of put.lua: `any` puts
--          without ids, `may_wait` tells whether that may wait for room; FULL is the value of a refused command
-- Returns  what `put` does
function once.put(self, sizes, words, put)
  local some, seconds, most = parse(sizes, words)
  the_call.work = the_call.work + 4 * the_call.MESSAGE * #some
  if queue.bound and not room.may_be_full() and not (self.options.unique and not self.options.job) then
    return put_together(self, some, words, seconds, most, put)
  end
  return put_in_turn(self, some, 1, words, seconds, most, put)
end

-- Takes    a transaction id
-- Returns  { 'done', the offset of the message, '' if the queue is no log }; { 'unknown' } if no put with this id has
--          been done; or { 'forgotten', for how many milliseconds back all outcomes are known }
function once.outcome(words)
  local found = outcomes_of({ words[1] })[1]
  if found then return { 'done', string.match(found, '(%d*)$') } end
  local forgotten = call('HGET', queue.base .. ':ext:settings', 'forgotten')
  return forgotten and { 'forgotten', math.max(0, the_call.clock() - tonumber(forgotten)) } or { 'unknown' }
end

return once
