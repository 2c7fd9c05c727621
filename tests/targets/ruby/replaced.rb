# Code that is freed, with other code at its place: each of the callers calls what was made for it alone. In every second
# second it is freed at once.
#
# ruby replaced.rb [SECONDS]

def caller_a
  made_a
end

def caller_b
  made_b
end

def made(name)
  eval "def #{name}; i = 0; i += 1 while i < 100_000; i; end"
end

def gone(name, at_once)
  Object.send(:remove_method, name)
  GC.start if at_once
end

seconds = Float(ARGV[0] || "1e9")
now = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
puts "ready pid=#{Process.pid}"
$stdout.flush
start = now.call
while (since = now.call - start) < seconds
  at_once = since.to_i.odd?
  made(:made_a)
  caller_a
  gone(:made_a, at_once)
  made(:made_b)
  caller_b
  gone(:made_b, at_once)
end
