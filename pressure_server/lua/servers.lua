-- Servers: who lives is in one hash, name -> how often it has signed, and after how many seconds without it
-- is dead. A script of its own, which works on no queue.
--
-- Takes    KEYS[1]  the hash
--          KEYS[2]  what the server had signed with when it was last called dead: for as long as it signs, and a day
--          KEYS[3]  the server's records (records.lua)
--          ARGV[1]  sign, bury (before what its records keep goes back), forget (when all has), or leave (for good)
--          ARGV[2]  the server's name
--          ARGV[3]  what is noted of it; else what has to be noted still: it may have come back meanwhile
--          ARGV[4]  sign: the epoch of a new connection: calls of those before are refused from now on; else ''
-- Returns  sign: what is in KEYS[2], if anything. Where that has changed, what was kept for us is gone. It stays:
--          the answer may get lost with the connection on which it was asked for, and be asked for on the next
--          else 1 where it is done, or 0

local DAY = 86400
local verb, name, signed, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or ''
local call = redis.call

if (verb == 'bury' or verb == 'forget') and call('HGET', KEYS[1], name) ~= signed then
  return 0
end
-- A backend out of memory refuses a script whose first write needs some, which this does not.
call('HDEL', KEYS[3], 'no record')
if verb == 'sign' and epoch ~= '' and tonumber(call('HGET', KEYS[3], 'epoch') or 0) < tonumber(epoch) then
  call('HSET', KEYS[3], 'epoch', epoch) -- first: it is needed also where the rest is refused
end
call('EXPIRE', KEYS[2], DAY)
if verb == 'bury' then
  call('SET', KEYS[2], signed, 'EX', DAY)
  if call('EXISTS', KEYS[3]) == 1 then
    call('HSET', KEYS[3], 'epoch', 0)
  end
  return 1
elseif verb == 'forget' or verb == 'leave' then
  for _, field in ipairs(call('HKEYS', KEYS[3])) do
    -- All that a server has taken has arrived when it leaves. Records that are still there had been dropped, and came
    -- back with older data of the backend; but for those of what could not be put back (recovery.lua, undo).
    if field ~= 'epoch' and (verb == 'forget' or string.sub(field, 1, 1) == 'e') then
      return 0
    end
  end
  call('DEL', KEYS[3])
  return call('HDEL', KEYS[1], name)
end
call('HSET', KEYS[1], name, signed)
return call('GET', KEYS[2])
