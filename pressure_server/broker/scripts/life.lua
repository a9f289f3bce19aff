-- The life of a queue: create, delete.

local function make_life()
  local operations = {}

  local protocol_keys = {
    base, base .. ':bound', base .. ':producer', base .. ':consumer', base .. ':producer_free',
    base .. ':consumer_free', base .. ':not_full', base .. ':closed',
    base .. ':stats:produced_messages', base .. ':stats:produced_bytes',
    base .. ':stats:consumed_messages', base .. ':stats:consumed_bytes',
  }
  local extension_keys = { base .. ':ext:members', base .. ':ext:copies', base .. ':ext:index' }

  local function forget(bound)
    queue.bound, queue.producer, queue.consumer, queue.length, queue.consumed = bound, false, false, 0, 0
    mirror = nil
    call('UNLINK', unpack(extension_keys))
  end

  -- Takes    the bound; 0 is none
  -- Returns  1, or an error. Keys without :bound are what a native Delete in progress has not come to yet:
  --          it would delete what is put now, so the queue is in use until it has finished.
  function operations.create(bound)
    if queue.bound then
      return { err = 'EXISTS' }
    end
    if call('EXISTS', unpack(protocol_keys)) > 0 then
      return { err = 'DELETING' }
    end
    forget(bound)
    call('SET', base .. ':bound', bound)
    call('LPUSH', base .. ':producer_free', 1)
    call('LPUSH', base .. ':consumer_free', 1)
    call('LPUSH', base .. ':not_full', 1)
    return 1
  end

  -- Returns  1, or an error. Both roles are free, so nobody waits, and the order of the protocol's steps,
  --          which is there to wake those who wait, makes no difference.
  function operations.delete()
    if not queue.bound then
      -- What a Delete that met another one leaves behind: nobody waits on these, and they would keep the
      -- queue from being created again.
      if call('EXISTS', unpack(protocol_keys, 1, 6)) == 0 then
        call('UNLINK', unpack(protocol_keys, 7))
      end
      return { err = 'NOQUEUE' }
    end
    local refusal = in_use('producer') or in_use('consumer')
    if refusal then
      return refusal
    end
    call('UNLINK', unpack(protocol_keys))
    forget(false)
    return 1
  end

  return operations
end
