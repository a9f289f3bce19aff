-- Queries. They take no role and change no message; looking for messages may extend the mirror.

local SAMPLE_BYTES = 64 * 1048576

local reads = {}
do
  local operations = reads

  -- Takes    messages
  -- Returns  1 for each that is queued, 0 for each that is not; and how many are left for another call
  function operations.contains(messages)
    if queue.jobs and queue.jobs.source then
      return { err = 'TYPE is that of a group: only the log that it reads has an index' }, 0
    end
    local found, decided = need_mirror().queued(messages)
    return found, #messages - decided
  end

  function operations.length()
    return queue.length
  end

  function operations.exists()
    return queue.bound and 1 or 0
  end

  -- Takes    first, last: positions, oldest first; 0 is the oldest, -1 the newest, as with LRANGE
  -- Returns  the messages between them, oldest first
  function operations.range(first, last)
    local newest_first = call('LRANGE', base, -1 - last, -1 - first)
    local count = #newest_first
    for i = 1, math.floor(count / 2) do
      newest_first[i], newest_first[count + 1 - i] = newest_first[count + 1 - i], newest_first[i]
    end
    return newest_first
  end

  -- Takes    an absolute position (the number of messages consumed before it), and a count
  -- Returns  the next position, 0 at the end; then up to `count` messages, oldest first
  -- Absolute positions stay valid while messages are taken from the head, so a scan never skips one.
  function operations.scan(position, count)
    local first = math.max(0, position - queue.consumed)
    local messages = operations.range(first, first + count - 1)
    local next_position = first + #messages < queue.length and queue.consumed + first + #messages or 0
    return { string.format('%d', next_position), messages }
  end

  -- Return random positions below `length`: distinct ones, or if `count` is negative, with repeats.
  function operations.positions(seed, count, length)
    local positions, taken = {}, {}
    if length == 0 then
      return positions
    end
    math.randomseed(seed)
    for last = length - math.min(math.abs(count), count > 0 and length or math.huge), length - 1 do
      local position = math.random(0, length - 1)
      if count > 0 then
        -- Robert Floyd's algorithm for a sample without repeats.
        position = math.random(0, last)
        if taken[position] then position = last end
        taken[position] = true
      end
      positions[#positions + 1] = position
    end
    return positions
  end

  -- Takes    a seed; the number of distinct positions to pick, or if negative, the number of picks with
  --          repeats
  -- Returns  the messages there; or an error if the repeats make the reply too large
  function operations.sample(seed, count)
    if queue.length > 0 and count >= queue.length then
      return operations.range(0, -1)
    end
    local picked, bytes = {}, 0
    for i, position in ipairs(operations.positions(seed, count, queue.length)) do
      picked[i] = call('LINDEX', base, position)
      bytes = bytes + #picked[i]
      if count < 0 and bytes > SAMPLE_BYTES then
        return { err = 'TOOLARGE' }
      end
    end
    return picked
  end

  -- Only logs have offsets (log.lua).
  function operations.at()
    return { err = 'TYPE has no offsets: they need a queue of the type log' }
  end

  -- See `outcome_of` in outcomes.lua.
  function operations.outcome(words)
    return outcome_of(words)
  end

  -- Return a text that changes with every put, get, close, delete and create.
  function operations.version()
    local stats = call('MGET', base .. ':stats:produced_messages', base .. ':stats:consumed_messages')
    local newest = call('LINDEX', base, 0)
    return string.format('%s %d %s %s %d %s %s', queue.bound and 'is' or 'is not', queue.length, stats[1] or '',
      stats[2] or '', call('EXISTS', base .. ':closed'), queue.made or '', newest and redis.sha1hex(newest)
      .. redis.sha1hex(call('LINDEX', base, -1)) or '')
  end

  -- Returns  bound, length, closed, for each role its tokens and last holder, the statistics, overflow, the type,
  --          the counts of jobs (jobs.lua), the settings of jobs: unique, max_deliveries, dead_letter; how many
  --          reservations have timed out; how many messages have been dropped to make room for others; and of a
  --          log the offsets of its head and its tail, else '', and how many groups read it; of a group's queue the
  --          base key of its log, else '', and how many messages it has missed; and the limit
  --          of bytes, 0 for none
  function operations.info()
    local stats = call('MGET', base .. ':stats:produced_messages', base .. ':stats:produced_bytes',
      base .. ':stats:consumed_messages', base .. ':stats:consumed_bytes')
    local counts = queue.jobs and queue.jobs.counts() or { queue.length, 0, 0, 0, 0, 0 }
    local settings = queue.jobs and queue.jobs.settings or {}
    counts[#counts + 1] = settings.unique or ''
    counts[#counts + 1] = settings.max_deliveries or 0
    counts[#counts + 1] = settings.dead_letter or ''
    local timeouts, dropped = unpack(call('HMGET', base .. ':ext:settings', 'timeouts', 'dropped'))
    counts[#counts + 1] = tonumber(timeouts or 0)
    counts[#counts + 1] = tonumber(dropped or 0)
    local is_log = queue.kind == 'log'
    counts[#counts + 1] = is_log and string.format('%.0f', queue.consumed) or ''
    counts[#counts + 1] = is_log and string.format('%.0f', queue.consumed + queue.length) or ''
    counts[#counts + 1] = is_log and call('ZCARD', base .. ':ext:groups') or 0
    counts[#counts + 1] = queue.jobs and queue.jobs.source or ''
    counts[#counts + 1] = tonumber(call('HGET', base .. ':ext:settings', 'missed') or 0)
    counts[#counts + 1] = max_bytes() or 0
    return {
      queue.bound, queue.length, call('EXISTS', base .. ':closed'),
      call('EXISTS', base .. ':producer_free'), queue.producer or '',
      call('EXISTS', base .. ':consumer_free'), queue.consumer or '',
      tonumber(stats[1] or 0), tonumber(stats[2] or 0), tonumber(stats[3] or 0), tonumber(stats[4] or 0),
      overflow(), queue.kind == 'jobs' and settings.type or queue.kind == 'log' and 'log' or 'fifo',
      unpack(counts),
    }
  end
end
