-- Taking: what a run notes of the messages that it takes, for all kinds of queues.

local records = require 'core/records'
local marks = require 'kinds/marks'

local taking = {
  -- The limits of one call: a reply is in memory three times on its way to the client.
  BYTES = 1048576,
  MESSAGES = 1000,
  -- Jobs taken between two looks at the limits.
  JOBS = 64,
  -- Expired messages dropped in one call: each takes some 12 microseconds.
  EXPIRED = 4000,
}

-- Return the messages that have not expired, their marks, and how many have expired. All have just left the queue.
function taking.unexpired(self, messages, marks_of)
  local some, their_marks = {}, {}
  local noted = block.taken_marks[queue.base] or {}
  block.taken_marks[queue.base] = noted
  self.flags = self.flags or {}
  for i, message in ipairs(messages) do
    local mark = marks_of[i]
    if not marks.is_expired(mark) then
      if not self.claims then
        noted[#noted + 1], noted[#noted + 2] = records.key_of(message), mark or false
      end
      some[#some + 1], their_marks[#some + 1] = message, mark
      self.flags[#self.flags + 1] = mark and mark[1] or '0'
    end
  end
  return some, their_marks, #messages - #some
end

return taking
