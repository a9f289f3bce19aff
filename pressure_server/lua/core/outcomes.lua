-- Outcomes: puts with a transaction id are done once, however often they are sent. For some time, the queue keeps what
-- each has answered.
--
-- Touches  :ext:outcomes       a hash: transaction id -> 'kind value offset', as `text_of` in once.lua makes it
--          :ext:outcome_times  a sorted set: transaction id, with the time of its put
--          :ext:settings       'forgotten': the time of the last put that has been forgotten
--
-- Times are in milliseconds since 1970 by the backend's clock.

local outcomes = {}
-- Outcomes that one put may forget in addition to the number that it stores.
local FORGOTTEN_AT_ONCE = 10

-- Return for each id the stored text of its outcome, or false.
function outcomes.of(ids)
  return commands.values_of('HMGET', queue.base .. ':ext:outcomes', ids)
end

-- Store outcomes: `texts` has the id and the text of each. Forget those that are older than `seconds`, and the oldest
-- above `most`.
function outcomes.note(texts, seconds, most)
  local key, times = queue.base .. ':ext:outcomes', queue.base .. ':ext:outcome_times'
  local places, now = {}, the_call.clock()
  for i = 1, #texts, 2 do places[i], places[i + 1] = now, texts[i] end
  commands.with_all('HSET', key, texts)
  commands.with_all('ZADD', times, places)
  local excess = call('ZCARD', times) - most
  local oldest, gone, last = call('ZRANGE', times, 0, FORGOTTEN_AT_ONCE + #texts / 2 - 1, 'WITHSCORES'), {}, nil
  for i = 1, #oldest, 2 do
    if #gone >= excess and tonumber(oldest[i + 1]) > the_call.clock() - 1000 * seconds then break end
    gone[#gone + 1], last = oldest[i], oldest[i + 1]
  end
  if last then
    commands.with_all('ZREM', times, gone)
    commands.with_all('HDEL', key, gone)
    call('HSET', queue.base .. ':ext:settings', 'forgotten', last)
  end
end

-- Takes    a transaction id
-- Returns  { 'done', the offset of the message, '' if the queue is no log }; { 'unknown' } if no put with this id has
--          been done; or { 'forgotten', for how many milliseconds back all outcomes are known }
function outcomes.outcome(words)
  local found = outcomes.of({ words[1] })[1]
  if found then
    return { 'done', string.match(found, '(%d*)$') }
  end
  local forgotten = call('HGET', queue.base .. ':ext:settings', 'forgotten')
  return forgotten and { 'forgotten', math.max(0, the_call.clock() - tonumber(forgotten)) } or { 'unknown' }
end

return outcomes
