-- Repair: examines a queue, and fixes its problems if the queue has not changed since.
--
-- Takes    examine: nothing. repair: the three views that an examine returned; '1' if the whole queue has not
--          changed for as long as a client may be inactive, else ''; then the names of fixes
-- Touches  the tokens, the statistics, :closed; all keys of a queue without :bound
-- Returns  examine: see there. repair: the names of the fixes done, 'zeroed <statistic>' for each that was
--          not a number, '<statistic> <difference>' for each that was too low. A fix is not done if its
--          evidence no longer holds
--
-- diagnosis.py decides what is a problem, from several snapshots over some time. This script only checks, in
-- the same atomic step, that the client which was found dead has not acted since the last snapshot.

local queue = require 'core/queue'
local keys = require 'core/keys'
local life = require 'core/life'

local doctor = {}

-- Statistics of bytes need a walk over the list, which blocks the backend: 20 milliseconds for 100000
-- messages. Above these limits they are not corrected.
local MAX_COUNTED, MAX_WEIGHED = 100000, 64 * 1048576
-- Larger values are not valid statistics. Lua counts exactly up to 2^53, which matters only for messages;
-- INCRBY counts up to 2^63.
local MAX = { messages = 2 ^ 53, bytes = 2 ^ 62 }

local function tokens(name)
  return call('LLEN', queue.base .. name)
end

-- Return the value of a statistic; nil if it cannot be counted on. MGET returns nothing both for a missing
-- key and for one of another type.
local function number_in(key, text, largest)
  if not text then
    return call('EXISTS', key) == 0 and 0 or nil
  end
  local is_whole = text == '0' or string.match(text, '^-?[1-9]%d*$')
  return is_whole and math.abs(tonumber(text)) <= largest and tonumber(text) or nil
end

local function look_at(role, verb)
  local values = call('MGET', queue.base .. ':' .. role, queue.base .. ':stats:' .. verb .. '_messages',
    queue.base .. ':stats:' .. verb .. '_bytes')
  local found = {
    free = tokens(':' .. role .. '_free'), turn = tokens(':ext:' .. role .. '_turn'),
    name = values[1], garbled = {},
  }
  for i, unit in ipairs({ 'messages', 'bytes' }) do
    local statistic = verb .. '_' .. unit
    found[unit] = number_in(queue.base .. ':stats:' .. statistic, values[i + 1], MAX[unit])
    if not found[unit] then
      found[unit] = 0
      found.garbled[#found.garbled + 1] = statistic
    end
  end
  found.view = table.concat({ found.free, found.turn, values[2] or '-', values[3] or '-',
    values[1] and '=' .. values[1] or '-' }, ' ')
  return found
end

local function look()
  local now = {
    -- Messages of a log that a group has not made jobs of do not count as produced in the group's queue.
    bound = call('GET', queue.base .. ':bound'), length = queue.length - (queue.jobs and queue.jobs.lag or 0),
    listed = tokens(''), held = queue.kind.outstanding(),
    closed = tokens(':closed'),
    not_full = tokens(':not_full'), producer = look_at('producer', 'produced'),
    consumer = look_at('consumer', 'consumed'), keys = {},
  }
  if not now.bound then
    for _, suffixes in ipairs({ keys.of_protocol, keys.of_extensions }) do
      for _, suffix in ipairs(suffixes) do
        if call('EXISTS', queue.base .. suffix) == 1 then now.keys[#now.keys + 1] = suffix end
      end
    end
  end
  now.view = table.concat({ now.bound or '-', now.length, now.listed, now.held, now.closed, now.not_full,
    table.concat(now.keys, ' '), now.producer.view, now.consumer.view }, '\n')
  return now
end

-- Returns  bound, length, messages in the list, reserved and buried jobs, tokens in :closed and :not_full, the suffixes of all keys (if there is no
--          :bound); for producer and consumer: tokens, parked tokens, name, messages, the statistics that
--          are not numbers, and a view, which changes when any of these does; then a view of everything
function doctor.examine()
  local now = look()
  local reply = { now.bound, now.length, now.listed, now.held, now.closed, now.not_full, now.keys }
  for _, role in ipairs({ now.producer, now.consumer }) do
    reply[#reply + 1] = { role.free, role.turn, role.name, role.messages, role.garbled, role.view }
  end
  reply[#reply + 1] = now.view
  return reply
end

-- Return whether the condition that a holder of the role waits for is met.
local function has_come(role, now)
  local comes = role == 'producer' and now.not_full or now.listed
  return comes > 0 or now.closed > 0
end

-- Return whether a live native holder of the role would not be waiting (pressure 0.15, Put and Get): a
-- client writes its name before it waits, and does not wait if the condition is met.
local function could_go_on(role, now)
  return has_come(role, now) or not now[role].name
end

-- Make produced - consumed equal to what is queued, by adding to the side that counted too little.
local function settle_statistics(done, now, always)
  queue.consumed = now.consumer.messages
  for _, role in ipairs({ now.producer, now.consumer }) do
    for _, statistic in ipairs(role.garbled) do
      call('SET', queue.base .. ':stats:' .. statistic, 0)
      done[#done + 1] = 'zeroed ' .. statistic
      always = true
    end
  end
  local function correct(unit, queued)
    local missing = queued - now.producer[unit] + now.consumer[unit]
    if missing ~= 0 then
      local verb = missing > 0 and 'produced' or 'consumed'
      queue.count_as(verb, unit == 'messages' and math.abs(missing) or 0, unit == 'bytes' and math.abs(missing) or 0)
      done[#done + 1] = string.format('%s_%s %d', verb, unit, math.abs(missing))
    end
    return missing ~= 0
  end
  if correct('messages', now.length + now.held) or always then
    -- Native clients need not count bytes, so a difference in bytes alone is not corrected.
    local queued = queue.length <= MAX_COUNTED and queue.kind.bytes_queued(MAX_WEIGHED)
    if queued then correct('bytes', queued) end
  end
end

local mends = {}
local function mend_roles(role)
  mends['give_back_' .. role] = function(now, evidence)
    local found = now[role]
    if now.bound and found.view == evidence[role] and found.free + found.turn == 0 and could_go_on(role, now) then
      return call('LPUSH', queue.base .. ':' .. role .. '_free', 0)
    end
  end
  mends['unpark_' .. role] = function(now, evidence)
    return now.bound and now[role].view == evidence[role] and now[role].free == 0
      and has_come(role, now) and queue.end_turn(role)
  end
end
mend_roles('producer')
mend_roles('consumer')

local function has_room()
  return queue.bound == 0 or queue.length < queue.bound
end

function mends.push_not_full(now, evidence)
  return now.bound and now.view == evidence.all and now.not_full == 0 and has_room()
    and call('LPUSH', queue.base .. ':not_full', 0)
end

-- A consumer in the middle of a get may be about to push or take the token, so wait until its role is free.
function mends.take_not_full(now)
  return now.bound and not has_room() and now.consumer.free > 0 and call('DEL', queue.base .. ':not_full') == 1
end

function mends.trim(now)
  local trimmed = false
  for _, role in ipairs({ 'producer', 'consumer' }) do
    if now.bound and now[role].free + now[role].turn > 1 then
      trimmed = true
      local kept, parked = queue.base .. ':' .. role .. '_free', queue.base .. ':ext:' .. role .. '_turn'
      call('LTRIM', now[role].free > 0 and kept or parked, 0, 0)
      if now[role].free > 0 then call('DEL', parked) end
    end
  end
  if now.bound and now.not_full > 1 then
    trimmed = true
    call('LTRIM', queue.base .. ':not_full', 0, 0)
  end
  return trimmed
end

-- Repair a Delete, first half: wake up all clients that wait on the deleted queue, including the client
-- that deletes it, as the first steps of a Delete do (pressure 0.15, Delete).
function mends.wake(now, evidence)
  if now.bound or now.view ~= evidence.all then
    return false
  end
  if now.not_full == 0 then call('LPUSH', queue.base .. ':not_full', 0) end
  if now.closed == 0 then call('LPUSH', queue.base .. ':closed', 0, 0) end
  for _, role in ipairs({ 'producer', 'consumer' }) do
    if tokens(':' .. role .. '_free') == 0 and not queue.end_turn(role) then
      call('LPUSH', queue.base .. ':' .. role .. '_free', 0)
    end
  end
  return true
end

-- Second half: delete the keys if no client has done so.
function mends.unlink(now, evidence)
  if now.bound or now.view ~= evidence.all then
    return false
  end
  local finished = life.finish_delete()
  return finished == 1 and life.clean()
end

function doctor.repair(producer_view, consumer_view, view, unchanged, ...)
  local now, done = look(), {}
  local evidence = { producer = producer_view, consumer = consumer_view, all = view }
  local given_back, settle = false, false
  for _, name in ipairs({ ... }) do
    if name == 'settle_statistics' then
      settle = now.bound
    elseif mends[name](now, evidence) then
      done[#done + 1] = name
      given_back = given_back or string.match(name, '^give_back_')
    end
  end
  -- A difference is certain only while no client can be about to count.
  local free = tokens(':producer_free') + now.producer.turn > 0 and tokens(':consumer_free') + now.consumer.turn > 0
  if settle and (free or unchanged == '1' and now.view == view) then
    settle_statistics(done, now, given_back)
  end
  return done
end

return doctor
