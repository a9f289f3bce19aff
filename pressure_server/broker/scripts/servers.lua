-- Servers: who lives is in one hash, name -> how often it has signed, and after how many seconds without it
-- is dead. A script of its own, which works on no queue.
--
-- Takes    KEYS[1]  the hash
--          KEYS[2]  a key that is there for a day when the server has been called dead
--          ARGV[1]  sign, or forget
--          ARGV[2]  the server's name
--          ARGV[3]  what is noted of it; to forget, what has to be noted still: it may have come back meanwhile
-- Returns  sign: 1 where we had been called dead, and what was kept for us is gone; else 0
--          forget: 1 where it is done, else 0

if ARGV[1] == 'forget' then
  if redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[3] then
    return 0
  end
  redis.call('HDEL', KEYS[1], ARGV[2])
  redis.call('SET', KEYS[2], 1, 'EX', 86400)
  return 1
end
-- A backend out of memory refuses a script whose first write needs some, which this does not.
local was_dead = redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return was_dead
