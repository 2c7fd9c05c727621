# Waits in a method that a block has called: Keeper#keeps -> each -> block -> holds -> sleep.
#
# ruby waits.rb

def holds
  sleep
end

# Who waits.
class Keeper
  def keeps
    [1].each { holds }
  end
end

$stdout.sync = true
puts "ready pid=#{Process.pid}"
Keeper.new.keeps
