# Print the lines of jobs.txt, by Beaneater.

require 'beaneater'
require 'json'

def say(name, value)
  puts "#{name} #{JSON.generate(value)}"
end

# Return the reply for which the block raises an error.
def refusal
  yield
  ''
rescue Beaneater::UnexpectedResponse => e
  e.class.name[/(\w+)Error/, 1]
end

# Return the next job; nil after the timeout.
def reserve(beanstalk, timeout)
  beanstalk.tubes.reserve(timeout)
rescue Beaneater::TimedOutError
  nil
end

beanstalk = Beaneater.new("127.0.0.1:#{ARGV[0]}")
default = beanstalk.tubes['default']
say('put', [['c', 9], ['a', 1], ['d', 9], ['b', 4]].map { |body, pri| default.put(body, pri: pri)[:id].to_i })
jobs = Array.new(4) { reserve(beanstalk, 5) }
say('reserve', jobs.map { |job| [job.id.to_i, job.body] })
jobs.each(&:delete)
say('nothing', reserve(beanstalk, 0))
texts = ['', "\r\n", "delete 1\r\n", 'é', 'x' * 65_535]
texts.each { |text| default.put(text, pri: 0) }
jobs = Array.new(texts.size) { reserve(beanstalk, 5) }
say('messages', jobs.zip(texts).map { |job, text| job.body.b == text.b })
jobs.each(&:delete)
say('too-big', refusal { default.put('x' * 65_536, pri: 0) })

work = beanstalk.tubes['work']
beanstalk.tubes.watch!('work')
first, second = %w[one two].map { |body| work.put(body, pri: 5)[:id] }
job = reserve(beanstalk, 5)
job.touch
job.release(pri: 9)
say('release', [work.peek(:ready).body, beanstalk.jobs.find(first).stats.pri])
reserve(beanstalk, 5).bury(pri: 3)
say('bury', [work.peek(:buried).body, beanstalk.jobs.find(second).stats.state])
say('kick', [work.kick(10)[:id].to_i, work.kick(10)[:id].to_i, work.peek(:ready).body])
job = reserve(beanstalk, 5)
job.bury(pri: 3)
job.kick
job = reserve(beanstalk, 5)
job.release(pri: 0, delay: 100)
say('delay', [work.peek(:delayed).body, job.stats.delay])
say('counts', %w[reserves releases buries kicks timeouts].map { |name| job.stats[name] })
[first, second].each { |id| beanstalk.jobs.find(id).delete }
work.put('soon', pri: 0, delay: 1)
job = reserve(beanstalk, 10)
say('wait', job.body)
job.delete
say('unknown', refusal { beanstalk.connection.transmit('delete 123456789') })

other = beanstalk.tubes['other']
beanstalk.tubes.watch('other')
other.put('later', pri: 2000)
work.put('first', pri: 1)
say('watched', Array.new(2) { reserve(beanstalk, 5).body })
say('tubes', beanstalk.tubes.all.map(&:name).sort)
names = %w[name current_jobs_urgent current_jobs_reserved total_jobs]
say('stats-tube', names.map { |name| work.stats[name] })
work.pause(1)
work.put('after the pause', pri: 1)
say('paused', reserve(beanstalk, 0))
say('resumed', reserve(beanstalk, 10).body)
say('stats', %w[current_jobs_reserved current_jobs_ready max_job_size].map { |name| beanstalk.stats[name] })
