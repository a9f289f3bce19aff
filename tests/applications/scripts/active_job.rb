# Enqueues and works jobs of ActiveJob over Beaneater.
# Usage: active_job.rb PORT enqueue MAIL...
#        active_job.rb PORT work
require 'active_job'
require 'beaneater'
require 'json'
require_relative 'work'

$stdout.sync = true
ActiveJob::Base.logger = Logger.new(nil)
BEANSTALK = Beaneater.new("127.0.0.1:#{ARGV[0]}")

# An adapter for ActiveJob: its name is the name of the queue.
class BeaneaterAdapter
  def enqueue(job)
    enqueue_at(job, Time.now.to_f)
  end

  def enqueue_at(job, timestamp)
    delay = [timestamp - Time.now.to_f, 0].max.ceil
    priority = job.priority || 1024
    BEANSTALK.tubes[job.queue_name].put(JSON.generate(job.serialize), pri: priority, delay: delay, ttr: 60)
  end
end

class SendMail < ActiveJob::Base
  self.queue_adapter = BeaneaterAdapter.new
  queue_as 'mails'
  retry_on ArgumentError, wait: 1, attempts: 2, jitter: 0

  def perform(mail)
    puts "begin #{mail}"
    sleep 600 if mail == 'hang' && ENV['HANG']
    raise ArgumentError, 'no route to host' if mail == 'raise once' && executions == 1
    raise 'no such mailbox' if mail == 'raise'
    finish_work(mail)
  end
end

if ARGV[1] == 'enqueue'
  ARGV[2..].each { |mail| SendMail.perform_later(mail) }
else
  BEANSTALK.tubes.watch!('mails')
  loop do
    job = BEANSTALK.tubes.reserve
    begin
      ActiveJob::Base.execute(JSON.parse(job.body))
      job.delete
    rescue StandardError => error
      puts "buried: #{error.message}"
      job.bury
    end
  end
end
