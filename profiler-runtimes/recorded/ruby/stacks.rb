# Two threads that sleep deep in a stack, and what they say of it: `ruby stacks.rb FILE`.
#
# FILE gets, for each thread, a line `thread TID`, and then its frames, innermost first: name, file and line, with tabs;
# functions in C have neither file nor line.

SAID = []
# What is written in C of all that is called here. Ruby says the line of its caller for it.
IN_C = %w[each eval map new sort_by].freeze

def say
  frames = caller_locations(1).map do |at|
    IN_C.include?(at.label) ? "#{at.label}\t\t0" : "#{at.label}\t#{at.absolute_path || at.path}\t#{at.lineno}"
  end
  SAID << ["thread #{Thread.current.native_thread_id}", "sleep\t\t0", *frames].join("\n")
  File.write(ARGV[0], "#{SAID.join("\n")}\n") if SAID.size == 2
end

def pause
  say; sleep
end

# Names with characters that are not ASCII.
def généré(depth, &block)
  depth.positive? ? généré(depth - 1, &block) : 生成(&block)
end

def 生成
  raise 'x'
rescue RuntimeError
  begin
    raise 'y'
  ensure
    [1].each do |value|
      value.tap { yield }
    end
  end
end

# Methods of each kind.
class Outer
  def initialize(depth)
    @depth = depth
    method_of
  end

  def method_of
    [3, 1].sort_by do |value|
      self.class.made(
        value,
        @depth,
      )
    end
  end

  def self.made(value, depth)
    -> { new_object.nobody(value + depth) }.call
  end

  def self.new_object = allocate

  def method_missing(name, *)
    name == :nobody ? defined_of { pause } : super
  end

  def respond_to_missing?(name, _) = name == :nobody

  define_method(:defined_of) do |&block|
    FAR.call(block)
  end
end

# Lines that are far apart, so many instructions that they have more than one block of the table of lines, and a file with a
# name that is not ASCII.
long = (["value += 1"] * 600).join("\n")
FAR = eval(<<~TEXT, TOPLEVEL_BINDING, '/tmp/Ω/遠い.rb', 7)
  ->(block) do
    #{"\n" * 5000}
    value = 0
    #{long}
    [value].map { eval "\n\nblock.call" }
    #{long}
  end
TEXT

thread = Thread.new do
  Enumerator.new { |to| to << généré(3) { pause } }.next
end
Thread.pass until SAID.size == 1
généré(2) { Outer.new(3) }
thread.join
