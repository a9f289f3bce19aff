-- The doctor: finds and repairs what dead native clients leave in a queue.
--
-- Takes    examine: nothing. repair: the names of problems, each with the sign that an examine returned
-- Touches  the tokens, the statistics, :closed; all keys of a queue without :bound
-- Returns  examine: the bound, false if there is no queue; the number of messages; then a list for each problem: its
--          name, its sign, what shows it, what it means, what a repair does. repair: what it has done, in words
--
-- A slow client looks like a dead one. So the caller repairs a problem only if its sign, which contains what a live
-- client would change, has stayed the same for long (docs/guides/repair.md). A repair examines once more.

local keys = require 'core/keys'
local life = require 'core/life'
local room = require 'core/room'

local doctor = {}
local ROLES = { 'producer', 'consumer' }
local VERB_OF = { producer = 'produced', consumer = 'consumed' }

-- Above these limits, statistics of bytes are not corrected: the walk over 100000 messages takes 20 milliseconds.
local MAX_COUNTED, MAX_WEIGHED = 100000, 64 * 1048576
-- Larger values are not valid statistics. Lua counts exactly up to 2^53, which matters only for messages.
local MAX = { messages = 2 ^ 53, bytes = 2 ^ 62 }
-- How many bytes of a client's name are shown.
local MAX_NAME = 128

local function tokens(name) return call('LLEN', queue.base .. name) end

-- Return the value of a statistic; nil if it is no valid number. (MGET returns nothing for a key of another type, too.)
local function number_in(key, text, largest)
  if not text then return call('EXISTS', key) == 0 and 0 or nil end
  local is_whole = text == '0' or string.match(text, '^-?[1-9]%d*$')
  return is_whole and math.abs(tonumber(text)) <= largest and tonumber(text) or nil
end

-- Return the state of a role. If there is no token, a native client holds the role, because a pressure-server acts in one
-- step. Note the statistics that are not numbers; these count as 0.
local function look_at(role, now)
  local verb = VERB_OF[role]
  local stats = queue.base .. ':stats:' .. verb .. '_'
  local values = call('MGET', queue.base .. ':' .. role, stats .. 'messages', stats .. 'bytes')
  local found = { free = tokens(':' .. role .. '_free'), parked = tokens(':ext:' .. role .. '_turn'), name = values[1] }
  found.tokens = found.free + found.parked
  for i, unit in ipairs({ 'messages', 'bytes' }) do
    found[unit] = number_in(stats .. unit, values[i + 1], MAX[unit])
    if not found[unit] then
      found[unit] = 0
      now.garbled[#now.garbled + 1] = verb .. '_' .. unit
    end
  end
  found.view = table.concat({ found.free, found.parked, values[2] or '-', values[3] or '-',
    values[1] and '=' .. values[1] or '-' }, ' ')
  -- Whether the token or message for which a holder of the role waits is there (pressure 0.15, Put and Get). If so, no
  -- client waits, because Redis hands it to a blocked client at once. A client writes its name before it waits.
  found.is_met = (role == 'producer' and now.not_full or now.listed) > 0 or now.closed > 0
  found.could_go_on = found.is_met or not found.name
  return found
end

local function look()
  local now = {
    -- Messages of a log that a group has not made jobs of do not count as produced in the group's queue.
    bound = queue.bound, length = queue.length - (queue.jobs and queue.jobs.lag or 0), listed = tokens(''),
    held = queue.kind.outstanding(), closed = tokens(':closed'), not_full = tokens(':not_full'),
    garbled = {}, keys = {},
  }
  for _, role in ipairs(ROLES) do now[role] = look_at(role, now) end
  if not now.bound then
    for _, suffixes in ipairs({ keys.of_protocol, keys.of_extensions }) do
      for _, suffix in ipairs(suffixes) do
        if call('EXISTS', queue.base .. suffix) == 1 then now.keys[#now.keys + 1] = suffix end
      end
    end
  end
  now.has_room = now.bound == 0 or now.bound and now.length < now.bound
  now.uncounted = now.length + now.held - now.producer.messages + now.consumer.messages
  -- It changes whenever any client does something.
  now.view = table.concat({ tostring(now.bound), now.length, now.listed, now.held, now.closed, now.not_full,
    table.concat(now.keys, ' '), now.producer.view, now.consumer.view }, '\n')
  return now
end

local function listed(names)
  local last = table.remove(names)
  return #names == 0 and last or table.concat(names, ', ') .. ' and ' .. last
end

local function counted(count)
  return count .. (count == 1 and ' message' or ' messages')
end

local function there_are(count)
  return 'there ' .. (count == 1 and 'is ' or 'are ') .. (count == 0 and 'no messages' or counted(count))
end

local function by(role)
  return role.name and " by '" .. string.sub(role.name, 1, MAX_NAME) .. "'" or ''
end

local function why(role, now)
  if now[role].tokens == 0 and not now[role].name then
    return 'it has not written its name, as clients do before they wait'
  elseif now.closed > 0 then
    return 'the queue is closed, so it is not waiting'
  elseif role == 'producer' then
    return 'there is a :not_full token, so it is not waiting for room'
  end
  return there_are(now.listed) .. ', so it is not waiting for a message'
end

local function say_keys(now)
  local names = {}
  for i, suffix in ipairs(now.keys) do names[i] = suffix == '' and 'the list of messages' or suffix end
  return listed(names)
end

local function give_back(role, done)
  call('LPUSH', queue.base .. ':' .. role .. '_free', 0)
  done[#done + 1] = 'gave the ' .. role .. ' role back'
end

local function push_not_full(done)
  call('LPUSH', queue.base .. ':not_full', 0)
  done[#done + 1] = 'pushed a :not_full token'
end

-- Return whether no native client holds a role: then no client is about to count.
local function is_at_rest(now)
  return now.producer.tokens > 0 and now.consumer.tokens > 0
end

-- Set the statistics to 0 that are not numbers.
local function zero(now, done)
  for _, statistic in ipairs(now.garbled) do
    call('SET', queue.base .. ':stats:' .. statistic, 0)
    done[#done + 1] = 'set ' .. statistic .. ' to 0'
  end
  now.garbled = {}
end

-- Make produced - consumed equal to the number of messages, by adding to the side that counted too little. Native
-- clients need not count bytes, so a difference in bytes is corrected only together with another repair.
local function settle_statistics(now, done)
  zero(now, done)
  queue.consumed = now.consumer.messages
  local function correct(unit, missing)
    local verb, count = missing > 0 and 'produced' or 'consumed', math.abs(missing)
    if count > 0 then
      queue.count_as(verb, unit == 'messages' and count or 0, unit == 'bytes' and count or 0)
      done[#done + 1] = string.format('added %d to %s_%s', count, verb, unit)
    end
  end
  correct('messages', now.uncounted)
  local queued = queue.length <= MAX_COUNTED and queue.kind.bytes_queued(MAX_WEIGHED)
  if queued then correct('bytes', queued - now.producer.bytes + now.consumer.bytes) end
end

-- The first half of a Delete (pressure 0.15): wake up all clients that wait on the queue, also the one that deletes it.
local function wake(now, done)
  if now.not_full == 0 then call('LPUSH', queue.base .. ':not_full', 0) end
  if now.closed == 0 then call('LPUSH', queue.base .. ':closed', 0, 0) end
  for _, role in ipairs(ROLES) do
    if now[role].free == 0 and not queue.end_turn(role) then call('LPUSH', queue.base .. ':' .. role .. '_free', 0) end
  end
  done[#done + 1] = 'gave both roles back to the waiting clients'
end

-- The second half: delete the keys, if no client is doing so.
local function unlink(done)
  if life.finish_delete() == 1 then
    life.clean()
    done[#done + 1] = 'deleted what was left'
  end
end

-- The problems. `sign` returns the sign and what shows it, or nothing.

-- The missing tokens, by how many :producer_free, :consumer_free and :not_full have. Create pushes them in this order.
local MISSING = { ['000'] = ':producer_free, :consumer_free and :not_full', ['100'] = ':consumer_free and :not_full',
  ['110'] = ':not_full' }
local HALF_CREATED = {
  name = 'half created',
  means = 'a native client died while it created the queue: clients that use the queue wait for ever',
  remedy = 'push the missing tokens',
  sign = function(now)
    local producer, consumer = now.producer, now.consumer
    local missing = MISSING[producer.free .. consumer.free .. now.not_full]
    local traces = now.length + now.held + now.closed + producer.messages + consumer.messages + producer.parked
      + consumer.parked
    if missing and traces == 0 and not producer.name and not consumer.name then
      return now.view, 'the queue has a bound, but ' .. missing .. ' never had a token, and no client has used it'
    end
  end,
  repair = function(now, done)
    for _, role in ipairs(ROLES) do
      if now[role].free == 0 then give_back(role, done) end
    end
    push_not_full(done)
  end,
}

local function stuck(role, died)
  return {
    name = role .. ' stuck',
    means = 'a native ' .. role .. ' died while it held the role (' .. died .. '): all other ' .. role .. 's wait for ever',
    remedy = 'give the role back (push :' .. role .. '_free), and correct the statistics; but first make sure that the '
      .. role .. ' is dead, not just suspended',
    sign = function(now)
      local found = now[role]
      if found.tokens == 0 and found.could_go_on then
        return found.view, 'the ' .. role .. ' role is held' .. by(found) .. ', but its holder is inactive; ' .. why(role, now)
      end
    end,
    repair = function(now, done)
      give_back(role, done)
      now[role].tokens = 1
      now.to_settle = is_at_rest(now)
    end,
  }
end

local function parked(role)
  return {
    name = role .. "'s token parked",
    means = 'a pressure-server died, or lost its backend, in its turn: native ' .. role .. 's wait for the role',
    remedy = 'move the token back to :' .. role .. '_free',
    sign = function(now)
      local found = now[role]
      -- In its turn a server waits as a native client does, but does not write its name before.
      if found.parked > 0 and found.free == 0 and found.is_met then
        return found.view, 'the ' .. role .. "'s token is parked for the turn of a pressure-server, but that server is "
          .. 'inactive; ' .. why(role, now)
      end
    end,
    repair = function(_, done)
      queue.end_turn(role)
      done[#done + 1] = 'moved the ' .. role .. "'s token back"
    end,
  }
end

local NO_NOT_FULL = {
  name = 'no :not_full token',
  means = 'a native client died before it pushed the token: native producers wait although there is room',
  remedy = 'push the token (a producer that waits for it then continues; one that does not is reported as stuck)',
  sign = function(now)
    if now.not_full == 0 and now.has_room and not room.is_heavy() then
      local held = now.producer.tokens == 0 and '; the producer role is held' .. by(now.producer) or ''
      return now.view, 'there is room, but no :not_full token' .. held
    end
  end,
  repair = function(_, done) push_not_full(done) end,
}

local TOO_MANY = {
  name = 'too many tokens',
  means = 'a client of pressure 0.1 left two tokens, or a client that was considered dead has continued: two clients may '
    .. 'act in one role at the same time, or the queue may take more messages than its bound',
  remedy = 'remove all but one',
  sign = function(now)
    local names = {}
    for _, role in ipairs(ROLES) do
      if now[role].tokens > 1 then names[#names + 1] = ':' .. role .. '_free' end
    end
    if now.not_full > 1 then names[#names + 1] = ':not_full' end
    if #names > 0 then
      return table.concat(names), 'there is more than one token in ' .. listed(names)
    end
  end,
  repair = function(now, done)
    for _, role in ipairs(ROLES) do
      local free, turn = queue.base .. ':' .. role .. '_free', queue.base .. ':ext:' .. role .. '_turn'
      call('LTRIM', now[role].free > 0 and free or turn, 0, 0)
      if now[role].free > 0 then call('DEL', turn) end
    end
    call('LTRIM', queue.base .. ':not_full', 0, 0)
    done[#done + 1] = 'left one token of each'
  end,
}

local NOT_FULL_ON_FULL = {
  name = ':not_full token on a full queue',
  means = 'a client of pressure 0.1 left a surplus token, or a native client died: the queue may take one message more '
    .. 'than its bound',
  remedy = 'remove the token',
  sign = function(now)
    -- A consumer in the middle of a get may be about to push or take the token.
    if now.not_full > 0 and not now.has_room and now.consumer.free > 0 then
      return 'full', string.format('the queue is full (%d of %d), but there is a :not_full token', now.length, now.bound)
    end
  end,
  repair = function(_, done)
    call('DEL', queue.base .. ':not_full')
    done[#done + 1] = 'took the :not_full token away'
  end,
}

local STATISTICS = {
  name = 'statistics',
  means = 'a native client died before it counted messages that it had put or taken (messages taken are lost), or another '
    .. 'program changed the statistics',
  remedy = 'add the difference to the side that counted too little, and correct the bytes',
  sign = function(now)
    if #now.garbled > 0 then
      return table.concat(now.garbled, ' '), 'invalid value in ' .. listed({ unpack(now.garbled) })
        .. ': not a number, or too large'
    elseif now.uncounted ~= 0 then
      return now.uncounted .. (is_at_rest(now) and '' or now.view), string.format('produced - consumed is %d, but %s',
        now.producer.messages - now.consumer.messages, there_are(now.length + now.held))
    end
  end,
  repair = function(now, done)
    now.to_settle = is_at_rest(now) or #now.garbled == 0
    zero(now, done)
  end,
}

local LEFT_BEHIND = {
  name = 'left behind',
  means = 'a native client deleted the queue, but not the keys that pressure-server added: they only use memory',
  remedy = 'delete these keys',
  sign = function(now)
    for _, suffix in ipairs(now.keys) do
      if string.sub(suffix, 1, 5) ~= ':ext:' then return end
    end
    return now.view, 'the queue does not exist, but keys added by pressure-server do: ' .. say_keys(now)
  end,
  repair = function(_, done) unlink(done) end,
}

-- A Delete deletes the list last, so the list may remain; but nothing proves that it is a queue's.
local LONE_LIST = {
  name = 'a list alone',
  means = 'a client died in the last step of deleting a queue, or the list belongs to another program',
  remedy = 'delete the list, but only if the queue is named on the command line',
  sign = function(now)
    if #now.keys == 1 and now.keys[1] == '' then
      return now.view, 'there is a list with ' .. counted(now.length) .. ', but no other key of a queue'
    end
  end,
  repair = wake,
}

local HALF_DELETED = {
  name = 'half deleted',
  means = 'a client died while it deleted the queue, or waits for a role that a dead client holds: the queue cannot be '
    .. 'created again until its remaining keys are deleted',
  remedy = 'give back both roles, so that waiting clients continue; then delete the remaining keys',
  sign = function(now)
    if LEFT_BEHIND.sign(now) or LONE_LIST.sign(now) then return end
    local lost = now.length > 0 and ', with ' .. counted(now.length) or ''
    return now.view, 'the queue does not exist, but keys of it do' .. lost .. ': ' .. say_keys(now)
  end,
  repair = function(now, done)
    -- All tokens are there, so no client waits, but the Delete has not continued.
    if math.min(now.closed, now.not_full, now.producer.free, now.consumer.free) > 0 then
      unlink(done)
    else
      wake(now, done)
    end
  end,
}

local WITHOUT_KEYS, WITHOUT_A_QUEUE = {}, { LEFT_BEHIND, LONE_LIST, HALF_DELETED }
local NEVER_USED = { HALF_CREATED }
local USED = {
  stuck('producer', 'its message may or may not be queued'), parked('producer'),
  stuck('consumer', 'a message that it had taken is lost'), parked('consumer'),
  NO_NOT_FULL, TOO_MANY, NOT_FULL_ON_FULL, STATISTICS,
}

-- Return the problems that the queue may have in its present state.
local function possible(now)
  if not now.bound then return #now.keys == 0 and WITHOUT_KEYS or WITHOUT_A_QUEUE end
  return HALF_CREATED.sign(now) and NEVER_USED or USED
end

function doctor.examine()
  local now = look()
  local reply = { now.bound, now.length }
  for _, problem in ipairs(possible(now)) do
    local sign, words = problem.sign(now)
    if sign then reply[#reply + 1] = { problem.name, sign, words, problem.means, problem.remedy } end
  end
  return reply
end

function doctor.repair(...)
  local now, done, signs, lasting, given = look(), {}, {}, {}, { ... }
  for i = 1, #given, 2 do signs[given[i]] = given[i + 1] end
  for _, problem in ipairs(possible(now)) do
    local sign = problem.sign(now)
    if sign and sign == signs[problem.name] then lasting[#lasting + 1] = problem end
  end
  for _, problem in ipairs(lasting) do problem.repair(now, done) end
  if now.to_settle then settle_statistics(now, done) end
  return done
end

return doctor
