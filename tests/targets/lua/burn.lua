-- outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %)
--
--   luajit burn.lua [SECONDS]
--
-- LuaJIT compiles loops and what they call as traces, which are named by the line that they begin in. It knows neither
-- its own number nor a clock of real time: the kernel is asked for the first, and the CPU time used is counted.
local bit = require("bit")
local bxor, lshift, rshift = bit.bxor, bit.lshift, bit.rshift

local function leaf_hot(n)
  local x = 88172645
  for _ = 1, n do x = bxor(x, lshift(x, 13)); x = bxor(x, rshift(x, 17)); x = bxor(x, lshift(x, 5)) end
  return x
end

local function leaf_cold(n)
  local x = 12345678
  for _ = 1, n do x = bxor(x, lshift(x, 13)); x = bxor(x, rshift(x, 17)); x = bxor(x, lshift(x, 5)) end
  return x
end

local function middle(n) local r = leaf_hot(n * 3); return r + 1 end
local function side_cold(n) local r = leaf_cold(n); return r + 1 end
local function outer(n) local a = middle(n); local b = side_cold(n); return bxor(a, b) end

local status = assert(io.open("/proc/self/stat"))
local pid = status:read("*n")
status:close()
io.write("ready pid=", pid, "\n")
io.flush()
local finish = os.clock() + tonumber(arg[1] or 4)
local noise = 1
while os.clock() < finish do
  -- A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
  noise = (noise * 16807) % 2147483647
  outer(2000 + noise % 36001)
end
