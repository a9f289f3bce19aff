-- Scan: one step of a SCAN. A script of its own, which changes nothing.
--
-- A plain SCAN names no key, so while a slot migrates, a node of a cluster answers it with only some of the keys. A call
-- that names a key that does not exist is refused then, and sent again when the keys are together (backend/link.py).
--
-- Takes    KEYS[1]  a key that never exists, in the slot of the keys that are searched
--          ARGV     a cursor, a pattern, a count, and the run that has returned the cursor
-- Returns  the run, the next cursor, and keys. A run is a number from 0 to 4095 for one process of a node: the cursor of
--          another run means nothing here, so the scan begins anew

local run = tostring(tonumber(string.match(redis.call('INFO', 'server'), 'run_id:(%x%x%x)'), 16))
local cursor = ARGV[4] == run and ARGV[1] or '0'
local found = redis.call('SCAN', cursor, 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return { run, found[1], found[2] }
