-- The keys of a queue: those of the protocol (life.lua depends on their order), and those of pressure-server.

local keys = {
  of_protocol = {
    '', ':bound', ':producer', ':consumer', ':producer_free', ':consumer_free', ':not_full', ':closed',
    ':stats:produced_messages', ':stats:produced_bytes', ':stats:consumed_messages', ':stats:consumed_bytes',
  },
  of_extensions = {
    ':ext:members', ':ext:copies', ':ext:index', ':ext:settings', ':ext:producer_turn', ':ext:consumer_turn',
    ':ext:made', ':ext:marks', ':ext:waiting',
    ':ext:jobs', ':ext:due', ':ext:ready', ':ext:delayed', ':ext:reserved', ':ext:buried', ':ext:unadopted', ':ext:equal', ':ext:single', ':ext:blocks',
    ':ext:outcomes', ':ext:outcome_times', ':ext:groups', ':ext:offsets',
  },
}

-- Return the present queue's keys with these suffixes.
function keys.with(suffixes)
  local found = {}
  for i, suffix in ipairs(suffixes) do found[i] = queue.base .. suffix end
  return found
end

return keys
