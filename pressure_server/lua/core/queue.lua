-- The queue that the call works on: its state, its roles and its statistics.
--
-- Takes    a base key, ${PREFIX}:${queue}
-- Touches  the keys of docs/internals/keys.md. A call is atomic, so it need not take a role's token: it only checks
--          that the token is there.
--          :ext:made  when the library created the queue, to tell it from earlier queues of that name; '-' if a native
--          client did. Then, after a space, the word of its kind (docs/internals/jobs.md), unless it is a plain list
-- Returns  one table, filled in `read`, and for the general path in `begin`. queue.kind has the functions of its kind

-- For how many milliseconds a queue without jobs keeps :ext:due. Meanwhile, servers begin to watch it.
local NOTED = 10000
-- `kinds` has the kinds by the word in :ext:made; '' is that of a plain list.
queue = { kinds = {} }

function queue.read(base)
  queue.base = nil -- until all is read: an error must not leave this queue with the state of another
  local values = call('MGET', base .. ':bound', base .. ':producer', base .. ':consumer', base .. ':ext:index',
    base .. ':stats:consumed_messages', base .. ':ext:made')
  local made, word = values[6], nil
  if made and string.byte(made, -1) > 57 then -- does not end in a digit
    made, word = string.match(made, '^(%S+) (%l+)$')
    made = made ~= '-' and made
  end
  queue.bound = values[1] and (tonumber(values[1]) or 0) -- false: there is no such queue
  queue.producer, queue.consumer, queue.index = values[2], values[3], values[4]
  queue.consumed, queue.made, queue.word = tonumber(values[5]) or 0, made, word
  queue.kind = queue.kinds[word or '']
  if not queue.kind and queue.kinds[''] then
    error({ err = 'TYPE newer ' .. word }, 0) -- to use it as a list would damage it
  end
  queue.length = call('LLEN', base)
  queue.signs = nil -- which of the keys exist for which `look` asks
  queue.base = base
end

-- Begin to use the queue that has been read, on the general path.
function queue.begin()
  queue.turn = nil -- whether a pressure-server has the turn of the role that `in_use` checked last
  queue.max_bytes = nil -- see room.lua
  queue.mirror, queue.marks = nil, nil -- see mirror.lua, marks.lua
  queue.jobs = nil -- see jobs.lua
  queue.groups, queue.returned = nil, 0 -- of a log: see log.lua, groups.lua
  queue.kind.begin()
end

-- Switch to a queue, unless the call works on it already.
function queue.enter(base)
  if base ~= queue.base then
    if queue.base then
      queue.kind.settle()
      queue.kind.leave()
    end
    queue.read(base)
    queue.begin()
  end
end

-- Forget the queue, whose state here may be wrong: it must be entered anew.
function queue.forget()
  queue.base, queue.mirror, queue.jobs = nil, nil, nil
end

function queue.key_of(name) return queue.base .. ':ext:' .. name end

-- Change the queue's kind; nil for a plain list.
function queue.set_kind(word)
  queue.word, queue.kind = word, queue.kinds[word or '']
  if queue.made or word then
    call('SET', queue.base .. ':ext:made', (queue.made or '-') .. (word and ' ' .. word or ''))
  else
    call('DEL', queue.base .. ':ext:made')
  end
end

-- One EXISTS tells which of these keys exist: each is repeated so often that the sum tells. The answer is valid until one
-- of them is written.
local FREE = { producer = 1, consumer = 2 }
local NOT_FULL, CLOSED = 4, 8

local function look()
  local base = queue.base
  local free, full, closed = base .. ':consumer_free', base .. ':not_full', base .. ':closed'
  queue.signs = call('EXISTS', base .. ':producer_free', free, free, full, full, full, full,
    closed, closed, closed, closed, closed, closed, closed, closed)
  return queue.signs
end

local function has(sign) return (queue.signs or look()) % (2 * sign) >= sign end

function queue.is_closed() return has(CLOSED) end

-- Return whether the :not_full token is there.
function queue.has_token() return has(NOT_FULL) end

-- Return whether no client holds the role.
function queue.is_free(role) return has(FREE[role]) end

-- Return an error if a native client holds the role ('producer' or 'consumer'), else nil.
function queue.in_use(role)
  local base = queue.base
  if queue.is_free(role) then return nil end
  queue.turn = call('EXISTS', base .. ':ext:' .. role .. '_turn') == 1
  if not queue.turn then
    -- If the name is a pressure-server's, it is outdated: the client that took the role has not written its own yet.
    local name = queue[role] or ''
    return { err = 'INUSE ' .. role .. ' ' .. (string.sub(name, 1, 16) == 'pressure-server:' and '' or name) }
  end
end

-- End a turn. Any pressure-server that acts in the role does so, because the server whose turn it was may be dead.
function queue.end_turn(role)
  queue.signs = nil
  return try('LMOVE', queue.base .. ':ext:' .. role .. '_turn', queue.base .. ':' .. role .. '_free', 'RIGHT', 'LEFT')
end

-- Write this server's name as that of the role's holder.
function queue.act_as(role)
  if queue[role] ~= the_call.identity then
    call('SET', queue.base .. ':' .. role, the_call.identity)
    queue[role] = the_call.identity
  end
end

-- Count messages as 'produced' or 'consumed' after they have been put or taken.
function queue.count_as(verb, messages, bytes)
  if queue.turn then queue.end_turn(verb == 'produced' and 'producer' or 'consumer') end
  if verb == 'consumed' then queue.consumed = queue.consumed + messages end
  block.changed = true
  local statistic = queue.base .. ':stats:' .. verb
  -- Redis 7.0 would get -0 as an argument, and refuse it.
  try('INCRBY', statistic .. '_messages', 0 + messages)
  try('INCRBY', statistic .. '_bytes', 0 + bytes)
end

-- Let the servers try waiting operations again, after a change that no other watched key tells.
function queue.try_waiting()
  if queue.jobs then
    queue.jobs.is_due_now = true -- note_due in job_times.lua notes that
  else
    call('SET', queue.base .. ':ext:due', string.format('%.0f', the_call.clock()), 'PX', NOTED)
  end
end

-- Return what a put does if there is no room.
function queue.overflow()
  return call('HGET', queue.base .. ':ext:settings', 'overflow') or the_call.overflow
end

-- Return whether the queue is closed, and no message can come any more. Delayed and reserved jobs may come. A native
-- client that closes a log does not close its groups.
function queue.is_finished()
  local base, source = queue.base, queue.jobs and queue.jobs.source
  return queue.length == 0 and (queue.is_closed() or source and call('EXISTS', source .. ':closed') == 1)
    and call('EXISTS', base .. ':ext:ready', base .. ':ext:delayed', base .. ':ext:reserved') == 0
end
