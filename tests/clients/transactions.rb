# Print the lines of tests/clients/transactions.txt, by redis-rb.

require "json"
require "redis"

Redis.sadd_returns_boolean = false

def say(name, value)
  puts "#{name} #{value.to_json}"
end

# Return the reply of a command, or its error without ERR or EXECABORT.
def reply
  yield
rescue Redis::CommandError => e
  e.message.sub(/^(ERR|EXECABORT) /, "")
end

r = Redis.new(host: "127.0.0.1", port: Integer(ARGV[0]))
other = Redis.new(host: "127.0.0.1", port: Integer(ARGV[0]))

replies = r.multi do |multi|
  multi.sadd("q", %w[a b])
  multi.scard("q")
  multi.spop("q")
  multi.rpush("q", "c")
  multi.rpop("q")
end
say "multi", replies
r.del("q", "d")

# redis-rb sends a transaction when its block ends and cannot discard it.
r.call("MULTI")
r.call("SADD", "q", "a")
r.call("DISCARD")
say "discard", r.exists("q")

replies = r.watch("q") do
  r.multi do |multi|
    multi.sadd("q", "own")
    multi.scard("q")
  end
end
say "watch-unchanged", replies
r.del("q")
replies = r.watch("q") do
  other.sadd("q", "other")
  r.multi { |multi| multi.sadd("q", "own") }
end
say "watch-changed", replies
r.watch("q")
other.sadd("q", "more")
r.unwatch
say "unwatch", r.multi { |multi| multi.sadd("q", "own") }
r.del("q")

# redis-rb's own transaction raises the command's error instead of EXEC's.
r.call("MULTI")
r.call("SADD", "q", "a")
reply { r.call("SADD", "q") }
say "refused-when-queued", reply { r.call("EXEC") }

r.call("MULTI")
r.call("SADD", "q", "a")
r.call("SPOP", "q", "-1")
r.call("SADD", "q", "b")
replies = r.call("EXEC")
results = replies.map { |result| result.is_a?(Redis::CommandError) ? reply { raise result } : result }
say "refused-when-done", results
r.del("q")

other.rpush("second", "message")
say "blpop", r.blpop("first", "second", timeout: 5)
say "blpop-timeout", r.blpop("first", "second", timeout: 0.05)
replies = r.multi do |multi|
  multi.blpop("q", timeout: 0)
  multi.sadd("q", "x")
  multi.brpop("q", timeout: 0)
end
say "blpop-in-multi", replies
r.sadd("q", "x")
say "move", [r.blmove("q", "d", "LEFT", "RIGHT", timeout: 1), r.llen("d")]
r.del("q", "d", "first", "second")

r.call("PRESSURE.CREATE", "pipe")
%w[a b].each { |message| r.call("PRESSURE.PUT", "pipe", message) }
replies = r.multi do |multi|
  multi.call("PRESSURE.EXISTS", "pipe")
  3.times { multi.call("PRESSURE.GET", "pipe") }
end
say "multi-pressure", replies
r.call("PRESSURE.CLOSE", "pipe")
say "get-closed", reply { r.call("PRESSURE.GET", "pipe") }
