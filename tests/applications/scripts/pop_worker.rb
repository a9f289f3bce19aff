# The worker of pop_worker.py, with redis-rb.
require 'redis'

_, port, queue, pop, timeout = ARGV
WAIT = 60 # seconds
$stdout.sync = true
options = timeout == 'default' ? {} : { read_timeout: timeout.to_f, reconnect_attempts: 0 }
redis = Redis.new(port: port.to_i, **options)
message = nil
while (step = $stdin.gets&.strip)
  raise 'the work has failed' if step == 'fail'

  begin
    case step
    when 'pop'
      # By `call`, a wait has the client's own read timeout. `blpop` adds that of the wait.
      message = pop == 'poll' ? redis.spop(queue) : redis.call('BLPOP', queue, WAIT)&.last
      puts message ? "got #{message}" : 'none'
      next
    when 'work'
      redis.ping
      redis.rpush("#{queue}:done", message)
    when 'ack' then redis.call('PRESSURE.ACK', queue)
    when 'quit' then redis.quit
    when 'close' then redis.close
    end
    puts step
  rescue StandardError => e
    puts "error #{e.class} #{e.message}"
  end
end
