-- Limits: how many queues servers may create, and how many bytes a queue or the backend may hold.
--
-- Takes    ARGV[HEADER_LIMITS]  'bytes queues': the most bytes of a queue that is created without a limit of its own,
--                               and the most queues, 0 for any number; then '!' if the backend holds too many bytes
-- Touches  :ext:settings        'max_bytes': the limit of a queue, if it has one; 'held_bytes': how many bytes of its
--                               jobs are reserved or buried, which do not count; 'registry': the key below
--          ${PREFIX}!queues     a set: the base keys of the queues that servers have created
--
-- A queue that has reached its limit of bytes is full, as one that has reached its bound: a put that begins below
-- the limit is accepted. A list with such a limit is of the kind 'limited', so that the fast path leaves it alone.

-- Return the present queue's limit of bytes, or false.
function max_bytes()
  if queue.max_bytes == nil then
    queue.max_bytes = queue.kind and tonumber(call('HGET', base .. ':ext:settings', 'max_bytes') or nil) or false
  end
  return queue.max_bytes
end

-- Return whether the present queue has reached its limit of bytes.
local function is_heavy()
  local most = max_bytes()
  if not most then
    return false
  end
  local stats = call('MGET', base .. ':stats:produced_bytes', base .. ':stats:consumed_bytes')
  local held = queue.kind == 'jobs' and tonumber(call('HGET', base .. ':ext:settings', 'held_bytes') or nil) or 0
  return (tonumber(stats[1]) or 0) - (tonumber(stats[2]) or 0) - math.max(0, held) >= most
end

function is_full()
  return queue.bound > 0 and queue.length >= queue.bound or is_heavy()
end

-- Note how the queue keeps its messages; nil for a plain list.
function set_kind(kind)
  queue.kind = kind
  if queue.made or kind then
    call('SET', base .. ':ext:made', (queue.made or '-') .. (kind and ' ' .. kind or ''))
  else
    call('DEL', base .. ':ext:made')
  end
end

-- Return whether puts into the queue may have to wait.
local function may_be_full()
  return queue.bound > 0 or max_bytes()
end

-- Enter a queue that is being created into the registry. Return an error if there are too many; else the settings
-- that it gets besides its own.
local function register(own)
  local bytes, most = string.match(ARGV[HEADER_LIMITS], '^(%d+) (%d+)')
  local registry, settings = own_key('queues'), {}
  if tonumber(most) > 0 and call('SCARD', registry) >= tonumber(most) then
    return { err = 'QUEUES ' .. most }
  end
  call('SADD', registry, base)
  settings[1], settings[2] = 'registry', registry
  if bytes ~= '0' and not own.max_bytes then settings[3], settings[4] = 'max_bytes', bytes end
  return settings
end

-- Return an error if the backend holds too many bytes, else nil.
local function storage_refusal()
  return string.byte(ARGV[HEADER_LIMITS], -1) == 33
    and 'OOM the backend stores more than --max-stored-bytes: take or delete messages first' or nil
end
