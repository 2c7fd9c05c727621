# Objects that live for a moment beside many that stay: a hundred collections a second, now and then of all.
#
# ruby litter.rb [SECONDS]

def leaf_hot(n)
  s = 0
  n.times { |i| s += "text #{i}".size }
  s
end

def leaf_cold(n)
  s = 0
  n.times { |i| s += "text #{i}".size }
  s
end

def middle(n)
  leaf_hot(n * 3)
end

def side(n)
  leaf_cold(n)
end

def outer(n)
  a = middle(n)
  a + side(n)
end

seconds = Float(ARGV[0] || "1e9")
kept = Array.new(200_000) { |i| "kept #{i}" }
puts "ready pid=#{Process.pid}"
$stdout.flush
ends = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
turn = 0
while Process.clock_gettime(Process::CLOCK_MONOTONIC) < ends
  turn += outer(500)
  100.times { |i| kept[(turn + i) % kept.size] = "kept #{turn}" }
end
