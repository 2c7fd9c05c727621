// outer -> middle -> leafHot (75 %), outer -> sideCold -> leafCold (25 %)
//
// node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack --no-turbo-inlining burn.js [SECONDS]
// (and --no-maglev-inlining where Node has it). It writes ./jit-PID.dump. Inlining is switched off so that every
// function keeps a frame of its own.
'use strict';
const fs = require('fs');

function leafHot(n) {
  let x = 88172645;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
function leafCold(n) {
  let x = 12345678;
  for (let i = 0; i < n; i++) { x ^= x << 13; x ^= x >>> 17; x ^= x << 5; }
  return x | 0;
}
function middle(n) { const r = leafHot(n * 3); return (r + 1) | 0; }
function sideCold(n) { const r = leafCold(n); return (r + 1) | 0; }
function outer(n) { return (middle(n) + sideCold(n)) | 0; }

// console.log would need the event loop, which this program never gets back to.
fs.writeSync(1, `ready pid=${process.pid}\n`);
const end = Date.now() + 1000 * Number(process.argv[2] || 4);
let calls = 0, sum = 0, noise = 1;
while (Date.now() < end) {
  // A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's clock.
  noise = (Math.imul(noise, 1103515245) + 12345) & 0x7fffffff;
  sum ^= outer(2000 + (noise >> 8) % 36001);
  calls++;
}
console.log('calls', calls, 'sum', sum);
