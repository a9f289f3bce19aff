# The commands that resque 2 sends, in the order of its source (lib/resque/data_store.rb, worker.rb): Debian
# does not have it.
# Usage: resque.rb PORT enqueue | work
require 'redis'

redis = Redis.new(host: '127.0.0.1', port: ARGV[0].to_i)
begin
  if ARGV[1] == 'work'
    # Worker#startup: start_heartbeat, prune_dead_workers, register_worker
    redis.hdel('resque:workers:heartbeat', 'web-1:17:default')
    redis.hset('resque:workers:heartbeat', 'web-1:17:default', '2026-11-26T10:00:00Z')
    redis.pipelined do |piped|
      piped.sadd('resque:workers', ['web-1:17:default'])
      piped.set('resque:worker:web-1:17:default:started', '2026-11-26T10:00:00Z')
    end
    puts "working #{redis.lpop('resque:queue:default')}"
  else
    redis.pipelined do |piped|
      piped.sadd('resque:queues', ['default'])
      piped.rpush('resque:queue:default', '{"class":"Mail","args":[]}')
    end
    puts 'enqueued'
  end
rescue Redis::CommandError => error
  puts "#{error.class}: #{error.message}"
  exit 1
end
