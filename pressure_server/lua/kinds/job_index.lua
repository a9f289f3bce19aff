-- Indexes of jobs: find jobs by a text. `equal` finds the queued jobs with a message. `single` finds the jobs that a
-- new one must not equal, by message or by the key that was put with them: docs/internals/jobs.md#keys.
--
-- Touches  :ext:equal, :ext:single  members: the length of a text as a byte, the text, and the id of a job; or 'h', the
--                                   hash of a long text, and the id
--          :ext:settings            'indexed_equal', 'indexed_single': the cursor up to which older jobs are in the
--                                   index, or 'all'

local job_index = {}

-- Return the hash of a text. A call needs a message's hash several times, and to hash 32 MiB takes 30 ms.
function job_index.hash_of(text)
  if the_call.hashed ~= text then the_call.hashed, the_call.hash = text, redis.sha1hex(text) end
  return the_call.hash
end

-- Return the prefix of a text's members. It has the text's length, so that no other text's members begin with it.
local function prefix_of(text)
  return #text <= 40 and string.char(#text) .. text or 'h' .. job_index.hash_of(text)
end

-- Enter the job with this id and this text into an index, 'equal' or 'single'; or remove it.
function job_index.note(name, text, id, is_in)
  if is_in then
    call('ZADD', queue.key_of(name), 0, prefix_of(text) .. id)
  else
    call('ZREM', queue.key_of(name), prefix_of(text) .. id)
  end
end

-- Return the ids of at most `most` jobs with this text, in the order of the puts; or the latest first.
function job_index.ids_of(name, text, most, is_reversed)
  local prefix = prefix_of(text)
  local first, last, found = '[' .. prefix, '[' .. prefix .. 'g', nil -- ids are hexadecimal
  if is_reversed then
    found = call('ZREVRANGEBYLEX', queue.key_of(name), last, first, 'LIMIT', 0, most)
  else
    found = call('ZRANGEBYLEX', queue.key_of(name), first, last, 'LIMIT', 0, most)
  end
  for i, member in ipairs(found) do found[i] = string.sub(member, #prefix + 1) end
  return found
end

return job_index
