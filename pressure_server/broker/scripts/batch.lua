-- One call for all who wait on a queue: runs of equal operations, one after the other.
--
-- Takes    KEYS[1]   the queue's base key
--          ARGV[1]   our identity
--          ARGV[2]   the bound a queue made on the fly gets, or '' to make none
--          ARGV[3…]  runs: a name, a count, and as many arguments
-- Returns  how many of the last run's units (messages, or commands for a put) are left undone: the caller
--          sends these, and the runs after them, again; then a result for each run that was executed.
--          A run that was refused has an error: NOQUEUE, EXISTS, CLOSED, INUSE holder, DELETING.

local function slice_of(first, count)
  if count <= CHUNK then
    return { unpack(ARGV, first, first + count - 1) }
  end
  local slice = {}
  for i = 1, count do
    slice[i] = ARGV[first + i - 1]
  end
  return slice
end

-- Why nothing can be put, after making the queue if that is allowed; or nil.
local function put_refusal()
  if not queue.bound then
    if ARGV[2] == '' then
      return { err = 'NOQUEUE' }
    end
    local made = make_life().create(tonumber(ARGV[2]))
    if made ~= 1 then
      return made
    end
  end
  if call('EXISTS', base .. ':closed') == 1 then
    return { err = 'CLOSED' }
  end
  return in_use('producer')
end

-- Where each operation is made, under its own name.
local makers = {
  put = make_put, add = make_put,
  get = make_get, remove = make_get,
  contains = make_read, length = make_read, range = make_read, scan = make_read, sample = make_read,
  info = make_read, exists = make_read,
  create = make_life, delete = make_life,
}
-- What it takes, where that is not up to two numbers: sizes and messages, or messages.
local takes = { put = 'puts', add = 'puts', remove = 'messages', contains = 'messages' }
local without_queue = { exists = true, create = true, delete = true }

local function execute(name, first, count)
  local refusal
  if takes[name] == 'puts' then
    refusal = put_refusal()
  elseif not queue.bound and not without_queue[name] then
    refusal = { err = 'NOQUEUE' }
  end
  if refusal then
    return refusal
  end
  local operation = makers[name]()[name]
  if takes[name] == 'puts' then
    return operation(ARGV[first], slice_of(first + 1, count - 1))
  elseif takes[name] == 'messages' then
    return operation(slice_of(first, count))
  end
  return operation(tonumber(ARGV[first]), tonumber(ARGV[first + 1]))
end

local reply = { 0 }
local at = 3
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local result, left = execute(ARGV[at], at + 2, count)
  reply[#reply + 1] = result
  at = at + 2 + count
  if left and left > 0 then
    reply[1] = left
    break
  end
end
if mirror then
  mirror.save()
end
return reply
