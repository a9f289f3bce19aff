# Print the lines of tests/clients/commands.txt, by redis-rb.

require "json"
require "redis"
require "securerandom"

Redis.sadd_returns_boolean = false

def say(name, value)
  puts "#{name} #{value.to_json}"
end

# Return the error of a command, without its code.
def refusal
  yield
rescue Redis::CommandError => e
  e.message.sub(/^ERR /, "")
end

r = Redis.new(host: "127.0.0.1", port: Integer(ARGV[0]))

say "ping", r.ping == "PONG"
say "sadd", r.sadd("letters", "a")
say "sadd-several", r.sadd("letters", %w[a b c d])
say "scard", r.scard("letters")
say "sismember", %w[b x].map { |member| r.sismember("letters", member) ? 1 : 0 }
say "smembers", r.smembers("letters").sort
say "srem", r.srem("letters", %w[b x])
say "exists", r.exists("letters")
say "keys", r.keys("*")
say "scan", r.scan_each.to_a
say "spop", r.spop("letters")
say "spop-count", r.spop("letters", 5).sort
say "spop-empty", r.spop("letters")
say "spop-count-empty", r.spop("letters", 5)
say "lpush", r.lpush("numbers", %w[1 2 2])
say "rpop", Array.new(4) { r.rpop("numbers") }
say "del", r.del("letters", "numbers", "nothing")

members = Array.new(250) { |i| "member-#{i}" }
r.sadd("many", members)
found = r.sscan_each("many", count: 20).to_a
say "sscan", [found.size, found.sort == members.sort]
say "sscan-match", r.sscan_each("many", match: "*-249", count: 20).to_a
r.del("many")

binary = (0..255).to_a.pack("C*") + "\r\n$3\r\n*1\r\n\0\r\n".b
r.sadd("bin\r\nary\0", binary)
there = r.sismember("bin\r\nary\0", binary) ? 1 : 0
say "binary", [binary.bytesize, r.spop("bin\r\nary\0").b == binary, there]
large = SecureRandom.bytes(1 << 20)
r.sadd("large", large)
say "large", [large.bytesize, r.spop("large").b == large, r.spop("large")]

replies = r.pipelined do |pipe|
  pipe.sadd("pipe", "x")
  pipe.sadd("pipe", "y")
  pipe.sadd("pipe", "x")
  pipe.lpush("pipe", "z")
  4.times { pipe.spop("pipe") }
end
say "pipeline", replies

r.sadd("here", "message")
r.select(1)
before = r.exists("here")
r.sadd("there", "message")
put = r.scard("there")
deleted = r.del("there")
r.select(0)
say "select", [before, put, deleted, r.exists("there")]

say "auth", refusal { r.auth("secret") }
say "wrong-arity", refusal { r.call("SADD", "letters") }
