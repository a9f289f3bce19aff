# Takes messages from the server whose address is in a file, and prints them, until the file says `stop`.
require 'redis'

file = ARGV[0]
$stdout.sync = $stderr.sync = true
address = redis = nil
until (now = File.read(file).strip) == 'stop'
  begin
    redis = Redis.new(host: now.split(':')[0], port: now.split(':')[1].to_i, reconnect_attempts: 0) if now != address
    address = now
    _, message = redis.blpop('work', timeout: 1)
    puts message if message
  rescue Redis::BaseError => error
    warn error.message
    address = nil
    sleep 0.05
  end
end
