-- Lists on the fast path (core/fast.lua): workers delete the jobs that they have finished, and take the next messages, by pops
-- (ACK NEXT) or reserves. The general path does the same, and all other blocks: it takes nearly twice the time.

local records = require 'core/records'
local recovery = require 'core/recovery'
local fast = require 'core/fast'
local job_gets = require 'kinds/job_gets'
local jobs = require 'kinds/jobs'

local list_worker = {}
local NO_MARKS = {}
local key_of = queue.key_of

-- Return the ids in these words, and their fields with the states, if each is reserved just as `hold` has left it; else nil.
local function still_held(words)
  local ids, fields, owners, seen = {}, {}, {}, {}
  for i = 1, #words do
    local id, owner, reserves = string.match(words[i], '^(%x+) (=%d+) ?(%d*)$')
    if not id or seen[id] or #reserves > 1 then return nil end
    ids[i], fields[i], owners[i], seen[id] = id, id .. ':', owner, true
  end
  local states = call('HMGET', key_of('jobs'), unpack(fields))
  for i = 1, #ids do
    if states[i] ~= job_gets.first_state(job_gets.owner_of(owners[i])) then return nil end
  end
  return ids, fields
end

-- Reserve a message for each claim. Return the block's reply; `done` is the result of its first run.
local function take(done, claims)
  local base, wanted = queue.base, #claims
  local messages = call('RPOP', base, wanted)
  if queue.index then try('SREM', base .. ':ext:members', unpack(messages)) end
  queue.consumed = queue.consumed + wanted
  local bytes = commands.sum_of_bytes(messages)
  local answer = fast.reply(done, 'consumed', wanted, bytes, queue.length - wanted, queue.bound > 0)
  the_call.answered, the_call.work = the_call.answered + bytes, the_call.work + 4 * the_call.MESSAGE * wanted
  claims.ttr = 0
  local is_held, found = pcall(job_gets.hold, messages, NO_MARKS, claims)
  if not is_held then
    found = the_call.error_reply(found)
    block.begin_runs()
    records.note_popped(messages)
    recovery.undo()
  end
  answer[3] = found
  return answer
end

-- Return the words of a run that deletes jobs, and the claims of the only run after it: a pop, or a reserve for connections
-- and without an end. Return nil for any other block.
local function read_runs()
  local arguments, first = the_call.arguments, block.first
  local finished = arguments[first] == 'delete_job' and tonumber(arguments[first + 1])
  local at = finished and first + 2 + finished
  if not finished or finished > fast.GET_MESSAGES or at > block.last then return nil end
  local verb, options = block.read_name(arguments[at])
  local wanted = tonumber(arguments[at + 1])
  if at + 1 + wanted ~= block.last or options.otherwise
    or not (verb == 'pop' and queue.word == 'kept' or verb == 'reserve') then
    return nil
  end
  local claims = { unpack(arguments, at + 2, block.last) }
  for i = 1, verb == 'reserve' and wanted or 0 do
    if not string.find(claims[i], '^=%d+$') then return nil end
  end
  return { unpack(arguments, first + 2, at - 1) }, claims
end

-- Do the block if workers delete jobs and take the next messages. Return its reply, or nil.
function list_worker.do_block()
  if queue.word == 'limited' or block.how ~= '' then return nil end
  local words, claims = read_runs()
  if not words or queue.consumer ~= the_call.identity or not fast.may_take(#claims, #claims) then return nil end
  local noted = call('HMGET', key_of('settings'), 'id', 'ack_ttr', 'max_bytes')
  if not noted[1] or tonumber(noted[2] or 0) > 0 or noted[3] and noted[3] ~= '' then return nil end
  local ids, fields = still_held(words)
  if not ids then return nil end
  jobs.open()
  queue.jobs.last_id = tonumber(noted[1])
  call('ZREM', key_of('reserved'), unpack(ids))
  block.changed = true -- also if an error ends the block here
  local done, count = {}, #ids
  for i = 1, count do fields[count + i], done[i] = ids[i], 1 end
  call('HDEL', key_of('jobs'), unpack(fields))
  return take(done, claims)
end

return list_worker
