-- The life of a queue: create, close and delete it, end a turn, and clean up after a native Delete.

-- The suffixes of all keys of a queue: the protocol's (`delete` depends on their order), and the extensions.
local function protocol_suffixes()
  return {
    '', ':bound', ':producer', ':consumer', ':producer_free', ':consumer_free', ':not_full', ':closed',
    ':stats:produced_messages', ':stats:produced_bytes', ':stats:consumed_messages', ':stats:consumed_bytes',
  }
end

local function extension_suffixes()
  return {
    ':ext:members', ':ext:copies', ':ext:index', ':ext:settings', ':ext:producer_turn', ':ext:consumer_turn',
    ':ext:made', ':ext:marks', ':ext:waiting',
    ':ext:jobs', ':ext:due', ':ext:ready', ':ext:delayed', ':ext:reserved', ':ext:buried', ':ext:equal', ':ext:single', ':ext:blocks',
    ':ext:outcomes', ':ext:outcome_times', ':ext:groups', ':ext:offsets',
    ':ext:same', ':ext:unique', -- earlier indexes (job_index.lua)
    ':ext:calls', -- version 0.1.0 (upgrade.lua)
  }
end

-- How the queues of a type keep their messages: as a list unless it is here (queue.lua).
local KIND_OF_TYPE = { jobs = 'jobs', lifo = 'jobs', random = 'jobs', group = 'jobs', log = 'log' }

local life = {}
do
  local operations = life

  local function with_base(suffixes)
    for i, suffix in ipairs(suffixes) do suffixes[i] = base .. suffix end
    return suffixes
  end
  local function protocol_keys() return with_base(protocol_suffixes()) end
  local function extension_keys() return with_base(extension_suffixes()) end

  -- Drop the queue's blocks of ids from the index of all queues (jobs.lua).
  function operations.drop_ids()
    local index = call('HGET', base .. ':ext:settings', 'index')
    local blocks = index and call('LRANGE', base .. ':ext:blocks', 0, -1) or {}
    for first = 1, #blocks, CHUNK do
      call('HDEL', index, unpack(blocks, first, math.min(first + CHUNK - 1, #blocks)))
    end
  end

  -- Take the queue out of the registries of queues (limits.lua, jobs.lua).
  function operations.unregister()
    local registry = call('HGET', base .. ':ext:settings', 'registry')
    if registry then
      call('SREM', registry, base)
      call('ZREM', (string.gsub(registry, 'queues$', 'due')), base)
    end
  end

  -- Delete the queues of a log's groups. If this queue is one of them, let its log forget it (groups.lua).
  function operations.drop_groups()
    local home, source = base, call('HGET', base .. ':ext:settings', 'source')
    if source then call('ZREM', source .. ':ext:groups', base) end
    for _, key in ipairs(call('ZRANGE', base .. ':ext:groups', 0, -1)) do
      base = key
      set_all_aside()
      operations.drop_ids()
      operations.unregister()
      call('UNLINK', unpack(protocol_keys()))
      call('UNLINK', unpack(extension_keys()))
      base = home
    end
  end

  local function forget(bound)
    set_all_aside()
    operations.drop_ids()
    operations.drop_groups()
    operations.unregister()
    queue.kind, queue.jobs = nil, nil
    queue.bound, queue.producer, queue.consumer, queue.length, queue.consumed = bound, false, false, 0, 0
    queue.made = false
    mirror = nil
    call('UNLINK', unpack(extension_keys()))
  end

  -- Takes    the bound, 0 for none; the overflow, block or error, or '' for the server's; 'implicit' if a put
  --          creates the queue, else ''; then other settings, each a name and a value: type, and those of jobs
  --          (jobs.lua)
  -- Returns  1, or an error. Keys without :bound mean that a native Delete is in progress. It would also
  --          delete new messages, so no queue can be created until it has finished.
  function operations.create(bound, full, implicit, ...)
    if queue.bound then
      return { err = 'EXISTS' }
    end
    if call('EXISTS', unpack(protocol_keys())) > 0 then
      return { err = 'DELETING' }
    end
    changed = true
    local own, others = {}, { ... }
    for i = 1, #others, 2 do own[others[i]] = others[i + 1] end
    forget(false)
    local registered = register(own)
    if registered.err then
      return registered
    end
    queue.bound = tonumber(bound)
    call('SET', base .. ':bound', bound)
    call('LPUSH', base .. ':producer_free', 1)
    call('LPUSH', base .. ':consumer_free', 1)
    call('LPUSH', base .. ':not_full', 1)
    queue.made = table.concat(call('TIME'), '.')
    local settings = { 'overflow', full and full ~= '' and full or default_overflow, ... }
    for _, word in ipairs(registered) do settings[#settings + 1] = word end
    if implicit and implicit ~= '' then settings[#settings + 1], settings[#settings + 2] = 'implicit', 1 end
    call('HSET', base .. ':ext:settings', unpack(settings))
    local is_limited = own.max_bytes or registered[3]
    queue.kind = KIND_OF_TYPE[own.type] or is_limited and own.max_bytes ~= '' and 'limited' or nil
    call('SET', base .. ':ext:made', queue.made .. (queue.kind and ' ' .. queue.kind or ''))
    if queue.kind == 'jobs' then begin_jobs() elseif queue.kind == 'log' then begin_log() end
    return 1
  end

  local OF_JOBS = { max_deliveries = true, dead_letter = true }

  -- Change settings. A queue that a put created stays from now on, like one that a client created.
  --
  -- Takes    settings, each a name and a value: those of `create`, but the type; '' for none
  -- Returns  1, or an error
  function operations.alter(...)
    local changes, new = { ... }, {}
    for i = 1, #changes, 2 do
      local name, value = changes[i], changes[i + 1]
      if OF_JOBS[name] and queue.kind ~= 'jobs' then
        return { err = 'TYPE has no jobs: MAX-DELIVERIES and DEAD-LETTER need a queue of the type jobs' }
      end
      new[name] = value
    end
    local settings = base .. ':ext:settings'
    if new.dead_letter and new.dead_letter ~= '' and not tonumber(new.max_deliveries
      or call('HGET', settings, 'max_deliveries') or nil) then
      return { err = 'TYPE has no MAX-DELIVERIES: DEAD-LETTER needs it' }
    end
    if new.max_deliveries == '' then new.dead_letter = '' end
    if new.dead_letter then -- it is noted anew, for the dead letters
      call('DEL', base .. ':ext:due')
      call('ZREM', own_key('due'), base)
    end
    local bound, was_full = tonumber(new.bound), is_full()
    new.bound = nil
    for name, value in pairs(new) do
      if value == '' then call('HDEL', settings, name) else call('HSET', settings, name, value) end
    end
    call('HDEL', settings, 'implicit', 'since')
    if queue.jobs then queue.jobs.read_settings() end
    changed = true
    if new.max_bytes then
      if not queue.kind or queue.kind == 'limited' then set_kind(new.max_bytes ~= '' and 'limited' or nil) end
      queue.max_bytes = nil
      if queue.kind == 'jobs' and new.max_bytes ~= '' then queue.jobs.count_held() end
    end
    if bound then
      queue.bound = bound
      call('SET', base .. ':bound', bound)
    end
    -- While there was room, a missing token was with a native client, which returns it.
    if was_full or is_full() then settle_not_full() end
    return 1
  end

  -- Returns  1, or an error (pressure 0.15, Close)
  function operations.close()
    if call('EXISTS', base .. ':closed') == 1 then
      return { err = 'CLOSED' }
    end
    local refusal = in_use('producer')
    if refusal then
      return refusal
    end
    act_as('producer')
    changed = true
    call('LPUSH', base .. ':closed', 0, 0)
    end_turn('producer')
    for _, key in ipairs(call('ZRANGE', base .. ':ext:groups', 0, -1)) do
      if call('EXISTS', key .. ':closed') == 0 then call('LPUSH', key .. ':closed', 0, 0) end
    end
    return 1
  end

  local function remove()
    call('UNLINK', unpack(protocol_keys()))
    forget(false)
    return 1
  end

  -- Delete a queue. If a native client holds a role, this takes two steps (pressure 0.15, Delete). The first
  -- removes :bound and wakes up clients that wait for room or messages; `finish_delete` deletes the rest.
  --
  -- Returns  1; 'begun' if the second step is still to be done; or an error
  function operations.delete()
    if not queue.bound then
      -- Two concurrent Deletes may leave these keys. No client waits on them, but they prevent a new queue.
      if call('EXISTS', unpack(protocol_keys(), 1, 6)) == 0 then
        call('UNLINK', unpack(protocol_keys(), 7))
      end
      return { err = 'NOQUEUE' }
    end
    changed = true
    if not in_use('producer') and not in_use('consumer') then
      return remove()
    end
    call('DEL', base .. ':bound')
    call('LPUSH', base .. ':not_full', 0)
    call('LPUSH', base .. ':closed', 0, 0)
    queue.bound = false
    return 'begun'
  end

  -- Returns  1, also if another client has finished the deletion; or an error
  function operations.finish_delete()
    if queue.bound or call('EXISTS', unpack(protocol_keys())) == 0 then
      return 1
    end
    return in_use('producer') or in_use('consumer') or remove()
  end

  -- Give back the tokens that were parked for this server; return 1. The rest of the call still has the turn.
  function operations.turn()
    for _, role in ipairs({ 'producer', 'consumer' }) do
      if call('EXISTS', base .. ':' .. role .. '_free') == 0 then
        end_turn(role)
      end
      call('DEL', base .. ':ext:' .. role .. '_turn')
    end
    return 1
  end

  -- Delete the extension keys of a queue that a native client has deleted. Return how many there were.
  function operations.clean()
    if queue.bound then
      return 0
    end
    if call('EXISTS', unpack(protocol_keys())) > 0 then
      -- The Delete is still in progress, and may be waiting for a token that a server has parked.
      end_turn('producer')
      end_turn('consumer')
    end
    set_all_aside()
    operations.drop_ids()
    operations.drop_groups()
    operations.unregister()
    return call('UNLINK', unpack(extension_keys()))
  end
end
