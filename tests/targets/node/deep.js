// main -> driver -> pathA -> a1 -> a2 -> a3 -> hotA   (75 %)
//                -> pathB -> b1 -> b2 -> b3 -> hotB   (25 %)
//
// node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack deep.js [SECONDS]
// For measuring overhead. It ends with a JSON line of iterations and rates. Environment:
//   DEEP=n         n recursive frames between main and driver
//   UNIT=n         loop rounds per percent (default 2000)
//   INLINE=1       leave TurboFan's inlining on (a1..a3 and b1..b3 then vanish)
//   TIMELINE=FILE  "time_s iterations cpu_s" twice a second
'use strict';
if (!process.env.INLINE) require('v8').setFlagsFromString('--no-turbo-inlining');
const fs = require('fs');

const unit = Number(process.env.UNIT || 2000);
const deep = Number(process.env.DEEP || 0);
const timeline = process.env.TIMELINE ? fs.openSync(process.env.TIMELINE, 'w') : -1;

function hotA(n) {
  let x = 1;
  for (let i = 0; i < n; i++) { x = (Math.imul(x, 1103515245) + 12345 + i) | 0; x ^= x >>> 7; }
  return x;
}
function hotB(n) {
  let x = 1;
  for (let i = 0; i < n; i++) { x = (Math.imul(x, 1103515245) + 12345 + i) | 0; x ^= x >>> 7; }
  return x;
}
function a3(n) { return hotA(n) + 1; }
function a2(n) { return a3(n) + 1; }
function a1(n) { return a2(n) + 1; }
function pathA(n) { return a1(n) + 1; }
function b3(n) { return hotB(n) + 1; }
function b2(n) { return b3(n) + 1; }
function b1(n) { return b2(n) + 1; }
function pathB(n) { return b1(n) + 1; }
// What an iteration takes, in rounds per percent.
let length = unit;
function driver() { return pathA(75 * length) ^ pathB(25 * length); }
function recurse(n) { return n > 0 ? recurse(n - 1) + 1 : driver(); }

function main(seconds) {
  const start = process.hrtime.bigint();
  const end = start + BigInt(Math.round(seconds * 1e9));
  const cpuStart = process.cpuUsage();
  const cpu = () => { const c = process.cpuUsage(cpuStart); return (c.user + c.system) / 1e6; };
  let iterations = 0, sum = 0, noise = 1, next = start, now;
  while ((now = process.hrtime.bigint()) < end) {
    if (timeline >= 0 && now >= next) {
      fs.writeSync(timeline, `${Number(now) / 1e9} ${iterations} ${cpu()}\n`);
      next += 500000000n;
    }
    // A tenth to nineteen tenths of a unit, at random: iterations of similar length fall into step with a profiler's
    // clock. What is counted is the work, in iterations of one unit.
    noise = (Math.imul(noise, 1103515245) + 12345) & 0x7fffffff;
    length = Math.floor(unit / 10) + (noise >> 8) % (Math.floor(unit * 9 / 5) + 1);
    sum ^= deep ? recurse(deep) : driver();
    iterations += length / unit;
  }
  const cpuSeconds = cpu();
  const elapsed = Number(process.hrtime.bigint() - start) / 1e9;
  console.log(JSON.stringify({
    iters: iterations, secs: elapsed, rate: iterations / elapsed, cpu_s: cpuSeconds, rate_cpu: iterations / cpuSeconds, sum,
  }));
}

fs.writeSync(1, `ready pid=${process.pid}\n`);
main(Number(process.argv[2] || 20));
