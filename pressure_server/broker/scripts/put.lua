-- Put, for many commands at once: plain (repeats are kept) and unique (what is queued already is not put).
--
-- Takes    sizes      how many messages each command brought, 'n n n'; '' when each brought one
--          messages   of all commands, in order
-- Returns  an error for all of them, or a value a command: see `put` and `add`; -1 is "full".
--          A command is accepted whole or not at all. After it, how many commands are left undone.
-- Touches  the list, :producer, :not_full, :stats:produced_*, the mirror.

local FULL = -1

local function make_put()
  local operations = {}

  -- How many messages may be put now. A native consumer that has taken a message from a full queue pushes
  -- the :not_full token a moment later; until it has, the queue counts as full.
  local function room()
    if queue.bound == 0 then
      return math.huge
    end
    if call('EXISTS', base .. ':not_full', base .. ':consumer_free') == 0 then
      return 0
    end
    return math.max(0, queue.bound - queue.length)
  end

  local function push(messages)
    if #messages > 0 then
      queue.length = queue.length + #messages
      call_with_all('LPUSH', base, messages)
      count_as('produced', #messages, sum_of_bytes(messages))
    end
    settle_not_full()
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

  -- Returns the length before, when all are accepted; else the length after each command.
  function operations.put(sizes_text, messages)
    local before, space = queue.length, room()
    act_as('producer')
    local accepted, lengths = messages, nil
    if #messages > space then
      accepted, lengths = {}, {}
      local at = 1
      for i, size in ipairs(sizes_of(sizes_text, messages)) do
        if size <= space then
          for j = at, at + size - 1 do accepted[#accepted + 1] = messages[j] end
          space = space - size
          lengths[i] = before + #accepted
        else
          lengths[i] = FULL
        end
        at = at + size
      end
    end
    push(accepted)
    if mirror then
      mirror.remember(accepted)
      mirror.extend(SLICE)
    end
    return lengths or before, 0
  end

  -- Returns how many of each command's messages were new. The second value is how
  -- many commands are left for another call, because looking their messages up would take too long.
  function operations.add(sizes_text, messages)
    act_as('producer')
    need_mirror()
    local found, decided = mirror.queued(messages)
    local sizes = sizes_of(sizes_text, messages)
    local space, accepted, counts, chosen = room(), {}, {}, {}
    local at = 1
    for i, size in ipairs(sizes) do
      local last = at + size - 1
      if last > decided then
        if i == 1 then
          -- Even one command is too much: mirror in larger steps until it no longer is.
          if mirror.stale() then mirror.start_over() end
          mirror.extend(20 * SLICE)
        end
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
    if #accepted > 0 then
      mirror.add(accepted)
    end
    push(accepted)
    return counts, #sizes - #counts
  end

  return operations
end
