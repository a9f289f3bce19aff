-- Servers: who lives is in one hash, name -> how often it has signed, and after how many seconds without it
-- is dead. A script of its own, which works on no queue.
--
-- Takes    KEYS[1]  the hash
--          ARGV[1]  sign, or forget
--          ARGV[2]  a server's name
--          ARGV[3]  what is noted of it; to forget, what has to be noted still: it may have come back meanwhile
-- Returns  how many fields have come or gone

if ARGV[1] == 'forget' then
  return redis.call('HGET', KEYS[1], ARGV[2]) == ARGV[3] and redis.call('HDEL', KEYS[1], ARGV[2]) or 0
end
-- A backend out of memory refuses a script whose first write needs some. This one does nothing.
redis.call('PERSIST', KEYS[1])
return redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
