# What tests/clients/transactions.txt lists, by redis-rb.

require "json"
require "redis"

Redis.sadd_returns_boolean = false

def say(what, value)
  puts "#{what} #{value.to_json}"
end

# The error that a command gives, without its ERR or EXECABORT; what it replies where there is none.
def said
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
replies = r.multi do |multi|
  multi.sadd("s", "x")
  multi.sadd("d", "y")
  multi.lmove("s", "d", "LEFT", "RIGHT")
  multi.del("s")
  multi.llen("d")
end
say "multi-across", replies
r.del("q", "d")

# redis-rb sends a transaction when its block ends, so DISCARD is sent by hand.
r.call("MULTI")
r.call("SADD", "q", "a")
r.call("DISCARD")
say "discard", r.exists("q")

replies = r.watch("q") do
  r.multi do |multi|
    multi.sadd("q", "ours")
    multi.scard("q")
  end
end
say "watch-unchanged", replies
r.del("q")
replies = r.watch("q") do
  other.sadd("q", "theirs")
  r.multi { |multi| multi.sadd("q", "ours") }
end
say "watch-changed", replies
say "watch-changed-left", r.smembers("q")
r.watch("q")
other.sadd("q", "more")
r.unwatch
say "unwatch", r.multi { |multi| multi.sadd("q", "ours") }
r.del("q")

# In its own transaction redis-rb raises the command's error before EXEC's.
r.call("MULTI")
r.call("SADD", "q", "a")
said { r.call("SADD", "q") }
say "refused-when-queued", said { r.call("EXEC") }
say "refused-when-queued-left", r.exists("q")

r.call("MULTI")
r.call("SADD", "q", "a")
r.call("SPOP", "q", "-1")
r.call("SADD", "q", "b")
replies = r.call("EXEC")
say "refused-when-done", replies.map { |reply| reply.is_a?(Redis::CommandError) ? said { raise reply } : reply }
r.del("q")

other.rpush("second", "message")
say "blpop", r.blpop("first", "second", timeout: 5)
say "blpop-in-vain", r.blpop("first", "second", timeout: 0.05)
replies = r.multi do |multi|
  multi.blpop("q", timeout: 0)
  multi.sadd("q", "x")
  multi.brpop("q", timeout: 0)
end
say "blpop-in-multi", replies
r.sadd("q", "x")
say "move", [r.blmove("q", "d", "LEFT", "RIGHT", timeout: 1), r.llen("d")]
r.del("q", "d", "first", "second")

say "create", said { r.call("PRESSURE.CREATE", "pipe", "BOUND", "2", "OVERFLOW", "error") }
say "create-again", said { r.call("PRESSURE.CREATE", "pipe") }
say "put", said { r.call("PRESSURE.PUT", "pipe", "a") }
say "put-again", said { r.call("PRESSURE.PUT", "pipe", "a", "NX") }
r.call("PRESSURE.PUT", "pipe", "b")
say "put-full", said { r.call("PRESSURE.PUT", "pipe", "c") }
replies = r.multi do |multi|
  multi.call("PRESSURE.EXISTS", "pipe")
  3.times { multi.call("PRESSURE.GET", "pipe") }
end
say "multi-pressure", replies
say "close", said { r.call("PRESSURE.CLOSE", "pipe") }
say "get-closed", said { r.call("PRESSURE.GET", "pipe") }
say "list", said { r.call("PRESSURE.LIST") }
say "delete", said { r.call("PRESSURE.DELETE", "pipe") }
say "get-deleted", said { r.call("PRESSURE.GET", "pipe") }
