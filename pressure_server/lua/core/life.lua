-- The life of a queue: create, alter, purge, close and delete it, end a turn, and clean up after a native Delete.
--
-- Templates are the settings of queues that puts create, by the queue's name. Calls do not carry them: the server
-- writes them with its heartbeat, before the first call of a connection, and whenever they change.
--
-- Takes    ARGV[HEADER_BOUND]   the bound of a queue that a put creates; 'by name' if the server has templates
--          ARGV[HEADER_LIMITS]  'bytes queues': the most bytes of a queue that is created without a limit of its own;
--                               the most queues, 0 for any number; then '!' if the backend stores too many bytes
-- Touches  :ext:settings        'registry': the key ${PREFIX}!queues, a set of the queues that servers have created
--          ${PREFIX}!peers      the server's name -> 'count timeout library templates'. They are a list, packed by
--                               queues/templates.py: of each, the parts between the stars of a pattern of base keys, as
--                               patterns of Lua; then the arguments of `life.create`. The last one matches all keys

local room = require 'core/room'
local keys = require 'core/keys'
local jobs = require 'kinds/jobs'
local policy = require 'kinds/policy'

local life = {}
-- The kinds (queue.lua) of the types that are not a list.
local WORD_OF_TYPE = { jobs = 'jobs', lifo = 'lifo', random = 'random', group = 'jobs', log = 'log' }

-- Delete the keys with these suffixes. Return how many there were.
local function unlink(suffixes)
  return call('UNLINK', unpack(keys.with(suffixes)))
end

local function has_keys()
  return call('EXISTS', unpack(keys.with(keys.of_protocol))) > 0
end

-- Enter a new queue into the registry. Return an error if there are too many, else settings in addition to its own.
local function sign_on(own)
  local bytes, most = string.match(the_call.arguments[HEADER_LIMITS], '^(%d+) (%d+)')
  local key, settings = the_call.own_key('queues'), {}
  if tonumber(most) > 0 and call('SCARD', key) >= tonumber(most) then return { err = 'QUEUES ' .. most } end
  call('SADD', key, queue.base)
  settings[1], settings[2] = 'registry', key
  if bytes ~= '0' and not own.max_bytes then settings[3], settings[4] = 'max_bytes', bytes end
  return settings
end

-- Let the registry, the due queues and the index of ids (job_ids.lua) forget the queue, before its keys are deleted.
local function sign_off()
  keys.set_all_aside()
  local registry, index = unpack(call('HMGET', queue.base .. ':ext:settings', 'registry', 'index'))
  local blocks = index and call('LRANGE', queue.base .. ':ext:blocks', 0, -1) or {}
  if #blocks > 0 then commands.with_all('HDEL', index, blocks) end
  if registry then
    call('SREM', registry, queue.base)
    call('ZREM', (string.gsub(registry, 'queues$', 'due')), queue.base)
  end
end

-- Return the base key of the log of which the queue is a group, or false.
local function source_of()
  return call('HGET', queue.base .. ':ext:settings', 'source')
end

-- Delete the queues of a log's groups. If this queue is one of them, let its log forget it (groups.lua).
local function drop_groups()
  local home, source = queue.base, source_of()
  if source then call('ZREM', source .. ':ext:groups', home) end
  for _, base in ipairs(call('ZRANGE', home .. ':ext:groups', 0, -1)) do
    queue.base = base
    sign_off()
    unlink(keys.of_protocol)
    unlink(keys.of_extensions)
    queue.base = home
  end
end

-- Delete the keys of pressure-server; an earlier queue may have left some. Return how many there were.
function life.forget()
  drop_groups()
  sign_off()
  return unlink(keys.of_extensions)
end

local function has_policy(some)
  for _, name in ipairs(policy.SETTINGS) do
    if (some[name] or '') ~= '' then return true end
  end
  return false
end

-- Make the present queue a queue that does not exist.
local function empty()
  life.forget()
  queue.bound, queue.producer, queue.consumer, queue.length, queue.consumed = false, false, false, 0, 0
  queue.made, queue.word, queue.kind, queue.index = false, nil, queue.kinds[''], nil
  queue.jobs, queue.mirror, queue.marks, queue.max_bytes, queue.signs = nil, nil, nil, nil, nil
end

-- Takes    the bound, 0 for none; the overflow, block or error, or '' for the server's; 'implicit' if a put creates the
--          queue, else ''; then other settings, each a name and a value: type, and those of jobs (jobs.lua)
-- Returns  1, or an error: DELETING if there are keys without :bound, because a native Delete is in progress
function life.create(bound, full, implicit, ...)
  if queue.bound then return { err = 'EXISTS' } end
  if has_keys() then return { err = 'DELETING' } end
  block.changed = true
  local own, others = {}, { ... }
  for i = 1, #others, 2 do own[others[i]] = others[i + 1] end
  empty()
  local settings = sign_on(own)
  if settings.err then return settings end
  local base, is_limited = queue.base, own.max_bytes or settings[3]
  queue.bound = tonumber(bound)
  call('SET', base .. ':bound', bound)
  for _, token in ipairs({ ':producer_free', ':consumer_free', ':not_full' }) do call('LPUSH', base .. token, 1) end
  queue.made = table.concat(call('TIME'), '.')
  for _, word in ipairs(others) do settings[#settings + 1] = word end
  if implicit and implicit ~= '' then settings[#settings + 1], settings[#settings + 2] = 'implicit', 1 end
  call('HSET', base .. ':ext:settings', 'overflow', full and full ~= '' and full or the_call.overflow, unpack(settings))
  if has_policy(own) then policy.note() end
  local needs_jobs = own.unique or own.max_deliveries or has_policy(own) or own.ack and (own.type == 'lifo' or own.type == 'random')
  queue.set_kind(needs_jobs and 'jobs' or WORD_OF_TYPE[own.type] or own.ack and 'kept'
    or is_limited and own.max_bytes ~= '' and 'limited' or nil)
  queue.kind.begin()
  return 1
end

-- Return whether the parts are in the key in this order. The first match of each is taken: a later one cannot help.
local function matches(key, parts)
  local last = 0
  for _, part in ipairs(parts) do
    _, last = string.find(key, part, last + 1)
    if not last then return false end
  end
  return true
end

-- Create the queue for a put, with the first template that matches. Return as `life.create`.
function life.create_for_put()
  local bound = the_call.arguments[HEADER_BOUND]
  if bound ~= 'by name' then return life.create(bound, the_call.overflow, true) end
  local signed = call('HGET', the_call.own_key('peers'), the_call.identity)
  local packed = string.match(signed or '', '^%S+ %S+ %S+ (.+)$')
  for _, template in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if matches(queue.base, template[1]) then return life.create(unpack(template, 2)) end
  end
  return { err = 'ERR the backend has not accepted the heartbeat of the server, which has the settings of new queues' }
end

-- Return whether the settings say for how much a queue has room, and what happens when it is full.
local function has_room(some)
  return (some.bound or '0') ~= '0' or (some.overflow or '') ~= '' or (some.max_bytes or '') ~= ''
end

-- Settings that mean nothing without another one, and what a queue without that one lacks.
local NEEDS = {
  dead_letter = { 'max_deliveries', 'MAX-DELIVERIES: DEAD-LETTER needs it' },
  retry_delay_max = { 'retry_delay', 'RETRY-DELAY: RETRY-DELAY-MAX needs it' },
  ack_ttr = { 'ack', 'ACK NEXT: ACK-TTR needs it' },
}

-- Take away new settings that need one that is taken away. Return what others need, and the queue lacks, or nil.
local function complete(new, settings)
  local function has(name) return (new[name] or call('HGET', settings, name) or '') ~= '' end
  for name, needed in pairs(NEEDS) do
    local setting, missing = unpack(needed)
    if (new[name] or '') ~= '' and not has(setting) then return missing end
    if new[setting] == '' then new[name] = '' end
  end
  local has_no_limit = (tonumber(new.bound) or queue.bound) == 0 and not has('max_bytes')
  if new.overflow == 'overwrite' and has_no_limit then return 'BOUND or MAX-BYTES: OVERFLOW OVERWRITE needs one' end
end

-- Change settings, each a name and a value: those of `create`, but the type; '' for none. Return 1, or an error. A
-- queue that a put created stays from now on, like one that a client created, except with a setting 'implicit'.
function life.alter(...)
  local changes, new = { ... }, {}
  for i = 1, #changes, 2 do new[changes[i]] = changes[i + 1] end
  local settings = queue.base .. ':ext:settings'
  local needs_jobs = new.max_deliveries or new.dead_letter
  local missing = complete(new, settings)
  if missing then return { err = 'TYPE lacks ' .. missing } end
  local has_limit = (new.max_deliveries or new.dead_letter or '') ~= '' or has_policy(new)
  local keeps = (new.ack or '') ~= ''
  local refusal = (has_limit or keeps and queue.kind.become_jobs) and jobs.convert()
    or keeps and queue.kind.has_groups and { err = 'TYPE no-reservations' }
    or (has_policy(new) or has_room(new)) and queue.jobs and queue.jobs.source and { err = 'TYPE is-group-no-policy' }
  if refusal then return refusal end
  if needs_jobs then -- note_due writes both anew, for dead letters and groups (job_times.lua)
    call('DEL', queue.base .. ':ext:due')
    call('ZREM', the_call.own_key('due'), queue.base)
  end
  local bound, is_implicit, was_full = tonumber(new.bound), new.implicit, room.is_full()
  new.bound, new.implicit = nil, nil
  for name, value in pairs(new) do
    if value == '' then call('HDEL', settings, name) else call('HSET', settings, name, value) end
  end
  call('HDEL', settings, 'since')
  if not is_implicit then call('HDEL', settings, 'implicit') end
  block.changed = true
  if new.max_bytes then
    if not queue.word or queue.word == 'limited' then queue.set_kind(new.max_bytes ~= '' and 'limited' or nil) end
    queue.max_bytes = nil
  end
  for _, name in ipairs(policy.SETTINGS) do
    if new[name] then
      policy.note()
      queue.try_waiting()
      break
    end
  end
  queue.kind.altered(new)
  if bound then
    queue.bound = bound
    call('SET', queue.base .. ':bound', bound)
  end
  -- If there was room and still is, a native client has taken the missing token, and returns it.
  if was_full or room.is_full() then room.settle() end
  if was_full and new.overflow then queue.try_waiting() end
  return 1
end

-- Delete some messages in these states; they count as consumed. Return { how many, 1 if there are more }, or an error.
function life.purge(...)
  local count = 0
  for _, state in ipairs({ ... }) do
    local some, is_more = queue.kind.purge(state)
    if type(some) == 'table' then return some end
    count = count + some
    if is_more then return { count, 1 } end
  end
  if queue.bound then room.settle() end
  return { count, 0 }
end

-- Keep the messages from position `first` to `last`, as Redis's LTRIM; -1 is the newest. Return the ids of jobs that other
-- calls must delete, or an error.
function life.trim(first, last)
  queue.kind.adopt()
  local count, refusal = queue.length + queue.returned, nil
  first = math.min(count, math.max(0, first < 0 and first + count or first))
  last = math.max(first - 1, math.min(count - 1, last < 0 and last + count or last))
  if first > 0 or last < count - 1 then refusal = queue.kind.refusal_to_remove(last < count - 1) end
  if refusal then return refusal end
  local others = queue.kind.keep(first, last)
  room.settle()
  return others or {}
end

-- Returns  1, or an error (pressure 0.15, Close)
function life.close()
  if queue.is_closed() then return { err = 'CLOSED' } end
  local refusal = queue.in_use('producer')
  if refusal then return refusal end
  queue.act_as('producer')
  block.changed = true
  call('LPUSH', queue.base .. ':closed', 0, 0)
  queue.end_turn('producer')
  for _, base in ipairs(call('ZRANGE', queue.base .. ':ext:groups', 0, -1)) do
    if call('EXISTS', base .. ':closed') == 0 then call('LPUSH', base .. ':closed', 0, 0) end
  end
  return 1
end

-- After the queue of a group has been deleted, let the log drop what all other groups have passed. The script of
-- housekeeping has no kinds of queues, so it wakes up the operations that wait for room there.
local function settle_log(source)
  local home = queue.base
  if source and queue.kind then
    queue.enter(source)
    queue.enter(home)
  elseif source then
    queue.base = source
    queue.try_waiting()
    queue.base = home
  end
end

local function remove()
  local source = source_of()
  unlink(keys.of_protocol)
  empty()
  settle_log(source)
  return 1
end

-- Delete a queue. Return 1, or an error. If a native client holds a role, this takes two steps (pressure 0.15, Delete):
-- the first wakes up clients that wait for room or messages, and returns 'begun'; `finish_delete` deletes the rest.
function life.delete()
  local base = queue.base
  if not queue.bound then
    -- Two concurrent Deletes may leave these keys. No client waits on them, but no queue can be created.
    local all = keys.with(keys.of_protocol)
    if call('EXISTS', unpack(all, 1, 6)) == 0 then call('UNLINK', unpack(all, 7)) end
    return { err = 'NOQUEUE' }
  end
  block.changed = true
  if not queue.in_use('producer') and not queue.in_use('consumer') then return remove() end
  call('DEL', base .. ':bound')
  call('LPUSH', base .. ':not_full', 0)
  call('LPUSH', base .. ':closed', 0, 0)
  queue.bound, queue.signs = false, nil
  return 'begun'
end

-- Returns  1, also if another client has finished the deletion; or an error
function life.finish_delete()
  if queue.bound or not has_keys() then return 1 end
  return queue.in_use('producer') or queue.in_use('consumer') or remove()
end

-- Give back the tokens that were parked for this server; return 1. The rest of the call still has the turn.
function life.turn()
  for _, role in ipairs({ 'producer', 'consumer' }) do
    if call('EXISTS', queue.base .. ':' .. role .. '_free') == 0 then queue.end_turn(role) end
    call('DEL', queue.base .. ':ext:' .. role .. '_turn')
  end
  queue.signs = nil
  return 1
end

-- Delete the extension keys of a queue that a native client has deleted. Return how many there were.
function life.clean()
  if queue.bound then return 0 end
  if has_keys() then
    -- The Delete is still in progress, and may be waiting for a token that a server has parked.
    queue.end_turn('producer')
    queue.end_turn('consumer')
  end
  local source = source_of()
  local count = life.forget()
  settle_log(source)
  return count
end

return life
