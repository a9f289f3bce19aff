-- The life of a queue: create, close, delete, and what is deleted by itself.

-- The suffixes of all keys of a queue: the protocol's, of which `delete` counts on the order, and ours.
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
    ':ext:calls', -- of version 0.1.0 (upgrade.lua)
  }
end

local function make_life()
  local operations = {}

  local function with_base(suffixes)
    for i, suffix in ipairs(suffixes) do suffixes[i] = base .. suffix end
    return suffixes
  end
  local protocol_keys, extension_keys = with_base(protocol_suffixes()), with_base(extension_suffixes())

  local function forget(bound)
    queue.bound, queue.producer, queue.consumer, queue.length, queue.consumed = bound, false, false, 0, 0
    queue.made = false
    mirror = nil
    call('UNLINK', unpack(extension_keys))
  end

  -- Takes    the bound, 0 is none; what a put does when it is reached, block or error; 'implicit' for a queue
  --          that a put makes
  -- Returns  1, or an error. Keys without :bound are what a native Delete in progress has not come to yet:
  --          it would delete what is put now, so the queue is in use until it has finished.
  function operations.create(bound, full, implicit)
    if queue.bound then
      return { err = 'EXISTS' }
    end
    if call('EXISTS', unpack(protocol_keys)) > 0 then
      return { err = 'DELETING' }
    end
    changed = true
    forget(tonumber(bound))
    call('SET', base .. ':bound', bound)
    call('LPUSH', base .. ':producer_free', 1)
    call('LPUSH', base .. ':consumer_free', 1)
    call('LPUSH', base .. ':not_full', 1)
    queue.made = table.concat(call('TIME'), '.')
    call('SET', base .. ':ext:made', queue.made)
    call('HSET', base .. ':ext:settings', 'overflow', full or default_overflow, unpack(implicit and { 'implicit', 1 } or {}))
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
    return 1
  end

  local function remove()
    call('UNLINK', unpack(protocol_keys))
    forget(false)
    return 1
  end

  -- Deletes in two steps where a native client holds a role (pressure 0.15, Delete): the first makes the queue
  -- disappear and wakes those who wait for room or messages; `finish_delete` takes what is left.
  --
  -- Returns  1; 'begun' where the second step is still to be done; or an error
  function operations.delete()
    if not queue.bound then
      -- What a Delete that met another one leaves behind: nobody waits on these, and they would keep the
      -- queue from being created again.
      if call('EXISTS', unpack(protocol_keys, 1, 6)) == 0 then
        call('UNLINK', unpack(protocol_keys, 7))
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

  -- Returns  1, also when somebody else has finished meanwhile; or an error
  function operations.finish_delete()
    if queue.bound or call('EXISTS', unpack(protocol_keys)) == 0 then
      return 1
    end
    return in_use('producer') or in_use('consumer') or remove()
  end

  -- Gives the tokens back that were parked for us; returns 1. What the call does behind this it does in our turn.
  function operations.turn()
    for _, role in ipairs({ 'producer', 'consumer' }) do
      if call('EXISTS', base .. ':' .. role .. '_free') == 0 then
        end_turn(role)
      end
      call('DEL', base .. ':ext:' .. role .. '_turn')
    end
    return 1
  end

  -- Drops what we have kept of a queue that a native client has deleted. Returns how many keys these were.
  function operations.clean()
    if queue.bound then
      return 0
    end
    if call('EXISTS', unpack(protocol_keys)) > 0 then
      -- The Delete is still at work, and may wait for a token that we have parked.
      end_turn('producer')
      end_turn('consumer')
    end
    return call('UNLINK', unpack(extension_keys))
  end

  return operations
end
