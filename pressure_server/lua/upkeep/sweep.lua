-- Sweep: frees some elements of a collection that a deleted queue has left (core/keys.lua). A script of its own.
--
-- Takes    KEYS[1]  ${PREFIX}!garbage
-- Returns  1 if there may be more to free, else 0

local AT_ONCE = 500

local call = redis.call
local key = call('SRANDMEMBER', KEYS[1])
if not key then return 0 end
local kind = call('TYPE', key).ok
if kind == 'set' then
  call('SPOP', key, AT_ONCE)
elseif kind == 'zset' then
  call('ZPOPMIN', key, AT_ONCE)
elseif kind == 'hash' then
  call('HDEL', key, unpack(call('HRANDFIELD', key, AT_ONCE)))
end
if call('EXISTS', key) == 0 then call('SREM', KEYS[1], key) end
return 1
