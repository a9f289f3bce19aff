-- The verbs of runs: for each the module that does it, and its arguments.

local life = require 'core/life'
local info = require 'core/info'
local once = require 'core/once'
local get = require 'core/get'
local put = require 'core/put'
local move = require 'core/move'
local recovery = require 'core/recovery'
local groups = require 'kinds/groups'
local jobs = require 'kinds/jobs'
local job_verbs = require 'kinds/job_verbs'
local dead_letters = require 'kinds/dead_letters'
local doctor = require 'upkeep/doctor'

local verbs = {}

-- Each of these returns a run's arguments, of which there are `count` from `first` on.
local function numbers(first)
  return tonumber(the_call.arguments[first]), tonumber(the_call.arguments[first + 1])
end

local function words(first, count)
  return unpack(the_call.arguments, first, first + count - 1)
end

local function messages(first, count)
  return commands.slice(the_call.arguments, first, first + count - 1)
end

local function sizes_and_messages(first, count)
  return the_call.arguments[first], messages(first + 1, count - 1)
end

-- The module that does each verb, by default the queue's kind; `takes`, which returns its arguments; `optional` if it may
-- be called without a queue; `long` if its answers may be long; `has_options` if its first argument is the run's options;
-- `begin`, which is called before: any queue may have jobs, or get them.
local job_event = { job_verbs, takes = messages, optional = true, begin = jobs.open }
local job_question = { job_verbs, takes = messages, optional = true, long = true, begin = jobs.open }
local table_of_verbs = {
  put = { put, takes = sizes_and_messages, optional = true, has_options = true },
  get = { get, takes = numbers, optional = true, long = true, has_options = true },
  reserve = { get, takes = messages, optional = true, long = true, has_options = true },
  pop = { get, takes = messages, optional = true, long = true, has_options = true },
  peek = { get, takes = numbers, optional = true, long = true, has_options = true },
  move = { move, takes = words, optional = true, long = true, has_options = true },
  put_back = { recovery, takes = messages, optional = true },
  restore = { takes = messages }, remove = { takes = messages }, contains = { takes = messages },
  length = { takes = numbers }, version = { takes = numbers, optional = true },
  range = { takes = numbers, long = true }, scan = { takes = numbers, long = true },
  sample = { takes = numbers, long = true }, at = { takes = messages, long = true },
  from = { takes = numbers, long = true },
  remove_copies = { takes = words }, positions = { takes = words },
  redrive = { dead_letters, takes = words },
  trim = { life, takes = numbers }, purge = { life, takes = words },
  info = { info, takes = numbers }, exists = { info, takes = numbers, optional = true },
  outcome = { once, takes = messages }, group = { groups, takes = words },
  create = { life, takes = words, optional = true }, alter = { life, takes = words },
  close = { life, takes = numbers }, delete = { life, takes = numbers, optional = true },
  finish_delete = { life, takes = numbers, optional = true },
  clean = { life, takes = numbers, optional = true }, turn = { life, takes = numbers, optional = true },
  delete_job = job_event, give_up = job_event, release = job_event, touch = job_event, bury = job_event,
  kick_job = job_event, job_info = job_event, reserve_job = job_question, peek_job = job_question,
  pending = { job_verbs, takes = messages, begin = jobs.open },
  reserved = { job_verbs, takes = messages, begin = jobs.open },
  claim = { job_verbs, takes = messages, long = true, begin = jobs.open },
  kick = { job_verbs, takes = messages, begin = jobs.open }, pause = { job_verbs, takes = messages, begin = jobs.open },
  examine = { doctor, takes = numbers, optional = true }, repair = { doctor, takes = words, optional = true },
}

function verbs.is_long(verb) return table_of_verbs[verb].long end

-- Do a run. Return what its verb returns.
function verbs.execute(verb, options, first, count)
  local about = table_of_verbs[verb]
  if not queue.bound and not about.optional then return { err = 'NOQUEUE' } end
  if about.begin then about.begin() end
  local operation = (about[1] or queue.kind)[verb]
  if about.has_options then return operation(options, about.takes(first, count)) end
  return operation(about.takes(first, count))
end

return verbs
