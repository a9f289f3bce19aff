-- Ids of jobs: numbers that find their queue. A queue gets ids in blocks of 64, and an index, ${PREFIX}!blocks, tells
-- to which queue each block belongs (docs/internals/jobs.md, keys.md).
--
-- Touches  :ext:settings 'id'     the last id that the queue has given, as a decimal number; 'index': the key of the index
--          ${PREFIX}!shards       on a cluster: how many shards there are, and which one this is

local job_ids = { OF_BLOCK = 64 }

-- Return a stamp, the time at which a job is made: microseconds since 1970 in 16 digits, and a space. Each stamp of a
-- call is later than the last one. (A job takes more than a microsecond, so stamps do not run ahead of the clock.)
function job_ids.new_stamp()
  the_call.stamped = (the_call.stamped or the_call.clock() and the_call.microseconds) + 1
  return string.format('%.0f ', the_call.stamped)
end

-- Return whether a block, whose first id is one more than this number, has jobs.
local function has_jobs(before)
  local ids = {}
  for i = 1, job_ids.OF_BLOCK do ids[i] = job_ids.word_of(before + i) end
  for _, state in ipairs({ 'ready', 'delayed', 'reserved', 'buried' }) do
    local scores = call('ZMSCORE', queue.key_of(state), unpack(ids))
    for i = 1, job_ids.OF_BLOCK do
      if scores[i] then return true end
    end
  end
  return false
end

-- Give up blocks of the queue that have no jobs left: check at most `most`, but not the current one.
local function give_up_old(most, current)
  local index, blocks = the_call.own_key('blocks'), queue.key_of('blocks')
  for _ = 1, math.min(most, call('LLEN', blocks)) do
    local old = call('RPOP', blocks)
    if tonumber(old) == current or has_jobs(old * job_ids.OF_BLOCK) then
      call('LPUSH', blocks, old)
    else
      call('HDEL', index, old)
    end
  end
end

-- Return a new block.
local function new_block()
  local index = the_call.own_key('blocks')
  -- On a cluster, the blocks of all shards together are numbered 0, 1, 2, …: a job's id tells its shard.
  local shards, shard = string.match(call('GET', the_call.own_key('shards')) or '1 0', '^(%d+) (%d+)$')
  local number = string.format('%.0f', (call('INCR', the_call.own_key('last_block')) - 1) * shards + shard)
  call('LPUSH', queue.key_of('blocks'), number)
  call('HSET', index, number, queue.base)
  call('HSET', queue.key_of('settings'), 'index', index)
  return tonumber(number)
end

-- Give the queue the block of a job that comes back: the queue may have given it up meanwhile.
function job_ids.note_back(id)
  local number = string.format('%.0f', math.floor((tonumber(id, 16) - 1) / job_ids.OF_BLOCK))
  local is_back = call('HSETNX', the_call.own_key('blocks'), number, queue.base) == 1
  if is_back then call('LPUSH', queue.key_of('blocks'), number) end
end

-- Return an id as jobs.lua describes it.
function job_ids.word_of(number) return string.format('%013x', number) end

-- Return new ids as numbers, in ascending order: for each block the first one, and how many.
function job_ids.spans(wanted)
  local state, spans = queue.jobs, {}
  local last = state.last_id or tonumber(wanted > 0 and call('HGET', queue.key_of('settings'), 'id') or 0)
  local left = -last % job_ids.OF_BLOCK -- ids of the present block that have not been given
  if wanted > left then
    give_up_old(2 * math.ceil((wanted - left) / job_ids.OF_BLOCK), math.floor(last / job_ids.OF_BLOCK))
  end
  while wanted > 0 do
    if last % job_ids.OF_BLOCK == 0 then last = new_block() * job_ids.OF_BLOCK end
    local count = math.min(wanted, job_ids.OF_BLOCK - last % job_ids.OF_BLOCK)
    spans[#spans + 1] = { last + 1, count }
    last, wanted = last + count, wanted - count
  end
  if #spans > 0 then call('HSET', queue.key_of('settings'), 'id', string.format('%.0f', last)) end
  state.last_id = last
  return spans
end

-- Return new ids, in ascending order.
function job_ids.new(wanted)
  local ids, n = {}, 0
  for _, span in ipairs(job_ids.spans(wanted)) do
    for number = span[1], span[1] + span[2] - 1 do
      n = n + 1
      ids[n] = string.format('%013x', number)
    end
  end
  return ids
end

return job_ids
