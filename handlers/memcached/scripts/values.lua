-- Values: what memcached clients store by key on a listener with mode=kv. A value is a string: flags, cas
-- unique and data, separated by spaces. A value is dead if its unique is not above the counter's value at the
-- last flush. Clients do not see dead values; a sweep deletes them later.
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
if is_due then
  flushed = unique
end

-- A backend out of memory refuses a script whose first write needs memory: HSET does, HDEL does not.
local function flush_now()
  call('HDEL', KEYS[1], 'flush_at')
  call('HSET', KEYS[1], 'flushed', format('%.0f', unique))
end

local function note_flush()
  if is_due then
    flush_now()
  end
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

local function expire(key, expiry)
  if expiry == '0' then
    call('PERSIST', key)
  elseif sub(expiry, 1, 1) == '+' then
    call('PEXPIRE', key, sub(expiry, 2) .. '000')
  else
    call('PEXPIREAT', key, expiry .. '000')
  end
end

local function stored(flags, data)
  note_flush()
  return flags .. ' ' .. format('%.0f', call('HINCRBY', KEYS[1], 'cas', 1)) .. ' ' .. data
end

local function store(key, flags, data, expiry)
  call('SET', key, stored(flags, data))
  if expiry ~= '0' then
    expire(key, expiry)
  end
  return 'STORED'
end

local function change(key, flags, data)
  call('SET', key, stored(flags, data), 'KEEPTTL')
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

local function sum(one, other)
  local high, low = halves(one)
  local more_high, more_low = halves(other)
  high, low = high + more_high, low + more_low
  if low >= TEN_DIGITS then
    high, low = high + 1, low - TEN_DIGITS
  end
  if high > MAX_HIGH or (high == MAX_HIGH and low > MAX_LOW) then
    high, low = high - MAX_HIGH, low - MAX_LOW - 1
    if low < 0 then
      high, low = high - 1, low + TEN_DIGITS
    end
  end
  return joined(high, low)
end

local function difference(one, other)
  local high, low = halves(one)
  local less_high, less_low = halves(other)
  high, low = high - less_high, low - less_low
  if low < 0 then
    high, low = high - 1, low + TEN_DIGITS
  end
  return high < 0 and '0' or joined(high, low)
end

-- Read a number as memcached does, with C's strtoull: it ends at white space, a zero byte or the end of the
-- value.
local function number_in(data)
  local sign, digits, behind = match(data, '^%s*([+-]?)0*(%d*)(.?)')
  if digits == '' and match(data, '^%s*[+-]?0') then
    digits = '0'
  end
  if digits == '' or (behind ~= '' and not match(behind, '[%s%z]')) or (sign == '-' and digits ~= '0') then
    return nil
  end
  return (#digits < MAX_DIGITS or (#digits == MAX_DIGITS and digits <= MAX_VALUE)) and digits or nil
end

local function count(by, compute)
  local kept = living(KEYS[2])
  if not kept then
    return 'NOT_FOUND'
  end
  local flags, _, data = parts(kept)
  local number = number_in(data)
  if not number then
    return 'CLIENT_ERROR cannot increment or decrement non-numeric value'
  end
  number = compute(number, by)
  -- Pad with spaces to the old length: as with memcached, a value never becomes shorter.
  change(KEYS[2], flags, number .. rep(' ', #data - #number))
  return number
end

local function extend(most, compute)
  local kept = living(KEYS[2])
  if not kept then
    return 'NOT_STORED'
  end
  local flags, _, data = parts(kept)
  data = compute(data)
  if #data > tonumber(most) then
    return 'SERVER_ERROR object too large for cache'
  end
  change(KEYS[2], flags, data)
  return 'STORED'
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
      if expiry ~= '' then
        expire(KEYS[i], expiry)
      end
      size = size + #kept
      if size >= tonumber(most) then
        break
      end
    end
  end
  return found
end

-- Take     flags, an expiry and the data; cas also a unique
-- Return   a line
function functions.set(flags, expiry, data)
  return store(KEYS[2], flags, data, expiry)
end

function functions.add(flags, expiry, data)
  return living(KEYS[2]) and 'NOT_STORED' or store(KEYS[2], flags, data, expiry)
end

function functions.replace(flags, expiry, data)
  return living(KEYS[2]) and store(KEYS[2], flags, data, expiry) or 'NOT_STORED'
end

function functions.cas(flags, expiry, data, wanted)
  local kept = living(KEYS[2])
  if not kept then
    return 'NOT_FOUND'
  end
  local _, own = parts(kept)
  return own == wanted and store(KEYS[2], flags, data, expiry) or 'EXISTS'
end

-- Take     the data to add, and the largest size allowed for the result, in bytes
-- Return   a line
function functions.append(more, most)
  return extend(most, function(data) return data .. more end)
end

function functions.prepend(more, most)
  return extend(most, function(data) return more .. data end)
end

-- Take     a number of up to 64 bits
-- Return   a line
function functions.incr(by)
  return count(by, sum)
end

function functions.decr(by)
  return count(by, difference)
end

-- Takes    an expiry
-- Returns  a line
function functions.touch(expiry)
  if not living(KEYS[2]) then
    return 'NOT_FOUND'
  end
  expire(KEYS[2], expiry)
  return 'TOUCHED'
end

-- Returns  a line
function functions.delete()
  local lives = living(KEYS[2])
  call('UNLINK', KEYS[2])
  return lives and 'DELETED' or 'NOT_FOUND'
end

-- Takes    an expiry: values stored until that time will be dead; 0 is now
function functions.flush(expiry)
  note_flush()
  local at = tonumber(expiry) * 1000
  if sub(expiry, 1, 1) == '+' then
    at = now() + at
  end
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
