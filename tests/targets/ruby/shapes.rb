# Each way in which Ruby calls Ruby, with a leaf of its own for each, so that a stack says which way it came: recursion,
# methods, blocks, functions in C that call back, fibers, threads, what was evaluated, what is rescued and ensured. All leaves
# burn the same time.
#
# ruby shapes.rb [SECONDS]

def burn
  x = 88_172_645
  i = 0
  while i < 3000
    x ^= (x << 13) & 0xffffffff
    x ^= x >> 17
    i += 1
  end
  x
end

def leaf_recursive = burn
def leaf_method = burn
def leaf_singleton = burn
def leaf_block = burn
def leaf_each = burn
def leaf_sorted = burn
def leaf_injected = burn
def leaf_lambda = burn
def leaf_fiber = burn
def leaf_enumerated = burn
def leaf_evaluated = burn
def leaf_defined = burn
def leaf_missing = burn
def leaf_rescued = burn
def leaf_ensured = burn

def recurse(n) = n.positive? ? recurse(n - 1) : leaf_recursive

# Methods of each kind.
class Shape
  def method_of = leaf_method
  def self.singleton_of = leaf_singleton

  def with_block
    yield
  end

  def method_missing(name)
    name == :nobody ? leaf_missing : super
  end

  def respond_to_missing?(name, _) = name == :nobody

  def each
    yield 1
  end
  include Enumerable

  define_method(:defined_of) { leaf_defined }
end

eval 'def evaluated = leaf_evaluated'

def thrower
  raise 'x'
ensure
  leaf_ensured
end

def turn(shape)
  recurse(20)
  shape.method_of
  Shape.singleton_of
  shape.with_block { leaf_block }
  [1, 2].each { leaf_each }
  [3, 1].sort_by { |n| leaf_sorted + n }
  shape.inject(0) { |sum, n| leaf_injected + sum + n }
  ->(n) { leaf_lambda + n }.call(1)
  Fiber.new { leaf_fiber }.resume
  Enumerator.new { |to| to << leaf_enumerated }.next
  evaluated
  shape.defined_of
  shape.nobody
  begin
    thrower
  rescue RuntimeError
    leaf_rescued
  end
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

$stdout.sync = true
puts "ready pid=#{Process.pid}"
finish = now + (ARGV[0] || 4).to_f
shape = Shape.new
turn(shape) while now < finish
