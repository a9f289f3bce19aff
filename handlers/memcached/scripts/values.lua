-- Values: what memcached clients store by key on a listener with mode=kv. A value is a string: flags, cas unique and
-- data, separated by spaces. The flags are the client's 32 bits and two marks of meta commands: SENT, a client has been
-- told to compute the value anew, and STALE, it should be. A value is dead if its unique is not above the counter's
-- value at the last flush. Clients do not see dead values; a sweep deletes them later.
--
-- Takes    KEYS[1]   the state, a hash: `cas`, the last unique; `flushed`, the value of `cas` at the last
--                    flush; `flush_at`, the time of a scheduled flush, in milliseconds since 1970; `swept`,
--                    the `flushed` up to which dead values have been deleted
--          KEYS[2…]  the values
--          ARGV[1]   the name of a function at the end of this file; its arguments follow. An expiry is 0 for
--                    never, '+seconds' from now on, or seconds since 1970
-- Touches  only these keys
-- Returns  the function's result; a "line" is memcached's reply without its line end

local call, match, sub, format, rep = redis.call, string.match, string.sub, string.format, string.rep

local state = call('HMGET', KEYS[1], 'cas', 'flushed', 'flush_at', 'swept')
local unique, flushed, flush_at = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)

-- Return the time in milliseconds since 1970, the same throughout a call.
local time
local function now()
  if not time then
    local told = call('TIME')
    time = told[1] * 1000 + math.floor(told[2] / 1000)
  end
  return time
end

-- A flush that is due only changes `flushed` here; the next function that stores something writes it down.
local is_due = flush_at > 0 and flush_at <= now()
if is_due then flushed = unique end

-- A backend out of memory refuses a script whose first write needs memory: HSET does, HDEL does not.
local function flush_now()
  call('HDEL', KEYS[1], 'flush_at')
  call('HSET', KEYS[1], 'flushed', format('%.0f', unique))
end

local function note_flush()
  if is_due then flush_now() end
end

local function is_dead(kept)
  return tonumber(match(kept, '^%d+ (%d+) ')) <= flushed
end

local function living(key)
  local kept = call('GET', key)
  return kept and not is_dead(kept) and kept
end

local function parts(kept)
  local flags, own, start = match(kept, '^(%d+) (%d+) ()')
  return flags, own, sub(kept, start)
end

local SENT, STALE = 2 ^ 32, 2 ^ 33

local function marks_of(flags)
  local number = tonumber(flags)
  return number % STALE >= SENT, number >= STALE
end

local function marked(flags, is_sent, is_stale)
  return format('%.0f', tonumber(flags) % SENT + (is_sent and SENT or 0) + (is_stale and STALE or 0))
end

local function expire(key, expiry)
  if expiry == '0' then
    call('PERSIST', key)
  elseif sub(expiry, 1, 1) == '+' then
    call('PEXPIRE', key, sub(expiry, 2) .. '000')
  else
    call('PEXPIREAT', key, expiry .. '000')
  end
end

-- Return the whole seconds until a value expires, rounded up, or -1.
local function seconds_left(key)
  local left = call('PTTL', key)
  return left == -1 and -1 or math.max(0, math.ceil(left / 1000))
end

-- Return whether a value expires before this expiry.
local function expires_before(key, expiry)
  local left = seconds_left(key)
  local from = sub(expiry, 1, 1) == '+' and 0 or math.floor(now() / 1000)
  return left >= 0 and from + left < tonumber(expiry)
end

-- Write a value, and return its new cas unique. It has SET's options.
local function write(key, flags, data, ...)
  note_flush()
  local own = format('%.0f', call('HINCRBY', KEYS[1], 'cas', 1))
  call('SET', key, flags .. ' ' .. own .. ' ' .. data, ...)
  return own
end

local function store(key, flags, data, expiry)
  local own = write(key, flags, data)
  if expiry ~= '0' then expire(key, expiry) end
  return own
end

-- Lua cannot hold numbers of 64 bits exactly, so each is split into two of ten digits.
local MAX_DIGITS, MAX_VALUE, TEN_DIGITS = 20, '18446744073709551615', 1e10
local MAX_HIGH, MAX_LOW = 1844674407, 3709551615

local function halves(digits)
  digits = rep('0', MAX_DIGITS - #digits) .. digits
  return tonumber(sub(digits, 1, 10)), tonumber(sub(digits, 11))
end

local function joined(high, low)
  return high > 0 and format('%.0f%010.0f', high, low) or format('%.0f', low)
end

-- Return the halves of a number plus another, which is multiplied by 1 or -1. The high half may be negative.
local function added(one, other, sign)
  local high, low = halves(one)
  local other_high, other_low = halves(other)
  low = low + sign * other_low
  local carry = math.floor(low / TEN_DIGITS)
  return high + sign * other_high + carry, low - carry * TEN_DIGITS
end

local function sum(one, other)
  local high, low = added(one, other, 1)
  if high > MAX_HIGH or (high == MAX_HIGH and low > MAX_LOW) then
    high, low = high - MAX_HIGH, low - MAX_LOW - 1
    if low < 0 then high, low = high - 1, low + TEN_DIGITS end
  end
  return joined(high, low)
end

local function difference(one, other)
  local high, low = added(one, other, -1)
  return high < 0 and '0' or joined(high, low)
end

-- Read a number as memcached does, with C's strtoull: it ends at white space, a zero byte or the end of the value.
local function number_in(data)
  local sign, digits, behind = match(data, '^%s*([+-]?)0*(%d*)(.?)')
  if digits == '' and match(data, '^%s*[+-]?0') then digits = '0' end
  if digits == '' or (behind ~= '' and not match(behind, '[%s%z]')) or (sign == '-' and digits ~= '0') then
    return nil
  end
  return (#digits < MAX_DIGITS or (#digits == MAX_DIGITS and digits <= MAX_VALUE)) and digits or nil
end

local functions = {}

-- Takes    the number of bytes after which no further value is read; an expiry for the values read, or ''
-- Returns  the stored value, or false, for the first keys (at least one)
function functions.get(most, expiry)
  local found, size = {}, 0
  for i = 2, #KEYS do
    local kept = living(KEYS[i])
    found[i - 1] = kept
    if kept then
      if expiry ~= '' then expire(KEYS[i], expiry) end
      size = size + #kept
      if size >= tonumber(most) then break end
    end
  end
  return found
end

-- Takes    whether a missing value is created: '1' or ''; whether the data is asked for; then flags of mg and
--          their tokens, in order: N, R and T with an expiry, and t
-- Returns  nothing, or: flags, cas unique and size of the value; the seconds until it expires, or -1; the
--          marks W, X and Z, as memcached writes them; the data
function functions.mg(creates, asks, ...)
  local key, asked = KEYS[2], { ... }
  local kept, wins = living(key), false
  local is_new = not kept and creates ~= ''
  if is_new then
    kept = marked('0', true, false) .. ' ' .. write(key, marked('0', true, false), '') .. ' '
  elseif not kept then
    return {}
  end
  local flags, own, data = parts(kept)
  local is_sent, is_stale = marks_of(flags)
  local left = -1
  for i = 1, #asked, 2 do
    local flag, token = asked[i], asked[i + 1]
    if flag == 'R' then
      wins = wins or (not is_sent and expires_before(key, token))
    elseif flag == 't' then
      left = seconds_left(key)
    elseif flag == 'T' or is_new then
      expire(key, token)
    end
  end
  local marks = ''
  if not is_new then
    marks = (is_sent and 'Z' or '') .. (is_stale and 'X' or '')
    wins = wins or (is_stale and not is_sent)
    if wins then
      note_flush()
      -- With XX: a token may have made it expire.
      call('SET', key, marked(flags, true, is_stale) .. ' ' .. own .. ' ' .. data, 'KEEPTTL', 'XX')
    end
  end
  if is_new or wins then marks = marks .. 'W' end
  return { marked(flags), own, #data, left, marks, asks ~= '' and data or '' }
end

-- Takes    a mode of ms; flags, an expiry and the data; the largest size that a change may result in, in bytes;
--          the cas unique that the value must have, or ''; '1' if it may also be lower: the value is then stale
-- Returns  a line, and the cas unique of the value that has been stored
function functions.store(mode, flags, expiry, data, most, wanted, may_be_lower)
  local key, extends = KEYS[2], mode == 'A' or mode == 'P'
  if mode == 'S' and wanted == '' then return { 'STORED', store(key, flags, data, expiry) } end
  local kept = living(key)
  if not kept and mode ~= 'E' and wanted ~= '' and not extends then return { 'NOT_FOUND', '0' } end
  if (mode == 'E') == (kept and true or false) then return { 'NOT_STORED', '0' } end
  if mode == 'E' then return { 'STORED', store(key, flags, data, expiry) } end
  local own_flags, own, own_data = parts(kept)
  if wanted ~= '' and wanted ~= own and not (extends and wanted == '0') then
    if extends or may_be_lower == '' or wanted == '0' or tonumber(wanted) > tonumber(own) then
      return { 'EXISTS', '0' }
    end
    return { 'STORED', write(key, marked(flags, marks_of(own_flags), true), data, 'KEEPTTL') }
  elseif not extends then
    return { 'STORED', store(key, flags, data, expiry) }
  end
  data = mode == 'A' and own_data .. data or data .. own_data
  if #data > tonumber(most) then return { 'SERVER_ERROR object too large for cache', '0' } end
  return { 'STORED', write(key, marked(own_flags), data, 'KEEPTTL') }
end

-- Takes    a mode of ma: + or -; a number of up to 64 bits; the number that a missing value begins with, and
--          its expiry, or ''; an expiry for the value, or ''; the cas unique that it must have, or ''
-- Returns  a line, which may be the new number; its cas unique, and the seconds until it expires, or -1
function functions.count(mode, by, initial, first_expiry, expiry, wanted)
  local key = KEYS[2]
  local kept, number, own = living(key), initial
  if kept then
    local flags, old, data = parts(kept)
    if wanted ~= '' and wanted ~= '0' and wanted ~= old and data ~= '' then return { 'EXISTS' } end
    number = number_in(data)
    if not number then return { 'CLIENT_ERROR cannot increment or decrement non-numeric value' } end
    number = mode == '+' and sum(number, by) or mode == '-' and difference(number, by)
    -- Pad with spaces to the old length: as with memcached, a value never becomes shorter.
    own = write(key, flags, number .. rep(' ', #data - #number), 'KEEPTTL')
  elseif first_expiry == '' then
    return { 'NOT_FOUND' }
  else
    own = store(key, '0', initial, first_expiry)
  end
  if expiry ~= '' then expire(key, expiry) end
  return { number, own, seconds_left(key) }
end

-- Takes an expiry, and returns a line.
function functions.touch(expiry)
  if not living(KEYS[2]) then return 'NOT_FOUND' end
  expire(KEYS[2], expiry)
  return 'TOUCHED'
end

-- Takes    the cas unique that the value must have, or ''; whether it only becomes stale, '1' or ''; an expiry
--          for the stale value, or ''
-- Returns  a line
function functions.delete(wanted, stales, expiry)
  local key = KEYS[2]
  local kept = living(key)
  if not kept then
    call('UNLINK', key)
    return 'NOT_FOUND'
  elseif wanted ~= '' and match(kept, '^%d+ (%d+) ') ~= wanted then
    return 'EXISTS'
  elseif stales == '' then
    call('UNLINK', key)
    return 'DELETED'
  end
  local flags, _, data = parts(kept)
  write(key, marked(flags, false, true), data, 'KEEPTTL')
  if expiry ~= '' then expire(key, expiry) end
  return 'DELETED'
end

-- Takes    an expiry: values stored until that time will be dead; 0 is now
function functions.flush(expiry)
  note_flush()
  local at = tonumber(expiry) * 1000
  if sub(expiry, 1, 1) == '+' then at = now() + at end
  if at > now() then
    call('HDEL', KEYS[1], 'flush_at')
    call('HSET', KEYS[1], 'flush_at', format('%.0f', at))
  else
    flush_now()
  end
end

-- Returns  `flushed`; `swept`; and the milliseconds until the next flush, or -1
function functions.look()
  local pending = flush_at > 0 and not is_due
  return { flushed, tonumber(state[4] or 0), pending and flush_at - now() or -1 }
end

-- Delete those of the values that are dead. Keys that hold something else are left alone.
function functions.sweep()
  note_flush()
  for i = 2, #KEYS do
    -- Flags and unique fit in this range.
    local beginning = redis.pcall('GETRANGE', KEYS[i], 0, 40)
    if type(beginning) == 'string' and match(beginning, '^%d+ %d+ ') and is_dead(beginning) then
      call('UNLINK', KEYS[i])
    end
  end
end

-- Takes    the `flushed` up to which all dead values have been deleted
function functions.swept(up_to)
  call('HDEL', KEYS[1], 'swept')
  call('HSET', KEYS[1], 'swept', up_to)
end

return functions[ARGV[1]](unpack(ARGV, 2))
