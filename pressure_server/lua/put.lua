-- Put, for many commands at once.
--
-- Takes    sizes      the number of messages of each command, 'n n n'; '' if each has one
--          messages   the messages of all commands, in order
-- Returns  an error for all commands, or their values (see `put` and `add`); how many commands are left for
--          another call; and if commands wait for room, the function to call when there may be more
--
-- Options:
--   existing  do not create the queue
--   unique    put only messages that are not queued
--   flags     each message follows its marks (marks.lua); each command has one message and does not wait
--   job       each message follows 'priority delay ttr flags expires ' (jobs.lua); the values are ids of jobs,
--             with `unique` also of those that were there already
--   by        each job follows 'n ' and a key of n bytes, which makes it unique in a queue of unique jobs
--   wait      wait for room, whatever the queue's overflow is
--   now       never wait for room
--   overfill  put even if there is no room
--   overwrite  make room: drop the oldest messages. Without `unique`, the values are how many each command drops
--   offset    the values are the offsets of each command's first message; only for logs
--   once      the first message is 'seconds most id': a transaction id, and for how long and for how many puts the
--             outcome is kept at least (outcomes.lua). There is one command. It is done whole or not at all, and
--             once: with an id that is known its value is what it was
--
-- If there is no room, the queue's overflow applies unless an option overrides it:
--   error    a command is accepted whole or not at all; the value of a refused command is -1
--   block    messages are accepted one by one. If not all fit, the value is { 'part', done, new, values }:
--            the values of the finished commands; and for the next command, how many of its messages are done
--            and how many of these were new
--   overwrite  all messages are accepted, and the oldest dropped
--
-- Touches  the list, :producer, :not_full, :stats:produced_*, the mirror.

local FULL = -1
-- Messages above the bound that a put drops besides as many as it puts: there are some if the bound was lowered.
local DROPPED_AT_ONCE = 1000

-- Return why nothing can be put, or nil; create the queue if that is allowed. A native producer that holds
-- the role is not reported here, because a full queue takes precedence. CREATING: a native client that
-- creates the queue pushes :not_full last, and no client has acted in it yet. Puts of jobs need no role.
local function put_refusal(options)
  if not queue.bound then
    if ARGV[HEADER_BOUND] == '' or options.existing then
      return { err = 'NOQUEUE' }
    end
    local made = life.create(ARGV[HEADER_BOUND], default_overflow, true)
    if made ~= 1 then
      return made
    end
  end
  if call('EXISTS', base .. ':closed') == 1 then
    return { err = 'CLOSED' }
  elseif not queue.producer and not queue.consumer and not queue.kind
    and call('EXISTS', base .. ':not_full') == 0 then
    return { err = 'CREATING' }
  end
end

local function make_put(options)
  local operations = {}

  -- State of the run:
  local marks, noted -- the marks of each message, if they have any; and the marks stored with the queue
  local overwrites -- whether the oldest messages are to be dropped

  -- Return how many messages may be put now, if `wanted` are to be. A queue counts as full until a native
  -- consumer that has taken a message from a full queue has pushed the :not_full token.
  local function room(wanted)
    overwrites = false
    if options.overfill or not may_be_full() then
      return math.huge
    end
    local space = 0
    if call('EXISTS', base .. ':not_full', base .. ':consumer_free') > 0 then
      if queue.kind == 'jobs' then
        if is_full() then job_puts().drop_expired() end
      elseif queue.length >= queue.bound then
        gets.drop_expired(noted)
      end
      space = queue.bound == 0 and math.huge or math.max(0, queue.bound - queue.length)
      if is_heavy() then space = 0 end
    end
    overwrites = wanted > space and (options.overwrite or not options.wait and overflow() == 'overwrite')
    return overwrites and math.huge or space
  end

  -- Drop the oldest messages, if what has been put exceeds the bound, and may.
  local function drop_excess(accepted)
    local function drop(count)
      call('HINCRBY', base .. ':ext:settings', 'dropped', count)
      if queue.kind == 'jobs' then job_puts().drop(count) else gets.drop_oldest(count, noted) end
    end
    if overwrites and queue.bound > 0 and queue.length > queue.bound then
      drop(math.min(queue.length - queue.bound, #accepted + DROPPED_AT_ONCE))
    end
    while overwrites and (queue.kind == 'jobs' and queue.jobs.ready or queue.length) > 1 and is_heavy() do drop(1) end
  end

  local function may_wait()
    return patient and not (options.now or options.flags) and (options.wait or overflow() == 'block')
  end

  -- Return whether messages are put one by one as there is room.
  local function waits_for_room()
    return not options.once and may_wait()
  end

  -- Split what was put with the option `by` into jobs and their keys.
  local function split_keys(keyed)
    local some, keys = {}, {}
    for i, one in ipairs(keyed) do
      local size, first = string.match(one, '^(%d+) ()')
      keys[i], some[i] = string.sub(one, first, first + size - 1), string.sub(one, first + size)
    end
    return some, keys
  end

  -- Store the marks of messages that are about to be put. A native consumer counts a message after it has
  -- taken it; the number of produced messages shows whether one is not counted yet.
  local function note_marks(messages, marks_of)
    if marks then
      local last = queue.consumed + queue.length
      if call('EXISTS', base .. ':consumer_free') == 0 then
        local produced = try('GET', base .. ':stats:produced_messages')
        produced = (tonumber(type(produced) == 'string' and produced or 0) or 0) + #messages
        last = produced == last + 1 and last + 1 or last
      end
      noted.note(messages, marks_of, last - #messages)
    end
  end

  -- Put messages; return their ids if they are jobs.
  local function push(messages, marks_of)
    local ids, keys
    if #messages > 0 and queue.kind == 'jobs' then
      if options.by then messages, keys = split_keys(messages) end
      if not options.job then messages = job_puts().as_jobs(messages, marks_of or {}) end
      ids = job_puts().put(messages, keys, options.unique)
    elseif #messages > 0 then
      queue.length = queue.length + #messages
      note_marks(messages, marks_of) -- first: once a message is queued, nothing may refuse its put
      call_with_all('LPUSH', base, messages)
      queue.has_new = queue.groups
      count_as('produced', #messages, sum_of_bytes(messages))
    end
    settle_not_full()
    return ids
  end

  local function sizes_of(text, messages)
    local sizes = {}
    if text == '' then
      for i = 1, #messages do sizes[i] = 1 end
    else
      for size in string.gmatch(text, '%d+') do sizes[#sizes + 1] = tonumber(size) end
    end
    return sizes
  end

  local put, add
  local index -- tells what is queued: the mirror, or the index of jobs

  -- Return what is left after `done` messages: the value { 'part', … }, and the function that continues.
  -- is_new has 1 or 0 for each message done. `before` is the queue's length, if the commands' values are
  -- lengths.
  local function part(sizes, messages, done, is_new, before)
    local values, at, new = {}, 0, 0
    for i = 1, #sizes do
      if at + sizes[i] > done then break end
      new = 0
      for j = at + 1, at + sizes[i] do new = new + is_new[j] end
      at = at + sizes[i]
      values[i] = before and before + at or new
    end
    new = 0
    for j = at + 1, done do new = new + is_new[j] end
    local rest_sizes, rest = {}, {}
    for i = #values + 1, #sizes do rest_sizes[#rest_sizes + 1] = sizes[i] end
    rest_sizes[1] = rest_sizes[1] - (done - at)
    for j = done + 1, #messages do rest[#rest + 1] = messages[j] end
    return { 'part', done - at, new, values }, function()
      local refusal = not queue.bound and { err = 'NOQUEUE' } or put_refusal(options)
      if refusal then
        return refusal, 0
      end
      return (options.unique and not options.job and add or put)(table.concat(rest_sizes, ' '), rest)
    end
  end

  -- Accept the commands that fit, each whole.
  local function put_whole(sizes, messages, space)
    local accepted, lengths, at = {}, {}, 1
    for i, size in ipairs(sizes) do
      if size <= space then
        for j = at, at + size - 1 do accepted[#accepted + 1] = messages[j] end
        space = space - size
        lengths[i] = queue.length + #accepted
      else
        lengths[i] = FULL
      end
      at = at + size
    end
    return accepted, lengths
  end

  -- Return the result of a put with the ids of the jobs in place of lengths.
  local function with_ids(result, ids)
    if type(result) ~= 'table' then
      return ids
    end
    local values, at = result[1] == 'part' and result[4] or result, 0
    for i, value in ipairs(values) do
      if value ~= FULL then
        at = at + 1
        values[i] = ids[at]
      end
    end
    return result
  end

  -- Return the result of a put to a log with offsets in place of lengths; `offset` is that of the first message.
  local function with_offsets(result, sizes, offset)
    local values = type(result) == 'table' and (result[1] == 'part' and result[4] or result) or {}
    for i = 1, type(result) == 'table' and #values or #sizes do
      if values[i] ~= FULL then values[i], offset = offset, offset + sizes[i] end
    end
    return type(result) == 'table' and result or values
  end

  -- Return the value of each command in a queue that overwrites: how many messages it drops, if that was asked
  -- for, or the length after it. They have been done; `before` is the length before the first.
  local function values_of(sizes, before)
    local values, length = {}, before
    for i, size in ipairs(sizes) do
      local after = math.min(length + size, queue.length)
      values[i] = options.overwrite and length + size - after or after
      length = after
    end
    return values
  end

  -- Return the previous length if all messages are accepted; else the length after each command.
  function put(sizes_text, messages)
    local space = room(#messages) -- this may drop expired messages
    local before, offset = queue.length, queue.consumed + queue.length
    local refusal = queue.kind ~= 'jobs' and (in_use('producer') or overwrites and in_use('consumer'))
    if refusal then
      -- A native producer holds the role, possibly because it waits for room, too.
      if space > 0 then return refusal, 0 end
    elseif space > 0 and queue.kind ~= 'jobs' then
      act_as('producer')
    end
    local accepted, result, go_on = messages, before, nil
    if #messages > space then
      local sizes = sizes_of(sizes_text, messages)
      if waits_for_room() then
        accepted = {}
        local all_new = {}
        for i = 1, space do accepted[i], all_new[i] = messages[i], 1 end
        result, go_on = part(sizes, messages, space, all_new, before)
      else
        accepted, result = put_whole(sizes, messages, space)
      end
    end
    if queue.kind == 'jobs' then
      local ids = push(accepted, marks)
      if options.job then
        result = with_ids(result, ids or {})
      elseif queue.jobs.settings.unique and type(result) == 'number' then
        -- Equal messages were left out.
        result = {}
        for i in ipairs(sizes_of(sizes_text, messages)) do result[i] = queue.length end
      end
      drop_excess(accepted)
      if (overwrites or options.overwrite) and not options.job then
        result = values_of(sizes_of(sizes_text, messages), before)
      end
    elseif not refusal then
      push(accepted, marks)
      if mirror then
        if not pcall(mirror.remember, accepted) then mirror.start_over() end
        pcall(mirror.extend, SLICE)
      end
      pcall(drop_excess, accepted)
      if options.offset then
        result = with_offsets(result, sizes_of(sizes_text, messages), offset)
      elseif options.overwrite or overwrites then
        result = values_of(sizes_of(sizes_text, messages), before)
      end
    end
    return result, 0, go_on
  end

  -- Extend the mirror in larger steps: at present even one command is too much work for a call.
  local function hurry()
    if not mirror then return end
    act_as('producer') -- a mirror is extended only if a role's last holder is known
    if mirror.stale() then mirror.start_over() end
    mirror.extend(FAR * SLICE)
  end

  -- Accept one command after the other, each whole or not at all.
  local function add_whole(sizes, messages, space)
    local found, decided = index.queued(messages)
    local accepted, counts, chosen = {}, {}, {}
    local at = 1
    for i, size in ipairs(sizes) do
      local last = at + size - 1
      if last > decided then
        if i == 1 then hurry() end
        break
      end
      local count = 0
      for j = at, last do
        local message = messages[j]
        if found[j] ~= 1 and not chosen[message] then
          chosen[message] = i
          count = count + 1
        end
      end
      local accept = count <= space
      for j = at, last do
        if chosen[messages[j]] == i then
          if accept then accepted[#accepted + 1] = messages[j] end
          chosen[messages[j]] = accept or nil
        end
      end
      if accept then space = space - count end
      counts[i] = accept and count or FULL
      at = last + 1
    end
    return accepted, counts, #sizes - #counts
  end

  -- Accept one message after the other, up to the first that does not fit.
  local function add_in_order(sizes, messages, space)
    local accepted, chosen, is_new, done, undecided = {}, {}, {}, 0, false
    while done < #messages and not undecided do
      local ahead = { unpack(messages, done + 1, math.min(#messages, done + math.max(1, math.min(space, CHUNK)))) }
      local found, decided = index.queued(ahead)
      undecided = decided < #ahead
      local full = false
      for j = 1, decided do
        local is_queued = found[j] == 1 or chosen[ahead[j]]
        full = not is_queued and space == 0
        if full then break end
        if not is_queued then
          chosen[ahead[j]] = true
          accepted[#accepted + 1] = ahead[j]
          space = space - 1
        end
        done = done + 1
        is_new[done] = is_queued and 0 or 1
      end
      if full then break end
    end
    if undecided and done == 0 then hurry() end
    if done == #messages then
      local at, counts = 0, {}
      for i, size in ipairs(sizes) do
        counts[i] = 0
        for j = at + 1, at + size do counts[i] = counts[i] + is_new[j] end
        at = at + size
      end
      return accepted, counts, 0
    end
    local result, go_on = part(sizes, messages, done, is_new)
    if undecided then
      return accepted, result, #sizes - #result[4]
    end
    return accepted, result, 0, go_on
  end

  -- Return how many messages of each command were new.
  function add(sizes_text, messages)
    local space = room(#messages)
    local refusal = queue.kind ~= 'jobs' and (in_use('producer') or overwrites and in_use('consumer'))
    local sizes = sizes_of(sizes_text, messages)
    if refusal then
      if space > 0 then return refusal, 0 end
      -- As in `put`. Messages that are queued already wait as well: without the role there is no answer.
      if waits_for_room() then
        local result, go_on = part(sizes, messages, 0, {})
        return result, 0, go_on
      end
      return select(2, put_whole(sizes, messages, 0)), 0
    end
    if space > 0 and queue.kind ~= 'jobs' then
      act_as('producer')
    end
    index = need_mirror()
    if queue.kind == 'jobs' and queue.jobs.settings.unique then index = queue.jobs.index('single') end
    local in_order = #messages > space and waits_for_room()
    local accepted, result, left, go_on = (in_order and add_in_order or add_whole)(sizes, messages, space)
    if #accepted > 0 and mirror then
      mirror.add(accepted)
    end
    local marks_of = {}
    for i = marks and #messages or 0, 1, -1 do marks_of[messages[i]] = marks[i] end
    for i, message in ipairs(accepted) do marks_of[i] = marks_of[message] end
    push(accepted, marks_of)
    pcall(drop_excess, accepted)
    return result, left, go_on
  end

  local function unmark_all(marked)
    local messages = {}
    marks, noted = {}, queue.kind ~= 'jobs' and make_marks()
    for i, one in ipairs(marked) do messages[i], marks[i] = unmark(one) end
    return messages
  end

  local function put_any(sizes_text, messages)
    local refusal = put_refusal(options)
    if not refusal and queue.jobs and queue.jobs.source then
      refusal = { err = 'TYPE is that of a group: put into the log that it reads' }
    end
    if options.offset and not refusal and queue.kind ~= 'log' then
      refusal = { err = 'TYPE has no offsets: they need a queue of the type log' }
    end
    if not refusal and options.job and queue.kind ~= 'jobs' then
      refusal = job_puts().conversion_refusal() or options.by and { err = 'TYPE was not created with UNIQUE' }
      if not refusal and room(1) == 0 and not waits_for_room() then
        return select(2, put_whole(sizes_of(sizes_text, messages), messages, 0)), 0 -- nothing is changed
      end
      refusal = refusal or job_puts().convert()
    end
    if refusal then
      return refusal, 0
    elseif queue.kind == 'jobs' and queue.jobs.has_unadopted and patient then
      return {}, #sizes_of(sizes_text, messages) -- so that older messages get lower ids
    elseif options.by and not queue.jobs.settings.unique then
      return { err = 'TYPE was not created with UNIQUE' }, 0
    end
    local name = queue.jobs and (queue.jobs.settings.unique and 'single' or options.job and options.unique and 'equal')
    if name and queue.kind == 'jobs' and not queue.jobs.index(name).is_complete() then
      return {}, #sizes_of(sizes_text, messages)
    end
    return (options.unique and not options.job and add or put)(sizes_text, options.flags and unmark_all(messages) or messages)
  end

  -- What kind of value a put has: the same id must not be used for another.
  local kind_of_value = (options.job and 'job' or options.offset and 'offset' or options.unique and 'count' or 'length')

  -- Put the messages of one command with a transaction id; see the option `once`.
  local put_once

  function put_once(words)
    local seconds, most, id = string.match(words[1], '^(%d+) (%d+) (.*)$')
    local noted = queue.bound and make_outcomes().of(id)
    if noted then
      local kind, value = string.match(noted, '^(%l+) (%x+) ')
      if kind ~= kind_of_value then
        return { err = 'TXN was used for another kind of put' }, 0
      end
      return { kind == 'job' and value or tonumber(value) }, 0
    end
    local messages = {}
    for i = 2, #words do messages[i - 1] = words[i] end
    local result, left = put_any(tostring(#messages), messages)
    if type(result) == 'table' and result.err or left > 0 then
      return result, left
    end
    local value = type(result) == 'number' and result + #messages or result[1]
    if value == FULL then
      if not may_wait() or queue.bound > 0 and #messages > queue.bound then
        return { FULL }, 0
      end
      return { 'part', 0, 0, {} }, 0, function()
        if not queue.bound then
          return { err = 'NOQUEUE' }, 0
        end
        return put_once(words)
      end
    end
    local new = options.unique and not options.job and value or #messages
    local text = type(value) == 'number' and string.format('%.0f', value) or value
    local offset = queue.kind == 'log' and new > 0 and string.format('%.0f', queue.consumed + queue.length - new) or ''
    make_outcomes().note(id, string.format('%s %s %s', kind_of_value, text, offset), tonumber(seconds), tonumber(most))
    return { value }, 0
  end

  function operations.put(sizes_text, messages)
    marks, noted, overwrites, index = nil, nil, nil, nil
    if options.once then
      return put_once(messages)
    end
    return put_any(sizes_text, messages)
  end

  return operations
end
