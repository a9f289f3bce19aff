-- Servers: who lives is in one hash, name -> how often it has signed, and after how many seconds without it
-- is dead. A script of its own, which works on no queue.
--
-- Takes    KEYS[1]  the hash
--          KEYS[2]  what the server had signed with when it was last called dead: for as long as it signs, and a day
--          ARGV[1]  sign, bury (before what is kept for it goes back), or forget (when all has)
--          ARGV[2]  the server's name
--          ARGV[3]  what is noted of it; else what has to be noted still: it may have come back meanwhile
-- Returns  sign: what is in KEYS[2], if anything. Where that has changed, what was kept for us is gone. It stays:
--          the answer may get lost with the connection on which it was asked for, and be asked for on the next
--          else 1 where it is done, or 0

local DAY = 86400

if ARGV[1] ~= 'sign' and redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then
  return 0
end
-- A backend out of memory refuses a script whose first write needs some, which this does not.
redis.call('EXPIRE', KEYS[2], DAY)
if ARGV[1] == 'bury' then
  redis.call('SET', KEYS[2], ARGV[3], 'EX', DAY)
  return 1
elseif ARGV[1] == 'forget' then
  return redis.call('HDEL', KEYS[1], ARGV[2])
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return redis.call('GET', KEYS[2])
