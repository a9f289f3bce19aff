-- Servers: the registry of live servers, one hash: name -> 'count timeout library templates'. A server increases its
-- count when it signs, and is dead if it does not sign for 0.7 `timeout` seconds (queues/peers.py). The templates are the
-- settings of queues that its puts create (core/life.lua). A script of its own, which uses no queue.
--
-- Takes    KEYS[1]  the hash
--          KEYS[2]  the note of a server's death: its value then. Kept while the server signs, and a day longer
--          KEYS[3]  the server's records (records.lua)
--          ARGV[1]  sign; bury, before its records are recovered; forget, after that; or leave, when it stops
--          ARGV[2]  the server's name
--          ARGV[3]  sign: the value to store; bury, forget: the expected value, because the server may have
--                   come back
--          ARGV[4]  sign: the epoch of a new connection; calls of earlier ones are refused. Else ''
-- Returns  sign: the note in KEYS[2], if any. A new note means that the server's records have been recovered. The note
--          stays, because this reply may be lost, and the server then signs again. Else 1 if it was done, or 0

local DAY = 86400
local verb, name, signed, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4] or ''
local call = redis.call

if (verb == 'bury' or verb == 'forget') and call('HGET', KEYS[1], name) ~= signed then return 0 end
-- A backend out of memory refuses a script whose first write needs memory. This one does not.
call('HDEL', KEYS[3], 'no record')
if verb == 'sign' and epoch ~= '' and tonumber(call('HGET', KEYS[3], 'epoch') or 0) < tonumber(epoch) then
  call('HSET', KEYS[3], 'epoch', epoch) -- first: it is needed even if the rest is refused
end
call('EXPIRE', KEYS[2], DAY)
if verb == 'bury' then
  call('SET', KEYS[2], signed, 'EX', DAY)
  if call('EXISTS', KEYS[3]) == 1 then call('HSET', KEYS[3], 'epoch', 0) end
  return 1
elseif verb == 'forget' or verb == 'leave' then
  for _, field in ipairs(call('HKEYS', KEYS[3])) do
    -- A server leaves after all messages that it took have arrived. If it has records, they are from older data of the
    -- backend, except fields with an `e`: messages that could not be put back (recovery.lua, undo).
    if field ~= 'epoch' and (verb == 'forget' or string.sub(field, 1, 1) == 'e') then return 0 end
  end
  call('DEL', KEYS[3])
  return call('HDEL', KEYS[1], name)
end
call('HSET', KEYS[1], name, signed)
return call('GET', KEYS[2])
