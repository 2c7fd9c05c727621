# outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %)
#
# ruby burn.rb [SECONDS]

def leaf_hot(n)
  x = 88_172_645
  i = 0
  while i < n
    x ^= (x << 13) & 0xffffffff
    x ^= x >> 17
    x ^= (x << 5) & 0xffffffff
    i += 1
  end
  x
end

def leaf_cold(n)
  x = 12_345_678
  i = 0
  while i < n
    x ^= (x << 13) & 0xffffffff
    x ^= x >> 17
    x ^= (x << 5) & 0xffffffff
    i += 1
  end
  x
end

def middle(n)
  r = leaf_hot(n * 3)
  r + 1
end

def side_cold(n)
  r = leaf_cold(n)
  r + 1
end

def outer(n)
  a = middle(n)
  b = side_cold(n)
  a ^ b
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

$stdout.sync = true
puts "ready pid=#{Process.pid}"
finish = now + (ARGV[0] || 4).to_f
calls = 0
sum = 0
noise = 1
while now < finish
  # A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
  noise = (noise * 1_103_515_245 + 12_345) & 0x7fffffff
  sum ^= outer(2000 + (noise >> 8) % 36_001)
  calls += 1
end
puts "calls #{calls} sum #{sum}"
