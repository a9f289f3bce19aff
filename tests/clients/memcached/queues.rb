# Print the lines of queues.txt, in the text protocol over a socket, as kestrel's Ruby clients do.

require 'json'
require 'socket'

def say(name, value)
  puts "#{name} #{JSON.generate(value)}"
end

# A client that sends strings as they are, and other values marshalled, with a flag.
class Memcached
  FLAG_MARSHAL = 1
  attr_reader :refusal

  def initialize(port)
    @socket = TCPSocket.new('127.0.0.1', port)
  end

  def set(key, value, expire: 0, noreply: false, with: 'set')
    flags = value.is_a?(String) ? 0 : FLAG_MARSHAL
    data = flags.zero? ? value : Marshal.dump(value)
    @socket.write("#{with} #{key} #{flags} #{expire} #{data.bytesize}#{noreply ? ' noreply' : ''}\r\n", data, "\r\n")
    noreply ? true : succeeded?('STORED')
  end

  def add(key, value)
    set(key, value, with: 'add')
  end

  def get(*keys, with: 'get')
    @socket.write("#{with} #{keys.join(' ')}\r\n")
    values = {}
    while (words = line.split)[0] == 'VALUE'
      data = @socket.read(words[3].to_i + 2)[0...-2]
      values[words[1]] = words[2].to_i == FLAG_MARSHAL ? Marshal.load(data) : data.force_encoding('UTF-8')
    end
    keys.size == 1 ? values[keys[0]] : values
  end

  def stats
    @socket.write("stats\r\n")
    stats = {}
    while (words = line.split(' ', 3))[0] == 'STAT'
      stats[words[1]] = words[2].to_i
    end
    stats
  end

  # Return whether the reply to a command begins so.
  def does?(command, reply)
    @socket.write("#{command}\r\n")
    succeeded?(reply)
  end

  private

  def line
    @socket.gets.chomp("\r\n")
  end

  def succeeded?(wanted)
    reply = line
    @refusal = reply[/_ERROR (.*)/, 1] || @refusal
    reply.start_with?(wanted)
  end
end

m = Memcached.new(ARGV[0].to_i)
say('version', m.does?('version', 'VERSION '))
say('set', %w[a b a].map { |message| m.set('letters', message) })
say('get', Array.new(4) { m.get('letters') })
say('add', Array.new(2) { m.add('letters', 'x') })
m.set('numbers', 'y')
say('get-many', m.get('letters', 'nothing', 'numbers'))
m.set('letters', 'm')
say('gets', m.get('letters', with: 'gets'))
m.set('letters', 'quiet', noreply: true)
say('noreply', [m.get('letters')])

values = [42, 1.5, true, { 'a' => [1, 2], 'b' => nil }, '', 'long ' * 10_000]
say('own-values', values.map { |value| m.set('own', value) && m.get('own') == value })
binary = (0..255).to_a.pack('C*') + "\r\nEND\r\nset q 0 0 1\r\nx\r\n\0 STORED\r\n".b
m.set('binary', binary)
say('binary', [binary.bytesize, m.get('binary').b == binary])
large = Random.bytes(500_000)
m.set('large', large)
say('large', [large.bytesize, m.get('large').b == large])
say('delete', Array.new(2) { m.does?('delete large', 'DELETED') })
say('refused', [m.does?('incr q 1', '1'), m.set('q', 'x', with: 'append'), m.set('q', 'x', with: 'replace'),
                m.does?('touch q 10', 'TOUCHED')])

m.set('expiry', 'soon', expire: 1)
m.set('expiry', 'lasting', expire: 100)
sleep 0.01 while m.get('expiry/peek') == 'soon'
say('expiry', [m.get('expiry'), m.get('expiry')])
began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
say('timeout', [m.get('nothing/t=200'), Process.clock_gettime(Process::CLOCK_MONOTONIC) - began > 0.19])

m.set('work', 'one')
m.set('work', 'two')
say('open', %w[open abort open open].map { |option| m.get("work/#{option}") })
m.get('work/abort')
say('peek', Array.new(2) { m.get('work/peek') })
say('close-open', %w[work/open work/close/open work/close work].map { |key| m.get(key) })

%w[x y z].each { |message| m.set('counted', message) }
m.get('counted')
stats = m.stats
say('stats', [stats['queue_counted_items'], stats['queue_counted_total_items']])

say('full', [m.set('full', 'm'), m.refusal])
say('closed', [m.set('closed', 'm'), m.refusal])
say('ended', m.get('closed/t=100000'))
say('after', [m.set('letters', 'm'), m.get('letters')])
