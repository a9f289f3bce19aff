-- Upgrade: servers of version 0.1.0 keep the messages that they took in a hash of each queue. When such a
-- server has died, its messages are put back.
--
-- Touches  :ext:calls  a hash: 'identity slot' -> { number of the call, reply, places, marks, slots that it
--          opened }, packed; places and marks are those of an entry (records.lua)

local queue = require 'core/queue'
local recovery = require 'core/recovery'

local upgrade = {}

-- Each message that a call opened has a field of its own: 'identity o<slot>.<n>'. Return n, or 0.
local function opened_as(field)
  return tonumber(string.match(field, ' o%d+%.(%d+)$') or 0)
end

-- Takes    the identity of a dead server of version 0.1.0
-- Returns  how many of its messages have been put back at the head of the queue
function upgrade.take_over(who)
  local key, found = queue.base .. ':ext:calls', {}
  local all = call('HGETALL', key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, #who + 1) == who .. ' ' then
      found[#found + 1] = { all[i], cmsgpack.unpack(all[i + 1]) }
    end
  end
  -- Put back the latest first: then the message taken first is the oldest again.
  table.sort(found, function(one, other)
    local call_of_one, call_of_other = tonumber(one[2][1]), tonumber(other[2][1])
    if call_of_one ~= call_of_other then
      return call_of_one > call_of_other
    end
    return opened_as(one[1]) > opened_as(other[1])
  end)
  local count = 0
  for _, one in ipairs(found) do
    local record = one[2]
    if queue.bound then
      count = count + recovery.restore({ queue.base, queue.made, 0, record[3], record[4] or {} }, record[2])
    end
    call('HDEL', key, one[1])
  end
  return count
end

return upgrade
