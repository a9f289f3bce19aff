# Waits for a message with a library of Ruby: wait_with.rb LIBRARY PORT. Prints how the wait ends.
library, port = ARGV
begin
  got =
    case library
    when 'redis-rb'
      require 'redis'
      Redis.new(port: port.to_i, read_timeout: 0, reconnect_attempts: 0).blpop('mails')
    when 'Beaneater'
      require 'beaneater'
      Beaneater.new("127.0.0.1:#{port}").tubes.reserve
    end
  puts "got #{got.inspect}"
rescue StandardError => e
  # redis-rb connects again at once. Either error may come of a server that is just ending.
  puts e.class.to_s.sub('CannotConnectError', 'ConnectionError')
end
