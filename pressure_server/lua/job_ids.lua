-- Ids of jobs: numbers that find their queue. A queue gets ids in blocks of 64, and an index tells to which
-- queue each block belongs. In a database with one queue of jobs they are 1, 2, 3, …
--
-- Touches  :ext:settings 'id'     the last id that the queue has given, as a decimal number; 'index': the key of the index
--          :ext:blocks            a list: the blocks that the queue has had
--          ${PREFIX}!blocks       the index, a hash: block -> base key
--          ${PREFIX}!last_block   the number of blocks given

local IDS_OF_BLOCK = 64
-- Jobs that are read at once; delays, and reservations, that end when a block begins.
local JOBS_AT_ONCE = 500

local stamped -- the last stamp of the call

-- Return when a job is made: microseconds since 1970 in 16 digits, and a space. Each stamp is
-- later than the last one, whatever the queue, although the clock may stand still in a call. (A job takes more than a
-- microsecond, so stamps do not run ahead of the clock.)
-- The first 13 digits are milliseconds; jobs of earlier versions have only these.
local function new_stamp()
  stamped = (stamped or clock() and microseconds) + 1
  return string.format('%.0f ', stamped)
end

-- Return a new block. Check two old ones of the queue, and give up those without jobs.
local function new_block_of_ids()
  local index, blocks = own_key('blocks'), base .. ':ext:blocks'
  for _ = 1, math.min(2, call('LLEN', blocks)) do
    local old, ids = call('RPOP', blocks), {}
    for i = 1, IDS_OF_BLOCK do ids[i] = string.format('%013x', old * IDS_OF_BLOCK + i) end
    local is_used = false
    for _, job in ipairs(call('HMGET', base .. ':ext:jobs', unpack(ids))) do is_used = is_used or job end
    if is_used then
      call('LPUSH', blocks, old)
    else
      call('HDEL', index, old)
    end
  end
  local block = string.format('%.0f', call('INCR', own_key('last_block')) - 1)
  call('LPUSH', blocks, block)
  call('HSET', index, block, base)
  call('HSET', base .. ':ext:settings', 'index', index)
  return tonumber(block)
end

-- Return new ids, in ascending order, in the form that jobs.lua describes.
local function new_job_ids(wanted)
  local settings, ids = base .. ':ext:settings', {}
  local jobs = queue.jobs or {}
  local last = jobs.last_id or tonumber(wanted > 0 and call('HGET', settings, 'id') or 0)
  for i = 1, wanted do
    if last % IDS_OF_BLOCK == 0 then last = new_block_of_ids() * IDS_OF_BLOCK end
    last = last + 1
    ids[i] = string.format('%013x', last)
  end
  if wanted > 0 then call('HSET', settings, 'id', string.format('%.0f', last)) end
  jobs.last_id = last
  return ids
end
