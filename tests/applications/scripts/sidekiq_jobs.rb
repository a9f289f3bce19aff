# Jobs of Sidekiq. `ruby sidekiq_jobs.rb CLASS ACTION WORD...` puts one for each word.
require 'sidekiq'
require_relative 'work'

$stdout.sync = true
Redis.silence_deprecations = true

class Once
  include Sidekiq::Worker
  sidekiq_options retry: false

  def perform(mail)
    puts "begin #{mail}"
    sleep 600 if mail == 'hang' && ENV['HANG']
    raise 'no route to host' if mail == 'raise'
    finish_work(mail)
  end
end

class WithRetries < Once
  sidekiq_options retry: 5
end

if $PROGRAM_NAME == __FILE__
  job = Object.const_get(ARGV[0])
  begin
    case ARGV[1]
    when 'async' then ARGV[2..].each { |mail| job.perform_async(mail) }
    when 'bulk' then job.perform_bulk(ARGV[2..].map { |mail| [mail] })
    when 'in' then job.perform_in(1, ARGV[2])
    end
  rescue Redis::CommandError => error
    puts "#{error.class}: #{error.message}"
  end
end
