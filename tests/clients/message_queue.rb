# The PHP and the Python example of MessageQueue's README, in Ruby, by redis-rb.

require "redis"

r = Redis.new(host: "localhost", port: Integer(ARGV[0]))

10.times { |i| r.sadd?("niki", "Item #{i}") }

puts "Size: #{r.scard("niki")}"

while x = r.spop("niki")
  puts x
end

p r.sadd?("niki", "12")
p r.sadd?("niki", "15")
p r.scard("niki")
p r.sismember("niki", "abc")
p r.sismember("niki", "12")
p r.spop("niki")
p r.spop("niki")
p r.spop("niki")
